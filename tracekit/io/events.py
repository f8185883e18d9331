"""Events of one trace file as columns: what a tokenizer makes and ``assemble`` reads.

Strings are dictionary-coded once per file. Arguments that only communication
needs are kept in a sparse side table instead of wide, mostly empty columns.
"""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tracekit.core.run import Diagnostic
from tracekit.core.trace import Columns, Int32, Int64, column

MISSING = -1

# What one file may hold in strings, however hostile: longer names are cut, further ones
# lose their text. Real traces stay a hundred times below.
LONGEST_NAME = 8192
MOST_STRINGS = 1 << 20
MOST_STRING_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns(Columns):
    """Complete events in file order, python_function left out.

    Times are ns, relative to the file's base time. A begin event and its end are one row.
    """

    start_ns: Int64 = column(np.int64)
    duration_ns: Int64 = column(np.int64)
    category: Int32 = column(np.int32)  # codes into Events.strings
    name: Int32 = column(np.int32)
    pid: Int32 = column(np.int32)
    tid: Int32 = column(np.int32)
    correlation: Int64 = column(np.int64)
    external_id: Int64 = column(np.int64)
    device: Int64 = column(np.int64)
    stream: Int64 = column(np.int64)
    shape: Int32 = column(np.int32)  # grid and block of a launch, -1 where not recorded


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """One parsed trace file."""

    columns: EventColumns
    strings: tuple[str, ...]
    args: Mapping[int, Mapping[str, Any]]  # row -> communication arguments
    header: Mapping[str, Any]
    base_ns: int
    diagnostics: tuple[Diagnostic, ...]
    truncated: bool  # the file ends before its event list does
    total: int = 0  # events of every kind in the file

    def codes(self, strings: Iterable[str]) -> list[int]:
        """Codes of those of the strings that occur in this file."""
        wanted = set(strings)
        return [code for code, text in enumerate(self.strings) if text in wanted]

    def rows(self, categories: Iterable[str]) -> npt.NDArray[np.intp]:
        """Rows of the events of these categories, in file order."""
        codes = np.array(self.codes(categories), dtype=np.int32)
        return np.flatnonzero(np.isin(self.columns.category, codes))


class StringTable(dict[str, int]):
    """Gives every new string the next code on first look-up."""

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self)
        return code


Block = Mapping[str, npt.NDArray[Any]]


class Builder(Protocol):
    """Collects the rows of a file; the native tokenizer has one of its own."""

    @property
    def rows(self) -> int:
        """Rows so far."""

    @property
    def events(self) -> int:
        """Events so far, of every kind."""

    def code(self, text: str, /) -> int:
        """The code of a string; -1 when it is new and the table is full."""

    def append(self, block: Block, events: int, /) -> None:
        """Append a block of columns of equal length, made from so many events."""

    def mark(self, row: int, offset: int, is_end: bool, /) -> None:
        """Note that a row, found at this byte of the file, is a begin or an end event."""

    def marks(self) -> Int64:
        """(n, 3) row, offset and 1 for an end, of all that was marked, in order."""

    def strings(self) -> tuple[str, ...]:
        """The strings by code."""

    def build(self) -> dict[str, npt.NDArray[Any]]:
        """All rows, by column. The builder is empty afterwards."""


class ColumnBuilder:
    """The builder of the Python path."""

    def __init__(self) -> None:
        self.rows = 0
        self.events = 0
        self._blocks: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _DTYPES}
        self._codes: dict[str, int] = {}
        self._string_bytes = 0
        self._marks = array.array("q")

    def code(self, text: str) -> int:
        """The code of a string; -1 when it is new and the table is full."""
        code = self._codes.get(text)
        if code is not None:
            return code
        size = len(text.encode())
        if len(self._codes) >= MOST_STRINGS or size > MOST_STRING_BYTES - self._string_bytes:
            return MISSING
        self._string_bytes += size
        code = self._codes[text] = len(self._codes)
        return code

    def append(self, block: Block, events: int) -> None:
        """Append a block of columns of equal length, made from so many events."""
        for name, dtype in _DTYPES.items():
            self._blocks[name].append(block[name].astype(dtype, copy=False))
        self.rows += len(block["start_ns"])
        self.events += events

    def mark(self, row: int, offset: int, is_end: bool) -> None:
        """Note that a row, found at this byte of the file, is a begin or an end event."""
        self._marks.extend((row, offset, is_end))

    def marks(self) -> Int64:
        """(n, 3) row, offset and 1 for an end, of all that was marked, in order."""
        return np.array(self._marks, dtype=np.int64).reshape(-1, 3)

    def strings(self) -> tuple[str, ...]:
        """The strings by code."""
        return tuple(self._codes)

    def build(self) -> dict[str, npt.NDArray[Any]]:
        """All rows, by column; each column's blocks are let go as it is made."""
        made = {}
        for name, dtype in _DTYPES.items():
            parts = self._blocks.pop(name)
            made[name] = np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
        return made


