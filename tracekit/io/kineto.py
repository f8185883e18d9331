"""Kineto trace bytes to :class:`~tracekit.io.events.Events`, in blocks.

A file is read about a megabyte at a time and cut at event boundaries, so the
document is never whole in memory and a bad byte costs one event, not the file.
Each block is decoded as a JSON list of typed events. A block that is not valid
JSON is taken apart at its event boundaries; pieces that still fail are
repaired where the damage is known, else dropped. All of it is counted.

``ts`` and ``dur`` become int64 ns exactly: by integer arithmetic on the float's
parts where a float64 resolves a nanosecond, else from the decimal text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit.core.errors import InputError
from tracekit.core.run import Diagnostic, Severity
from tracekit.core.trace import Int64
from tracekit.io import repair
from tracekit.io.events import MISSING, ColumnBuilder, Events, StringTable
from tracekit.io.names import CPU_COMMUNICATION_OPERATOR

BLOCK_BYTES = 1 << 20
HEADER_LIMIT_BYTES = 64 << 20
EVENT_LIMIT_BYTES = 32 << 20

# Below this many microseconds a float64 still tells nanoseconds apart.
_EXACT_FLOAT_US = float(1 << 43)
# Times beyond this many microseconds (292 years) do not fit int64 ns.
_LARGEST_US = 9.2e15

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_ARRAY_END = re.compile(rb"\}\s*\]")
_BLANK = b" \t\r\n"
# The bulk of traces with stacks, and nothing here reads it.
_SKIPPED_CATEGORY = "python_function"

_Text = str | None
_Number = int | float | str | None


class _Args(msgspec.Struct, gc=False):
    """The arguments that become columns, or that say something of communication."""

    correlation: _Number = None
    external_id: _Number = msgspec.field(name="External id", default=None)
    external_id_2021: _Number = msgspec.field(name="external id", default=None)
    device: _Number = None
    stream: _Number = None
    collective: _Text = msgspec.field(name="Collective name", default=None)
    dtype: _Text = None
    in_elements: _Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: _Number = msgspec.field(name="Out msg nelems", default=None)
    group_size: _Number = msgspec.field(name="Group size", default=None)
    group_name: _Number = msgspec.field(name="Process Group Name", default=None)
    group_id: _Number = msgspec.field(name="Process Group ID", default=None)
    group_description: _Text = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    source_rank: _Number = msgspec.field(name="Src Rank", default=None)
    destination_rank: _Number = msgspec.field(name="Dst Rank", default=None)
    seq: _Number = msgspec.field(name="Seq", default=None)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default_factory=msgspec.Raw)
    input_type: msgspec.Raw = msgspec.field(name="Input type", default_factory=msgspec.Raw)


class _Event(msgspec.Struct, gc=False):
    ph: str = "X"
    cat: _Text = None
    name: str | int | float | None = None
    pid: _Number = None
    tid: _Number = None
    ts: _Number = None
    dur: _Number = None
    args: _Args | None = None


class _ExactTime(msgspec.Struct, gc=False):
    """A second look at a block whose times are too large for float64."""

    ph: str = "X"
    cat: _Text = None
    ts: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_COMMUNICATION_FIELDS = tuple(
    name
    for name in _Args.__struct_fields__
    if name
    not in {"correlation", "external_id", "external_id_2021", "device", "stream",
            "input_dims", "input_type"}
)  # fmt: skip

_decode_block = msgspec.json.Decoder(list[_Event]).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_exact = msgspec.json.Decoder(list[_ExactTime]).decode


def parse(stream: BinaryIO, source: str) -> Events:
    """Parse one trace from an open, decompressed byte stream.

    Args:
        stream: positioned at the start of the JSON document.
        source: what to call the file in messages.

    Raises:
        InputError: this is not a trace at all (no event list in it).
    """
    return _Parser(stream, source).run()


def nanoseconds(text: str) -> int | None:
    """Exact ns of a decimal number of microseconds; None when it is no finite number.

    >>> nanoseconds("1712195495505583.25")
    1712195495505583250
    """
    try:
        whole, _, fraction = text.partition(".")
        if len(fraction) <= 3:
            sign = -1 if whole.startswith("-") else 1
            return int(whole) * 1000 + sign * int((fraction or "0").ljust(3, "0"))
    except ValueError:
        pass
    try:
        value = Decimal(text) * 1000
        return int(value.to_integral_value())
    except (InvalidOperation, OverflowError, ValueError):
        return None


class _Parser:
    """The state of one pass over one file."""

    def __init__(self, stream: BinaryIO, source: str) -> None:
        self.stream = stream
        self.source = source
        self.strings = StringTable()
        self.builder = ColumnBuilder()
        self.args: dict[int, dict[str, Any]] = {}
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.offset = 0  # bytes of the document before the current block
        self.damaged_stream: str | None = None

    def run(self) -> Events:
        prefix, rest = self._read_prefix()
        suffix = self._read_events(rest)
        header = self._read_header(prefix, suffix)
        base = header.get("baseTimeNanoseconds")
        return Events(
            columns=self.builder.build(),
            strings=tuple(self.strings),
            args=self.args,
            header=header,
            base_ns=base if isinstance(base, int) else 0,
            diagnostics=self._diagnostics(),
            truncated=suffix is None,
        )

    # -- reading -----------------------------------------------------------------

    def _read(self) -> bytes:
        """The next block; empty at the end, and at a point where decompression fails."""
        if self.damaged_stream is not None:
            return b""
        try:
            return self.stream.read(BLOCK_BYTES)
        except (EOFError, OSError) as error:
            # A cut or corrupt .gz raises in the middle; what came before it is good.
            self.damaged_stream = str(error) or type(error).__name__
            return b""

    def _read_prefix(self) -> tuple[bytes, bytes]:
        """Bytes up to and including the ``[`` of the event list, and what was read past it."""
        data = b""
        while True:
            block = self._read()
            data += block
            start = data.lstrip(_BLANK + b"\xef\xbb\xbf")
            if start[:1] == b"[":
                return b"", start[1:]
            if start and start[:1] != b"{":
                raise InputError(f"{self.source}: not a JSON trace (begins with {start[:12]!r})")
            match = _EVENTS_KEY.search(data)
            if match:
                return data[: match.end()], data[match.end() :]
            if not block or len(data) > HEADER_LIMIT_BYTES:
                raise InputError(self._no_events_message(data))

    def _no_events_message(self, data: bytes) -> str:
        if self.damaged_stream:
            return f"{self.source}: cannot be decompressed ({self.damaged_stream})"
        if not data.strip(_BLANK):
            return f"{self.source}: the file is empty"
        return f'{self.source}: not a trace (it has no "traceEvents" list)'

    def _read_events(self, data: bytes) -> bytes | None:
        """Consume the event list; return what follows it, or None if the file ends inside."""
        data = data.lstrip(_BLANK)
        while True:
            if data[:1] == b"]":
                return data[1:] + self._read_all()
            cut = self._last_boundary(data)
            if cut is not None:
                end = self._take(data[: cut[0] + 1])
                if end is not None:
                    return data[end:] + self._read_all()
                self.offset += cut[1]
                data = data[cut[1] :]
            block = self._read()
            if not block:
                end = self._take(data, last=True)
                return None if end is None else data[end:]
            data += block
            if len(data) > EVENT_LIMIT_BYTES and self._last_boundary(data) is None:
                self._count("oversized", data[:80])
                data = b""

    def _read_all(self) -> bytes:
        """The rest of the file, as far as a header may reach."""
        parts, size = [], 0
        while size < HEADER_LIMIT_BYTES:
            block = self._read()
            if not block:
                break
            parts.append(block)
            size += len(block)
        return b"".join(parts)

    @staticmethod
    def _last_boundary(data: bytes) -> tuple[int, int] | None:
        """The last ``} , {``: index of the closing brace and of the opening one."""
        close = data.rfind(b"}")
        while close > 0:
            match = _BOUNDARY.match(data, close)
            if match:
                return close, match.end()
            close = data.rfind(b"}", 0, close)
        return None

    # -- events ------------------------------------------------------------------

    def _take(self, data: bytes, last: bool = False) -> int | None:
        """Add the events in ``data``.

        Returns:
            The index just after the list's ``]`` when the list ends in here, else None.
        """
        try:
            self._add(_decode_block(b"[" + data + b"]"), data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._take_pieces(data, last)
        return None

    def _take_pieces(self, data: bytes, last: bool) -> int | None:
        """Event by event: join pieces until one parses, repair or drop what does not."""
        good: list[_Event] = []
        texts: list[bytes] = []
        end: int | None = None
        pieces = list(_pieces(data))
        index = 0
        while index < len(pieces):
            for upto in range(index, min(index + 8, len(pieces))):
                piece = data[pieces[index][0] : pieces[upto][1]]
                event = _try_event(piece)
                if event is not None:
                    break
            else:
                upto = index
                piece = data[pieces[index][0] : pieces[index][1]]
                event, end, piece = self._damaged(piece, pieces[index][0], last)
            if event is not None:
                good.append(event)
                texts.append(piece)
            if end is not None:
                break
            index = upto + 1
        self._add(good, b",".join(texts))
        return end

    def _damaged(
        self, piece: bytes, start: int, last: bool
    ) -> tuple[_Event | None, int | None, bytes]:
        """An event that is no valid JSON: the end of the list, repairable, or lost."""
        for match in _ARRAY_END.finditer(piece):
            event = _try_event(piece[: match.start() + 1])
            if event is not None:
                return event, start + match.end(), piece[: match.start() + 1]
        if last and not piece.rstrip(_BLANK + b",").endswith(b"}"):
            if piece.strip(_BLANK + b","):
                self._count("cut-event", piece)
            return None, None, piece
        for kind, text in repair.candidates(piece):
            event = _try_event(text)
            if event is not None:
                self._count(kind, piece)
                return event, None, text
        self._count("lost-event", piece)
        return None, None, piece

    def _count(self, kind: str, piece: bytes) -> None:
        self.counts[kind] += 1
        self.examples.setdefault(kind, piece[:60].decode("utf-8", "replace"))

    def _add(self, events: list[_Event], text: bytes) -> None:
        """Add decoded events as one block of columns."""
        kept = []
        for event in events:
            if event.ph == "X" and event.cat != _SKIPPED_CATEGORY:
                kept.append(event)
        self.counts["events"] += len(events)
        if not kept:
            return
        start, valid_start = _times([event.ts for event in kept])
        if np.abs(start).max(initial=0) >= _EXACT_FLOAT_US * 1000:
            start, valid_start = self._exact_times(text)
        duration, valid_duration = _times([event.dur for event in kept])
        self._count_times(start, duration, valid_start, valid_duration)
        duration[duration < 0] = 0
        strings = self.strings
        no_args = _Args()
        args = [event.args or no_args for event in kept]
        first_row = self.builder.rows
        keep = valid_start
        block: dict[str, npt.NDArray[Any]] = {
            "start_ns": start,
            "duration_ns": duration,
            "category": np.array([strings[event.cat or ""] for event in kept], dtype=np.int32),
            "name": np.array([strings[_text(event.name)] for event in kept], dtype=np.int32),
            "pid": np.array([strings[_text(event.pid)] for event in kept], dtype=np.int32),
            "tid": np.array([strings[_text(event.tid)] for event in kept], dtype=np.int32),
            "correlation": _ids([item.correlation for item in args]),
            "external_id": _ids(
                [
                    item.external_id if item.external_id is not None else item.external_id_2021
                    for item in args
                ]
            ),
            "device": _ids([item.device for item in args]),
            "stream": _ids([item.stream for item in args]),
        }
        if not keep.all():
            block = {name: values[keep] for name, values in block.items()}
            kept = [event for event, use in zip(kept, keep, strict=True) if use]
        self.builder.add(block)
        for row, event in enumerate(kept, start=first_row):
            found = _communication_args(event)
            if found:
                self.args[row] = found

    def _exact_times(self, text: bytes) -> tuple[Int64, npt.NDArray[np.bool_]]:
        """Start times of the block's kept events from their decimal text."""
        raw = [
            bytes(event.ts).decode().strip('"')
            for event in _decode_exact(b"[" + text + b"]")
            if event.ph == "X" and event.cat != _SKIPPED_CATEGORY
        ]
        return _times_from_text(raw)

    def _count_times(
        self,
        start: Int64,
        duration: Int64,
        valid_start: npt.NDArray[np.bool_],
        valid_duration: npt.NDArray[np.bool_],
    ) -> None:
        self.counts["no-time"] += int((~valid_start).sum())
        self.counts["no-duration"] += int((~valid_duration & valid_start).sum())
        self.counts["negative-duration"] += int((duration < 0).sum())

    # -- header and diagnostics --------------------------------------------------

    def _read_header(self, prefix: bytes, suffix: bytes | None) -> dict[str, Any]:
        """All top-level keys but the events, from before and after them."""
        header: dict[str, Any] = {}
        texts = [_EVENTS_KEY.sub(b'"traceEvents":[]', prefix) + b"}"] if prefix else []
        if suffix is not None:
            tail = suffix.strip(_BLANK)
            if tail not in {b"", b"}"}:
                texts.append(b"{" + tail.removeprefix(b","))
        elif prefix:
            self.counts["cut-file"] += 1
        for text in texts:
            found = repair.decode_object(text)
            if found is None:
                self._count("bad-header", text)
            else:
                header.update(found)
        header.pop("traceEvents", None)
        return header

    def _diagnostics(self) -> tuple[Diagnostic, ...]:
        if self.damaged_stream:
            self.counts["cut-stream"] = 1
        made = []
        for kind, (severity, text) in _MESSAGES.items():
            count = self.counts[kind]
            if count:
                example = self.examples.get(kind)
                shown = f" (first: {example!r})" if example else ""
                made.append(Diagnostic(kind, severity, None, count, text + shown))
        return tuple(made)


_MESSAGES = {
    "cut-file": (Severity.WARNING, "the file ends inside its event list; events before are kept"),
    "cut-stream": (Severity.WARNING, "the compressed data ends early; events before are kept"),
    "cut-event": (Severity.WARNING, "an event is cut off by the end of the file"),
    "lost-event": (Severity.WARNING, "events are not valid JSON and could not be repaired"),
    "oversized": (Severity.WARNING, f"over {EVENT_LIMIT_BYTES >> 20} MiB without an event were skipped"),
    "bad-header": (Severity.WARNING, "a part of the header is not valid JSON and was ignored"),
    "raw-quote": (Severity.INFO, "names with unescaped quotes were repaired"),
    "raw-bytes": (Severity.INFO, "control bytes, backslashes or bad UTF-8 were repaired"),
    "bare-word": (Severity.INFO, "bare NaN, Infinity or N/A values were read as null"),
    "odd-type": (Severity.INFO, "arguments of an unexpected type were ignored"),
    "no-time": (Severity.WARNING, "events without a usable ts were dropped"),
    "no-duration": (Severity.INFO, "events without a usable dur count as instantaneous"),
    "negative-duration": (Severity.WARNING, "negative durations were set to zero"),
}  # fmt: skip


def _pieces(data: bytes) -> Iterator[tuple[int, int]]:
    """Spans of ``data`` between places that look like event boundaries."""
    start = 0
    for match in _BOUNDARY.finditer(data):
        yield start, match.start() + 1
        start = match.end()
    yield start, len(data)


def _try_event(piece: bytes) -> _Event | None:
    try:
        return _decode_event(piece)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _text(value: str | int | float | None) -> str:
    return value if type(value) is str else "" if value is None else str(value)


def _ids(values: list[_Number]) -> Int64:
    """Ids as int64; anything that is no integer in range becomes -1."""
    try:
        return np.array([MISSING if value is None else value for value in values], dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([_id(value) for value in values], dtype=np.int64)


def _id(value: _Number) -> int:
    try:
        number = int(value) if value is not None else MISSING
    except (ValueError, OverflowError):
        return MISSING
    return number if -(1 << 63) <= number < 1 << 63 else MISSING


def _times(values: list[_Number]) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Microseconds to ns, and which are usable; exact below 2**43 us."""
    try:
        us = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    except (ValueError, OverflowError):
        return _times_from_text([_text(value) for value in values])
    valid = np.abs(us) < _LARGEST_US  # False for NaN
    us = np.where(valid, us, 0.0)
    whole = np.floor(us)
    return (
        whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64),
        valid,
    )


def _times_from_text(texts: list[str]) -> tuple[Int64, npt.NDArray[np.bool_]]:
    found = [nanoseconds(text) for text in texts]
    valid = np.array([value is not None and abs(value) < _LARGEST_US * 1000 for value in found])
    return (
        np.array([value if use else 0 for value, use in zip(found, valid, strict=True)],
                 dtype=np.int64),
        valid.astype(np.bool_),
    )  # fmt: skip


def _communication_args(event: _Event) -> dict[str, Any]:
    """The side-table entry of an event, empty for the many that are not communication."""
    args = event.args
    if args is None:
        return {}
    if args.collective is not None:
        return {
            name: value
            for name in _COMMUNICATION_FIELDS
            if (value := getattr(args, name)) is not None
        }
    name = event.name
    if args.input_dims and isinstance(name, str) and CPU_COMMUNICATION_OPERATOR.match(name):
        found: dict[str, Any] = {"input_dims": msgspec.json.decode(args.input_dims)}
        if args.input_type:
            found["input_type"] = msgspec.json.decode(args.input_type)
        return found
    return {}
