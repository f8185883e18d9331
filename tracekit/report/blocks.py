"""What a page says, as plain data: no markup, no colours, no pixels.

A page builds blocks; ``html`` and ``text`` show the same blocks. Numbers stay
in their base unit (ns, bytes, ratio) until a renderer formats them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pandas as pd

from tracekit.core.finding import Finding
from tracekit.core.table import Schema
from tracekit.report.format import Scale, scale

Cell: TypeAlias = object  # int, float, str, bool, or None / NaN / NA for "not measurable"


class Role(str, Enum):
    """What a colour stands for; each role has one colour in the whole report."""

    COMPUTE = "compute"
    HIDING = "hiding"  # compute that hides communication
    TRANSFER = "transfer"  # exposed communication
    WAIT = "wait"  # waiting for another rank
    MEMORY = "memory"
    IDLE = "idle"
    TIME = "time"  # the length of a step, which is no part of anything
    FAINT = "faint"  # shown, but left out of statistics


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the page's question, as a sentence with numbers."""

    sentence: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; an empty line begins the next one."""

    text: str


@dataclass(frozen=True, slots=True)
class FoundItem:
    """A finding with the words for whom it concerns and the page that shows it."""

    finding: Finding
    who: str
    page: str  # title


@dataclass(frozen=True, slots=True)
class FindingsTable:
    """What to fix first, most expensive first."""

    title: str
    items: tuple[FoundItem, ...]
    more: int = 0  # findings that are not among the items

    def units(self) -> Scale:
        """One scale for the lost times of all items."""
        return scale("ns", (item.finding.lost_ns_per_step for item in self.items))


@dataclass(frozen=True, slots=True)
class Series:
    """One kind of part, with a value for each bar."""

    label: str
    role: Role
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars from zero. A single bar shows its values in the legend."""

    title: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    unit: str
    value_axis: str
    label_axis: str = ""
    caption: str = ""
    horizontal: bool = False
    marked: frozenset[int] = frozenset()  # positions of the culprits, drawn with an outline
    ticks: tuple[str, ...] = ()  # short forms of the labels for the axis
    legend: bool = True  # False where the same parts stand in a legend just above


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Values over two categories on one sequential scale that begins at a named zero."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    unit: str
    value_axis: str
    row_axis: str
    column_axis: str
    zero: str  # what zero means, "0: all hidden"
    role: Role
    caption: str = ""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a shown table."""

    label: str
    unit: str
    description: str = ""
    numeric: bool = True
    prose: bool = False  # sentences rather than names: shown at greater length


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells in base units.

    Attributes:
        worst: the column whose highest values survive when not all rows can be shown.
    """

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    worst: int | None = None

    def shown(self, limit: int) -> tuple[tuple[tuple[Cell, ...], ...], str]:
        """At most ``limit`` rows, and a note that says which, empty when all are shown."""
        if len(self.rows) <= limit:
            return self.rows, ""
        total = len(self.rows)
        if self.worst is None:
            return self.rows[:limit], f"The first {limit} of {total:,} rows."
        key = self.worst
        order = sorted(range(total), key=lambda i: -_magnitude(self.rows[i][key]))[:limit]
        label = self.columns[key].label
        note = f"{limit} of {total:,} rows: those with the highest {label}."
        return tuple(self.rows[i] for i in sorted(order)), note


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Facts, one a line; null values are shown as not known."""

    title: str
    items: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True, slots=True)
class Copyable:
    """Text to be copied as it is."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Folded:
    """Blocks out of the way until asked for: method, limits, long tables."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """Two cards in one row, the first twice as wide; one under the other on a narrow screen."""

    wide: tuple[Block, ...]
    narrow: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Small cards that fill the width in as many columns as fit."""

    blocks: tuple[Block, ...]


Block: TypeAlias = (
    "Answer | Text | FindingsTable | Bars | Heatmap | Table | KeyValues | Copyable | Folded"
    " | Beside | Grid"
)


def table(
    title: str,
    frame: pd.DataFrame,
    schema: Schema,
    labels: Mapping[str, str],
    *,
    caption: str = "",
    worst: str | None = None,
) -> Table:
    """A table of the chosen columns of a result frame; ``labels`` names and orders them."""
    names = list(labels)
    columns = tuple(
        TableColumn(
            label,
            schema[name].unit,
            schema[name].description,
            numeric=pd.api.types.is_numeric_dtype(frame[name]),
        )
        for name, label in labels.items()
    )
    rows = tuple(zip(*(frame[name].tolist() for name in names), strict=True))
    return Table(title, columns, rows, caption, None if worst is None else names.index(worst))


def definitions(schemas: Sequence[Schema]) -> KeyValues:
    """The declared meaning of every column, once each."""
    meanings: dict[str, str] = {}
    for schema in schemas:
        for column in schema.columns:
            meanings.setdefault(column.name, column.description)
    return KeyValues("Columns, as in the JSON and CSV output", tuple(meanings.items()))


def _magnitude(value: Cell) -> float:
    return float("-inf") if pd.isna(value) else float(value)  # type: ignore[arg-type]