_DTYPES: dict[str, np.dtype[Any]] = {
    item.name: item.metadata["dtype"] for item in dataclasses.fields(EventColumns)
}


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """Columns in which begin and end events have become complete ones.

    Attributes:
        columns: the rows that are left.
        rows: (rows,) old row of each row that is left, ascending.
        lost: how many begin or end events found no partner.
        first_lost: the byte of the file at which the first of them stands.
    """

    columns: dict[str, npt.NDArray[Any]]
    rows: npt.NDArray[np.intp]
    lost: int
    first_lost: int


def pair(columns: dict[str, npt.NDArray[Any]], marks: Int64, skipped: int | None) -> Paired:
    """Join begin and end events, which nest on each thread.

    A begin row gets its duration, its end row is dropped, and so is either without the other.

    Args:
        columns: all rows.
        marks: (n, 3) as a builder gives them.
        skipped: the category whose begin events are dropped too.
    """
    start = columns["start_ns"]
    rows = marks[:, 0]
    thread = columns["pid"][rows].astype(np.int64) << 32 | columns["tid"][rows]
    # In order of time on each thread; what is equal stays in file order.
    order = np.lexsort((start[rows], thread))
    begin, end = _partners(thread[order], marks[order, 2] == 1)
    begin, end = rows[order[begin]], rows[order[end]]
    keep = np.ones(len(start), dtype=np.bool_)
    keep[rows] = False
    keep[begin] = True
    alone = keep.copy()
    alone[end] = True
    lost = np.flatnonzero(~alone[rows])
    if skipped is not None:
        keep[begin[columns["category"][begin] == skipped]] = False
    duration = columns["duration_ns"].copy()
    duration[begin] = start[end] - start[begin]
    left = np.flatnonzero(keep)
    kept = {name: values[left] for name, values in columns.items()}
    first = int(marks[lost, 1].min()) if len(lost) else 0
    return Paired({**kept, "duration_ns": duration[left]}, left, len(lost), first)


def _partners(
    thread: Int64, is_end: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Places of begins, and of their ends, in a sequence grouped by thread."""
    place = np.arange(len(thread))
    # An end below every depth before it on its thread has nothing to end.
    depth = _depth(thread, is_end)
    first = np.concatenate(([True], thread[1:] != thread[:-1]))[: len(thread)]
    group = np.cumsum(first) - 1
    lowest = _running_minimum(depth, group)
    useless = is_end & (depth < 0) & (depth == lowest)
    before = np.concatenate(([0], lowest[:-1]))[: len(lowest)]
    useless &= first | (depth < before)
    place = place[~useless]
    thread, is_end = thread[~useless], is_end[~useless]
    level = _depth(thread, is_end) + is_end
    # On one level begins and ends alternate; only the last begin may stay open.
    order = np.lexsort((place, level, thread))
    thread, level, is_end, place = thread[order], level[order], is_end[order], place[order]
    matched = ~is_end[:-1] & is_end[1:] & (thread[:-1] == thread[1:]) & (level[:-1] == level[1:])
    return place[:-1][matched], place[1:][matched]


def _depth(thread: Int64, is_end: npt.NDArray[np.bool_]) -> Int64:
    """Open begins after each event, counted from 0 on each thread."""
    step = np.where(is_end, -1, 1)
    total = np.cumsum(step)
    first = np.flatnonzero(np.concatenate(([True], thread[1:] != thread[:-1]))[: len(thread)])
    base = np.repeat(total[first] - step[first], np.diff(np.append(first, len(thread))))
    depth: Int64 = total - base
    return depth


def _running_minimum(depth: Int64, group: Int64) -> Int64:
    """The least depth so far, within each group of consecutive places."""
    # Shifting every group below the one before it keeps the minima apart.
    span = int(depth.max(initial=0)) - int(depth.min(initial=0)) + 1
    shifted = depth - group * span
    lowest: Int64 = np.minimum.accumulate(shifted) + group * span
    return lowest
