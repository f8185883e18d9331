"""Typed events, as msgspec decodes them, and the exact values of their fields.

``ts`` and ``dur`` become int64 ns exactly: by integer arithmetic on the float's
parts where a float64 resolves a nanosecond, else from the decimal text.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit.core.trace import Int64
from tracekit.io.events import LONGEST_NAME, MISSING
from tracekit.io.names import CPU_COMMUNICATION_OPERATOR, VALUED_OPERATORS

# Below this many microseconds a float64 still tells nanoseconds apart.
EXACT_US = 1 << 43
# Times at or beyond it (146 years) would overflow int64 ns once a base time is added.
LARGEST_TIME_US = 4_600_000_000_000_000
# Nothing that a trace records lasts a day; a counter that wrapped around claims to.
LONGEST_DURATION_US = 86_400_000_000

# Of a launch, as the native tokenizer has it.
LARGEST_EXTENT = 0x7FFFFFFF
LONGEST_EXTENTS_BYTES = 1 << 10

# Lists of ranks or shapes that are longer are not read.
LONGEST_LIST_BYTES = 1 << 16

Bool = npt.NDArray[np.bool_]
Text = str | None
Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The arguments that become columns, or that say something of communication."""

    correlation: Number = None
    external_id: Number = msgspec.field(name="External id", default=None)
    external_id_2021: Number = msgspec.field(name="external id", default=None)
    device: Number = None
    stream: Number = None
    grid: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    block: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    collective: Text = msgspec.field(name="Collective name", default=None)
    dtype: Text = None
    in_elements: Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: Number = msgspec.field(name="Out msg nelems", default=None)
    group_size: Number = msgspec.field(name="Group size", default=None)
    group_name: Number = msgspec.field(name="Process Group Name", default=None)
    group_id: Number = msgspec.field(name="Process Group ID", default=None)
    group_description: Text = msgspec.field(name="Process Group Description", default=None)
    source_rank: Number = msgspec.field(name="Src Rank", default=None)
    destination_rank: Number = msgspec.field(name="Dst Rank", default=None)
    rank: Number = msgspec.field(name="Rank", default=None)
    seq: Number = msgspec.field(name="Seq", default=None)
    group_ranks: msgspec.Raw = msgspec.field(
        name="Process Group Ranks", default_factory=msgspec.Raw
    )
    in_split: msgspec.Raw = msgspec.field(name="In split size", default_factory=msgspec.Raw)
    out_split: msgspec.Raw = msgspec.field(name="Out split size", default_factory=msgspec.Raw)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default_factory=msgspec.Raw)
    input_type: msgspec.Raw = msgspec.field(name="Input type", default_factory=msgspec.Raw)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default_factory=msgspec.Raw)


class Event(msgspec.Struct, gc=False):
    """One event of any kind."""

    ph: str = "X"
    cat: Text = None
    name: str | int | float | None = None
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = None
    args: Args | None = None


class _ExactTime(msgspec.Struct, gc=False):
    """A second look at events whose times are too large for float64."""

    ts: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


NO_ARGS = Args()
# A document nested too deeply is one more way not to be a trace.
BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

decode_block = msgspec.json.Decoder(list[Event]).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_args = msgspec.json.Decoder(Args).decode
decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_exact = msgspec.json.Decoder(list[_ExactTime]).decode

_COMMUNICATION_FIELDS = tuple(
    name
    for name in Args.__struct_fields__
    if name
    not in {"correlation", "external_id", "external_id_2021", "device", "stream", "grid", "block",
            "group_ranks", "in_split", "out_split", "input_dims", "input_type", "concrete"}
)  # fmt: skip


def lenient(piece: bytes | memoryview) -> Event | None:
    """An event that is valid JSON, with null for every value of an unexpected type."""
    try:
        found = msgspec.json.decode(piece)
    except BAD_JSON:
        return None
    if not isinstance(found, dict):
        return None
    args = found.pop("args", None)
    event: Event = _lenient_fields(found, Event)
    if isinstance(args, dict):
        event.args = _lenient_fields(args, Args)
    return event


def _lenient_fields(found: dict[str, Any], kind: type[Any]) -> Any:
    values = {}
    for item in msgspec.structs.fields(kind):
        value = found.get(item.encode_name)
        if value is not None and item.type is not msgspec.Raw:
            try:
                values[item.name] = msgspec.convert(value, item.type)
            except (msgspec.ValidationError, RecursionError):
                continue
    return kind(**values)


# -- numbers -----------------------------------------------------------------------


