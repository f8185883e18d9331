"""What a page says, as plain data: no markup, no colours, no pixels.

A page builds blocks; ``html`` and ``text`` show the same blocks. Numbers stay
in their base unit (ns, bytes, ratio) until a renderer formats them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import pandas as pd

from tracekit.core.finding import Finding
from tracekit.core.table import Schema
from tracekit.report.format import Scale, missing, scale

Cell: TypeAlias = object  # int, float, str, bool, or None / NaN / NA for "not measurable"


class Role(str, Enum):
    """What a colour stands for; each role has one colour in the whole report."""

    COMPUTE = "compute"
    HIDING = "hiding"  # compute that hides communication
    TRANSFER = "transfer"  # exposed communication
    WAIT = "wait"  # waiting for another rank
    MEMORY = "memory"
    IDLE = "idle"
    FORWARD = "forward"  # tints of compute, for what a pipeline schedule tells apart
    BACKWARD = "backward"
    WEIGHT = "weight"  # gradients of weights alone
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


@dataclass(frozen=True, slots=True, eq=False)
class Cube:
    """The values behind a chart by rank and step, so that it can follow a selection.

    The reader chooses ranks and steps; the chart then shows means over the chosen
    ones, of counted steps alone unless a step is named.

    Attributes:
        along: what the bars stand for: "rank", "step", or "" for one bar of all.
        over: what is taken over the rest: "mean" or "median".
        names: of the ranks, in their order.
        values: per series, a row per rank with a value per step; None where there is none.
    """

    along: str
    over: str
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    steps: tuple[int, ...]
    counted: tuple[bool, ...]
    values: tuple[tuple[tuple[float | None, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Key:
    """What a row of a table is about, so that a selection can hide it."""

    rank: int | None = None
    step: int | None = None
    axis: str | None = None


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
    cube: Cube | None = field(default=None, compare=False)
    keys: tuple[Key, ...] = ()  # what each bar is about; not needed with a cube


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
    row_ranks: tuple[int, ...] = ()  # rank of each row, where rows are ranks
    column_steps: tuple[int, ...] = ()  # step of each column, where columns are steps
    least_top: float = 0.0  # the scale reaches at least this far: small values stay pale

    def top(self) -> float | None:
        """The end of the scale; None without any value."""
        present = [v for row in self.values for v in row if not missing(v)]
        return max((*present, self.least_top), default=None) if present else None  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined by a line, with a band around it where one is known."""

    label: str
    role: Role
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    hover: tuple[str, ...] = ()  # further words per point: its n, its run
    axis: str | None = None  # mesh axis, for a selection
    dashed: bool = False  # an ideal or a bound rather than a measurement


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over a common x, each axis with one unit; scales may be logarithmic."""

    title: str
    lines: tuple[Line, ...]
    x_axis: str
    y_axis: str
    x_unit: str = ""
    y_unit: str = ""
    x_log: bool = False
    y_log: bool = False
    x_ticks: tuple[float, ...] = ()  # exactly these, where the values are few and fixed
    y_reach: tuple[float, ...] = ()  # shown as well: charts side by side share one scale
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Whisker:
    """A difference with its interval, beside the noise it must exceed."""

    label: str
    value: float
    low: float
    high: float
    noise: float
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Whiskers:
    """Differences around a named zero, a grey band for the noise of each."""

    title: str
    rows: tuple[Whisker, ...]
    unit: str
    value_axis: str
    caption: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Intervals of one rank in order of start; parallel tuples, times in ns from the view's zero.

    ``roles`` and ``names`` are indices into those of the timeline. Where ``counts`` is
    given, an interval may stand for that many pieces of work.
    """

    label: str
    rank: int | None
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    roles: tuple[int, ...]
    names: tuple[int, ...]
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TimelineView:
    """One step, or one window, of a timeline."""

    label: str
    step: int | None
    span_ns: int
    lanes: tuple[Lane, ...]
    note: str = ""  # what was left out or merged


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Swim lanes on one time axis; drag zooms, double click resets. Schedules are one, too."""

    title: str
    views: tuple[TimelineView, ...]
    roles: tuple[tuple[Role, str], ...]  # with the word for each
    names: tuple[str, ...]
    chosen: int = 0  # the view that is shown first
    caption: str = ""

    def legend(self) -> tuple[tuple[Role, str], ...]:
        """The roles that occur, and idleness, which is what lies between the others."""
        used = {role for view in self.views for lane in view.lanes for role in set(lane.roles)}
        return tuple(item for i, item in enumerate(self.roles) if i in used or item[0] is Role.IDLE)


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
        keys: what each row is about, for a selection; empty where rows are about the whole.
    """

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    worst: int | None = None
    keys: tuple[Key, ...] = ()

    def shown(self, limit: int) -> tuple[tuple[tuple[Cell, ...], ...], str]:
        """At most ``limit`` rows, and a note that says which, empty when all are shown."""
        places, note = self.places(limit)
        return tuple(self.rows[i] for i in places), note

    def places(self, limit: int) -> tuple[Sequence[int], str]:
        """Which rows are shown, at most ``limit``, and the note about it."""
        total = len(self.rows)
        if total <= limit:
            return range(total), ""
        if self.worst is None:
            return range(limit), f"The first {limit} of {total:,} rows."
        key = self.worst
        order = sorted(range(total), key=lambda i: -_magnitude(self.rows[i][key]))[:limit]
        label = self.columns[key].label
        return sorted(order), f"{limit} of {total:,} rows: those with the highest {label}."


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
    "Answer | Text | FindingsTable | Bars | Heatmap | Lines | Whiskers | Timeline | Table"
    " | KeyValues | Copyable | Folded | Beside | Grid"
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
    place = None if worst is None else names.index(worst)
    return Table(title, columns, rows, caption, place, _keys(frame))


def _keys(frame: pd.DataFrame) -> tuple[Key, ...]:
    """Rank, step and axis of each row, as far as the frame has them."""
    present = {name: frame[name].tolist() for name in ("rank", "step", "axis") if name in frame}
    if not present:
        return ()
    rows = (dict(zip(present, row, strict=True)) for row in zip(*present.values(), strict=True))
    return tuple(
        Key(**{name: None if pd.isna(value) else value for name, value in row.items()})
        for row in rows
    )


def definitions(schemas: Sequence[Schema]) -> KeyValues:
    """The declared meaning of every column, once each."""
    meanings: dict[str, str] = {}
    for schema in schemas:
        for column in schema.columns:
            meanings.setdefault(column.name, column.description)
    return KeyValues("Columns, as in the JSON and CSV output", tuple(meanings.items()))


def _magnitude(value: Cell) -> float:
    return float("-inf") if pd.isna(value) else float(value)  # type: ignore[arg-type]
