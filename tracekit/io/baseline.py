"""The link's baseline: how long each collective takes alone, with the conditions of measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tracekit.core.errors import InputError

SCHEMA = "tracekit.bench/1"
FILE_NAME = "bench.json"  # in a run folder
_HEAD_BYTES = 256


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """One operation at one message size in one group; of each iteration the slowest rank counts.

    ``bytes`` is the message as nccl-tests counts it: the input of all_reduce, reduce_scatter,
    all_to_all, broadcast and send_recv, the output of all_gather. Percentiles that so few
    iterations cannot give are null.
    """

    op: str
    backend: str
    dtype: str
    group_size: int
    ranks: list[int]
    bytes: int
    in_bytes: int
    out_bytes: int
    n: int
    min_ns: int
    p50_ns: int
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int
    algbw_gbps: float  # 1e9 bytes per second, at the median
    busbw_gbps: float
    crowded: bool  # more ranks than cores: times hold scheduling


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """All that one ``tracekit bench`` measured."""

    schema: str = SCHEMA
    conditions: dict[str, Any] = {}
    rows: list[Latency] = []


def is_baseline(path: Path) -> bool:
    """Whether a file says of itself that it is one."""
    try:
        with path.open("rb") as file:
            return b'"tracekit.bench/' in file.read(_HEAD_BYTES)
    except OSError:
        return False


def write(path: Path, baseline: Baseline) -> None:
    """Write beside itself, then rename: never half-written."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(baseline), indent=2) + b"\n")
    partial.replace(path)


def read(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        InputError: it cannot be read, or is none.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a baseline of tracekit bench ({error})") from error
    if found.schema != SCHEMA:
        raise InputError(f"{path}: schema {found.schema!r} is not {SCHEMA!r}; update tracekit")
    return found
