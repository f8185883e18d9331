"""What every analyzer module offers: one ``ANALYZER`` constant, found by discovery."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy.typing as npt
import pandas as pd

from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Finding
from tracekit.core.run import Run
from tracekit.core.table import Column, Schema


class Result(Protocol):
    """A result is a frozen dataclass: its tables (DataFrames), its scalars, its findings."""

    @property
    def findings(self) -> tuple[Finding, ...]: ...


R = TypeVar("R", bound=Result)


@dataclass(frozen=True, slots=True)
class Analyzer(Generic[R]):
    """One question, asked of a run.

    Attributes:
        name: the name used on the command line and in JSON.
        question: what it answers, as a question.
        analyze: pure; raises MissingDataError naming what to record.
        result: the dataclass that ``analyze`` returns.
        tables: attribute of the result -> schema of that DataFrame.
        scalars: attributes of the result that are single numbers or words.
    """

    name: str
    question: str
    analyze: Callable[[Run], R]
    result: type[R]
    tables: Mapping[str, Schema]
    scalars: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one analyzer on one run: a result, or the reason there is none."""

    analyzer: Analyzer[Any]
    result: Any | None
    reason: str | None = None
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return () if self.result is None else self.result.findings


def table(schema: Schema, columns: Mapping[str, npt.ArrayLike]) -> pd.DataFrame:
    """A result table with the schema's columns, in its order and dtypes."""
    return pd.DataFrame(
        {
            column.name: pd.Series(columns[column.name], dtype=column.dtype)
            for column in schema.columns
        }
    )


def analyzers() -> dict[str, Analyzer[Any]]:
    """Every analyzer of the package by name, in alphabetical order."""
    from tracekit import analysis

    found = {}
    for module in pkgutil.iter_modules(analysis.__path__):
        if not module.name.startswith("_"):
            item: Analyzer[Any] = importlib.import_module(
                f"{analysis.__name__}.{module.name}"
            ).ANALYZER
            found[item.name] = item
    return found


def apply(analyzer: Analyzer[Any], run: Run) -> Outcome:
    """Run one analyzer; missing data becomes the reason instead of an error."""
    try:
        result = analyzer.analyze(run)
    except MissingDataError as error:
        return Outcome(analyzer, None, str(error))
    return Outcome(
        analyzer, result, None, {name: getattr(result, name) for name in analyzer.tables}
    )