class Times(NamedTuple):
    """Microseconds as ns.

    Attributes:
        ns: (n,) int64; 0 where the value is not inside its limit.
        known: (n,) there is a number at all.
        inside: (n,) its size is below the limit.
        negative: (n,) it is below zero.
    """

    ns: Int64
    known: Bool
    inside: Bool
    negative: Bool


def times(values: list[Number], limit_us: int) -> Times:
    """Microseconds to ns; exact below ``EXACT_US``."""
    us = np.array([math.nan if value is None else value for value in values])
    if us.dtype not in (np.float64, np.int64):
        us = np.array([_float(value) for value in values])
    us = us.astype(np.float64, copy=False)
    known = ~np.isnan(us)
    inside = np.abs(us) < limit_us  # False for NaN
    usable = np.where(inside, us, 0.0)
    whole = np.floor(usable)
    ns = whole.astype(np.int64) * 1000 + np.rint((usable - whole) * 1000).astype(np.int64)
    return Times(ns, known, inside, (ns < 0) | (us <= -limit_us))


def exact_times(text: bytes, indexes: list[int]) -> list[int]:
    """Start times in ns of the events at these places of a block, from their decimal text."""
    events = _decode_exact(b"[" + text + b"]")
    found = []
    for index in indexes:
        ns = nanoseconds(bytes(events[index].ts).decode().strip('"'))
        found.append(0 if ns is None else ns)
    return found


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
        # Nothing near 10**30 ns is a time, and writing one out takes for ever.
        return int(value.to_integral_value()) if value.adjusted() < 30 else None
    except (ArithmeticError, ValueError):
        return None


def ids(values: list[Number]) -> Int64:
    """Ids as int64; anything that is no integer in range becomes -1."""
    found = np.array([MISSING if value is None else value for value in values])
    if found.dtype != np.int64:
        found = np.array([_id(value) for value in values], dtype=np.int64)
    return found


def label(value: Number) -> str:
    """A value that stands for a name, as text."""
    if type(value) is str:
        return value
    try:
        return "" if value is None else str(value)
    except ValueError:  # an integer of thousands of digits
        return ""


def _float(value: Number) -> float:
    try:
        return math.nan if value is None else float(value)
    except ValueError:
        return math.nan
    except OverflowError:
        return math.inf


def _id(value: Number) -> int:
    try:
        number = int(value) if value is not None else MISSING
    except (ValueError, OverflowError):
        return MISSING
    return number if -(1 << 63) <= number < 1 << 63 else MISSING


def shape(args: Args) -> str:
    """Grid and block of a launch, "8x1x1 / 128x1x1"; empty unless both are what they should be."""
    if not args.grid or not args.block:
        return ""
    grid, block = _extents(bytes(args.grid)), _extents(bytes(args.block))
    return f"{grid} / {block}" if grid and block else ""


@lru_cache(maxsize=4096)  # a file has few shapes and many kernels
def _extents(raw: bytes) -> str:
    if len(raw) > LONGEST_EXTENTS_BYTES:
        return ""
    try:
        found = msgspec.json.decode(raw, type=list[int])
    except BAD_JSON:
        return ""
    if not 1 <= len(found) <= 3 or not all(0 <= value <= LARGEST_EXTENT for value in found):
        return ""
    return "x".join(map(str, found))


# -- communication -----------------------------------------------------------------


def communication_args(args: Args, name: str) -> dict[str, Any]:
    """The side-table entry of an event, empty for the many that are not communication.

    Raises:
        msgspec.DecodeError: the ranks or shapes are not what they should be.
    """
    if args.collective is not None:
        found = {
            field: _bounded(value)
            for field in _COMMUNICATION_FIELDS
            if (value := getattr(args, field)) is not None
        }
        for field in ("group_ranks", "in_split", "out_split"):
            if raw := getattr(args, field):
                found[field] = _list(raw)
        return found
    if args.input_dims and CPU_COMMUNICATION_OPERATOR.match(name):
        found = {"input_dims": _list(args.input_dims)}
        if args.input_type:
            found["input_type"] = _list(args.input_type)
        if args.concrete and name in VALUED_OPERATORS:
            found["concrete"] = _list(args.concrete)
        return found
    return {}


def _list(raw: msgspec.Raw) -> Any:
    text = bytes(raw)
    if len(text) > LONGEST_LIST_BYTES:
        raise msgspec.DecodeError("too long")
    return msgspec.json.decode(text)


def _bounded(value: Any) -> Any:
    return value[:LONGEST_NAME] if isinstance(value, str) else value
