"""Pages of a report, and how they are found.

A page is one module with a ``PAGE`` constant: a :class:`Page` that shows the result
of one analyzer, a :class:`RunPage` that shows the run as a whole, or a
:class:`RunsPage` over several. Modules of ``tracekit.dashboards`` are found; other
packages announce theirs as entry points of the group ``tracekit.pages``, and a
user's own file is named on the command line.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from tracekit.analysis._contract import Analyzer, Result
from tracekit.core.errors import UsageError
from tracekit.core.table import Schema
from tracekit.report.blocks import Answer, Block, Folded, Text, definitions
from tracekit.report.section import Section

# Named, not imported: dashboards stand above this package and import it.
DASHBOARDS = "tracekit.dashboards"
ENTRY_POINTS = "tracekit.pages"
_SLUG = re.compile(r"[a-z][a-z0-9_-]*")

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
    """A page about the run as a whole: overview, conditions.

    Attributes:
        missing: why the page has no answer for a run, None when it has one.
    """

    title: str
    slug: str
    build: Callable[[Section], Sequence[Block]]
    order: int
    missing: Callable[[Section], str | None] = lambda section: None

    def blocks(self, section: Section) -> Sequence[Block] | None:
        reason = self.missing(section)
        if reason is not None:
            return (Answer(f"Not available for this run: {reason}"),)
        return self.build(section)

    def available(self, section: Section) -> bool:
        return self.missing(section) is None


@dataclass(frozen=True, slots=True)
class RunsPage:
    """A page over all runs of a report that has several."""

    title: str
    slug: str
    build: Callable[[Sequence[Section]], Sequence[Block]]
    order: int


def pages(extra: Iterable[AnyPage | RunsPage] = ()) -> tuple[AnyPage, ...]:
    """Every page about one run, in the order of the report."""
    return tuple(page for page in _all(extra) if not isinstance(page, RunsPage))


def runs_pages(extra: Iterable[AnyPage | RunsPage] = ()) -> tuple[RunsPage, ...]:
    """Every page about several runs, in the order of the report."""
    return tuple(page for page in _all(extra) if isinstance(page, RunsPage))


def page_from(path: Path) -> AnyPage | RunsPage:
    """The page of a user's own module, from its file.

    Raises:
        UsageError: the file cannot be imported, or has no page as its ``PAGE``.
    """
    spec = importlib.util.spec_from_file_location(f"tracekit_page_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"{path}: no Python module")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses of the module look it up there.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from error
    return _checked(getattr(module, "PAGE", None), str(path))


def _all(extra: Iterable[AnyPage | RunsPage]) -> list[AnyPage | RunsPage]:
    """Pages of this package, of installed packages, and those given, in order."""
    found = [*_found(), *_installed(), *extra]
    slugs = [page.slug for page in found]
    for slug in slugs:
        if slugs.count(slug) > 1:
            raise UsageError(f"two pages are called {slug!r}; give your page another slug")
    return sorted(found, key=lambda page: (page.order, page.slug))


def _found() -> list[AnyPage | RunsPage]:
    package = importlib.import_module(DASHBOARDS)
    names = (module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg)
    return [
        importlib.import_module(f"{DASHBOARDS}.{name}").PAGE
        for name in names
        if not name.startswith("_")
    ]


@functools.cache
def _installed() -> tuple[AnyPage | RunsPage, ...]:
    """Pages that other packages announce as entry points."""
    return tuple(
        _checked(point.load(), f"entry point {point.name} ({point.value})")
        for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    )


def _checked(page: object, where: str) -> AnyPage | RunsPage:
    if not isinstance(page, (Page, RunPage, RunsPage)):
        raise UsageError(f"{where}: PAGE must be a Page, a RunPage or a RunsPage")
    if not _SLUG.fullmatch(page.slug):
        raise UsageError(f"{where}: the slug {page.slug!r} must be of a-z, 0-9, - and _")
    return page


def method_of(module: ModuleType, schemas: Sequence[Schema]) -> Folded:
    """Method and limits, in the words of the module that measures, and what its columns mean."""
    doc = inspect.cleandoc(module.__doc__ or "")
    # "Definition" and "Limits" begin a line of their own there, and a paragraph here.
    doc = re.sub(r"\n(?=(Definition|Limits)\b)", "\n\n", doc.replace("``", ""))
    return Folded("Method and limits", (Text(doc), definitions(schemas)))


def _method(analyzer: Analyzer[Any]) -> Folded:
    return method_of(sys.modules[analyzer.analyze.__module__], tuple(analyzer.tables.values()))
