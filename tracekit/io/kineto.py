"""Kineto trace bytes to :class:`~tracekit.io.events.Events`, in blocks.

A file is read about a megabyte at a time and cut at event boundaries, so the
document is never whole in memory and a bad byte costs one event, not the file.
The native tokenizer takes every block of plain events. Any other block is decoded
here as a JSON list of typed events; one that is not valid JSON is taken apart at
its event boundaries, and pieces that still fail are repaired where the damage is
known, else dropped. All of it is counted, with the byte offset of the first.
"""

from __future__ import annotations

import re
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tracekit.core.errors import InputError, NotATraceError
from tracekit.io import native as natives
from tracekit.io import preamble
from tracekit.io.blocks import BLANK, Block, BlockReader
from tracekit.io.events import Builder, ColumnBuilder, EventColumns, Events, pair
from tracekit.io.notes import Notes
from tracekit.io.pieces import Pieces
from tracekit.io.rows import SKIPPED_CATEGORY, RowMaker
from tracekit.io.tokens import BAD_JSON, decode_block, nanoseconds

__all__ = ["HEADER_LIMIT_BYTES", "nanoseconds", "native_available", "parse"]

HEADER_LIMIT_BYTES = 32 << 20
# Writers that wrote into one file: each ends the list once.
MOST_DOCUMENTS = 100

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENTS_KEY_REACH = 1 << 12  # bytes that a blank-padded key may straddle
# What only the beginning of an event looks like, also after the list's end.
_EVENT_START = re.compile(rb'\{\s*"ph"\s*:\s*"')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# A capture does not go on for that long after its last event begins.
_LATE_NS = 10_000_000_000
# Where times that are not zero begin, if a zero among them says nothing.
_CLOCK_NS = 1_000_000_000


def native_available() -> bool:
    """Whether the native tokenizer is used, or everything runs on the Python path."""
    return natives.available()


def parse(stream: BinaryIO, source: str, *, native: bool | None = None) -> Events:
    """Parse one trace from an open, decompressed byte stream.

    Args:
        stream: positioned at the start of the JSON document.
        source: what to call the file in messages.
        native: use the native tokenizer; by default where it was built. The result is
            the same.

    Raises:
        InputError: there is nothing in it, or it cannot be decompressed.
        NotATraceError: it is no trace (no event list in it).
    """
    if native is None:
        native = natives.available()
    return _Parser(stream, source, native).run()


