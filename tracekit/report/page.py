"""Pages of a report, and how they are found.

A page is one module of ``tracekit.dashboards`` with a ``PAGE`` constant: a
:class:`Page` that shows the result of one analyzer, or a :class:`RunPage` that
shows the run as a whole.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from tracekit.analysis._contract import Analyzer, Result
from tracekit.core.table import Schema
from tracekit.report.blocks import Answer, Block, Folded, Text, definitions
from tracekit.report.section import Section

# Named, not imported: dashboards stand above this package and import it.
DASHBOARDS = "tracekit.dashboards"

R = TypeVar("R", bound=Result)


class AnyPage(Protocol):
    """What a renderer needs of a page."""

    @property
    def title(self) -> str: ...
    @property
    def order(self) -> int: ...
    @property
    def slug(self) -> str:
        """The page's name in links, stable across versions."""
        ...

    def blocks(self, section: Section) -> Sequence[Block] | None:
        """What the page says about this run; None when it has nothing to say."""
        ...

    def available(self, section: Section) -> bool:
        """False when the page can only say why its question has no answer."""
        ...


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """The page of one analyzer; ``build`` sees its result and the section it belongs to."""

    title: str
    analyzer: Analyzer[R]
    build: Callable[[R, Section], Sequence[Block]]
    order: int

    @property
    def slug(self) -> str:
        return self.analyzer.name

    def blocks(self, section: Section) -> Sequence[Block] | None:
        outcome = section.outcome(self.analyzer.name)
        if outcome is None:
            return None
        if outcome.result is None:
            sentence = f"Not available for this run: {outcome.reason}"
            return (Answer(sentence, self.analyzer.question), _method(self.analyzer))
        return (*self.build(outcome.result, section), _method(self.analyzer))

    def available(self, section: Section) -> bool:
        outcome = section.outcome(self.analyzer.name)
        return outcome is not None and outcome.result is not None


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page about the run as a whole: overview, conditions."""

    title: str
    slug: str
    build: Callable[[Section], Sequence[Block]]
    order: int

    def blocks(self, section: Section) -> Sequence[Block] | None:
        return self.build(section)

    def available(self, section: Section) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RunsPage:
    """A page over all runs of a report that has several."""

    title: str
    slug: str
    build: Callable[[Sequence[Section]], Sequence[Block]]
    order: int


def pages() -> tuple[AnyPage, ...]:
    """Every page about one run, in the order of the report."""
    return tuple(page for page in _found() if not isinstance(page, RunsPage))


def runs_pages() -> tuple[RunsPage, ...]:
    """Every page about several runs, in the order of the report."""
    return tuple(page for page in _found() if isinstance(page, RunsPage))


def _found() -> list[AnyPage | RunsPage]:
    package = importlib.import_module(DASHBOARDS)
    names = (module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg)
    found: list[AnyPage | RunsPage] = [
        importlib.import_module(f"{DASHBOARDS}.{name}").PAGE
        for name in names
        if not name.startswith("_")
    ]
    return sorted(found, key=lambda page: (page.order, page.slug))


def method_of(module: ModuleType, schemas: Sequence[Schema]) -> Folded:
    """Method and limits, in the words of the module that measures, and what its columns mean."""
    doc = inspect.cleandoc(module.__doc__ or "")
    # "Definition" and "Limits" begin a line of their own there, and a paragraph here.
    doc = re.sub(r"\n(?=(Definition|Limits)\b)", "\n\n", doc.replace("``", ""))
    return Folded("Method and limits", (Text(doc), definitions(schemas)))


def _method(analyzer: Analyzer[Any]) -> Folded:
    return method_of(sys.modules[analyzer.analyze.__module__], tuple(analyzer.tables.values()))
