"""Events of one trace file as columns: what a tokenizer makes and ``assemble`` reads.

Strings are dictionary-coded once per file. Arguments that only communication
needs are kept in a sparse side table instead of wide, mostly empty columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.core.run import Diagnostic
from tracekit.core.trace import Columns, Int32, Int64, column

MISSING = -1


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns(Columns):
    """Complete ("X") events in file order. Times are ns, relative to the file's base time."""

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


@dataclass(slots=True)
class ColumnBuilder:
    """Collects blocks of event columns; each block is a mapping of arrays by column name."""

    blocks: list[Mapping[str, npt.NDArray[Any]]] = field(default_factory=list)
    rows: int = 0

    def add(self, block: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append a block whose columns all have the same length."""
        self.blocks.append(block)
        self.rows += len(block["start_ns"])

    def build(self) -> EventColumns:
        """All blocks as one table."""
        import dataclasses

        made = {}
        for item in dataclasses.fields(EventColumns):
            dtype = item.metadata["dtype"]
            parts = [block[item.name].astype(dtype, copy=False) for block in self.blocks]
            made[item.name] = np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
        return EventColumns(**made)