class _Parser:
    """The state of one pass over one file."""

    def __init__(self, stream: BinaryIO, source: str, native: bool) -> None:
        self.source = source
        self.reader = BlockReader(stream)
        self.notes = Notes()
        self.args: dict[int, dict[str, Any]] = {}
        self.native = natives.builder() if native else None
        self.communication = None if self.native is None else natives.Communication(self.native)
        self.builder: Builder = ColumnBuilder() if self.native is None else self.native
        self.builder.code("")  # code 0: no name
        self.rows = RowMaker(self.builder, self.args, self.notes)
        self.pieces = Pieces(self.rows, self.notes)

    def run(self) -> Events:
        prefix = self._read_prefix()
        suffix = self._read_events()
        header = self._header(prefix, suffix)
        base = preamble.base_ns(header)
        if base is None:
            self.notes.count("bad-header", None, b"")
        if self.reader.damage is not None:
            self.notes.explain("cut-stream", self.reader.damage)
            self.notes.count("cut-stream")
        total = self.builder.events
        columns = self._columns()
        return Events(
            columns=columns,
            strings=self.builder.strings(),
            args=self.args,
            header=header,
            base_ns=base or 0,
            diagnostics=self.notes.diagnostics(),
            truncated=suffix is None,
            total=total,
        )

    # -- the document --------------------------------------------------------------

    def _read_prefix(self) -> bytes:
        """Reads up to the ``[`` of the event list; returns it and what comes before it."""
        reader = self.reader
        searched = 0
        while True:
            more = reader.fill()
            start = bytes(reader.data[reader.begin : min(reader.begin + 4096, reader.end)])
            start = start.removeprefix(_BYTE_ORDER_MARK).lstrip(BLANK)
            if start[:1] == b"[":
                reader.skip_to(reader.data.index(b"[", reader.begin) + 1)
                return b""
            if start and start[:1] != b"{":
                raise NotATraceError(
                    f"{self.source}: not a JSON trace (begins with {start[:12]!r})"
                )
            match = _EVENTS_KEY.search(reader.data, reader.begin + searched, reader.end)
            if match:
                prefix = bytes(reader.data[reader.begin : match.end()])
                reader.skip_to(match.end())
                return prefix
            size = reader.end - reader.begin
            if not more or size > HEADER_LIMIT_BYTES:
                raise self._no_events(is_empty=size == 0)
            searched = max(0, size - _EVENTS_KEY_REACH)

    def _no_events(self, is_empty: bool) -> InputError:
        """Why no event list was found before the file ended."""
        if self.reader.damage:
            return InputError(f"{self.source}: cannot be decompressed ({self.reader.damage})")
        if is_empty:
            return InputError(f"{self.source}: the file is empty")
        return NotATraceError(f"{self.source}: not a trace (it holds no traceEvents list)")

    def _read_events(self) -> bytes | None:
        """All events; returns what comes after their list, None when the file ends before."""
        for _ in range(MOST_DOCUMENTS):
            if not self._read_list():
                return None
            suffix = self._read_suffix()
            if suffix is not None:
                return suffix
        return b""

    def _read_list(self) -> bool:
        """Events up to the end of their list; False when the file ends before it does."""
        reader = self.reader
        carried = 0
        while True:
            block = reader.next_block(carried)
            if not block.is_event_list:
                example = bytes(reader.data[block.begin : block.begin + 80])
                self.notes.count("oversized", block.offset, example)
                reader.skip_to(block.end)
                carried = 0
                continue
            taken, ended = self._take(block)
            if ended:
                reader.skip_to(taken)
                return True
            if block.last:
                return False
            carried = 0 if taken >= block.end else block.next - taken
            reader.skip_to(block.next if taken >= block.end else taken)

    def _take(self, block: Block) -> tuple[int, bool]:
        """Adds the events of a block.

        Returns:
            The place up to which it was used, and whether the event list ends there.
        """
        data = self.reader.data
        if self.native is not None and self.communication is not None:
            end = self.native.take(data, block.begin, block.end, block.offset)
            if end != natives.NOT_PLAIN:
                self.args.update(
                    (row, found)
                    for row, found in self.communication.args(data, block.begin)
                    if found
                )
                return (block.end, False) if end == 0 else (block.begin + end, True)
        text = bytes(data[block.begin : block.end])
        try:
            events = decode_block(b"[" + text + b"]")
        except BAD_JSON:
            taken, ended = self.pieces.take(text, block.offset, block.last)
            return block.begin + taken, ended
        self.rows.add(events, text, block.offset)
        return block.end, False

    def _read_suffix(self) -> bytes | None:
        """The rest of the document; None when more events come after the list's end.

        Two processes that wrote into one file end its list in the middle.
        """
        reader = self.reader
        searched = 0
        while True:
            match = _EVENT_START.search(reader.data, reader.begin + searched, reader.end)
            if match:
                self.notes.count(
                    "interleaved",
                    reader.offset + match.start() - reader.begin,
                    bytes(reader.data[match.start() : match.start() + 60]),
                )
                reader.skip_to(match.start())
                return None
            size = reader.end - reader.begin
            if size > HEADER_LIMIT_BYTES or not reader.fill():
                return reader.text()
            searched = max(0, size - _EVENTS_KEY_REACH)

    # -- what the whole file tells ---------------------------------------------------

    def _header(self, prefix: bytes, suffix: bytes | None) -> dict[str, Any]:
        """All top-level keys but the events, from before and after them."""
        found: dict[str, Any] = {}
        if prefix:
            text = _EVENTS_KEY.sub(b'"traceEvents":[]', prefix) + b"}"
            found.update(self._header_part(text.removeprefix(_BYTE_ORDER_MARK), 0))
        if suffix is None:
            self.notes.count("cut-file", self.reader.offset + self.reader.end - self.reader.begin)
        else:
            tail = suffix.strip(BLANK)
            if tail.startswith(b","):
                found.update(self._header_part(b"{" + tail[1:], self.reader.offset))
            elif prefix and not tail.startswith(b"}"):
                self.notes.count("bad-header", self.reader.offset, tail)
        found.pop("traceEvents", None)
        return found

    def _header_part(self, text: bytes, offset: int) -> dict[str, Any]:
        found, is_whole = preamble.decode(text)
        if not is_whole:
            self.notes.count("bad-header", offset, text)
        return found

    def _columns(self) -> EventColumns:
        """The columns, begin and end events joined, odd times counted."""
        marks = self.builder.marks()
        columns = self.builder.build()
        if len(marks):
            paired = pair(columns, marks, self.builder.code(SKIPPED_CATEGORY))
            columns = paired.columns
            self.notes.count("unpaired", paired.first_lost, number=paired.lost)
            self._move_args(paired.rows)
        self._count_odd_times(columns["start_ns"], columns["duration_ns"])
        return EventColumns(**columns)

    def _move_args(self, rows: npt.NDArray[np.intp]) -> None:
        """Arguments to the new places of their rows, given the old row of each new one."""
        old = np.fromiter(self.args, dtype=np.int64, count=len(self.args))
        new = np.minimum(np.searchsorted(rows, old), max(0, len(rows) - 1))
        moved = {
            to: self.args[row]
            for row, to in zip(old.tolist(), new.tolist(), strict=True)
            if len(rows) and rows[to] == row
        }
        self.args.clear()
        self.args.update(moved)

    def _count_odd_times(self, start: Any, duration: Any) -> None:
        if len(start) == 0:
            return
        late = int(((start + duration) > int(start.max()) + _LATE_NS).sum())
        self.notes.count("long-duration", number=late)
        zeros = int((start == 0).sum())
        if zeros and float(np.median(start)) > _CLOCK_NS:
            self.notes.count("zero-time", number=zeros)
