"""Calls of several ranks as one table, and which of them are one instance: matching's own types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.collective import Match
from tracekit.core.trace import Int64


@dataclass(frozen=True, slots=True, eq=False)
class CallRows:
    """Grouped calls of one rank, or of one group over its ranks, in order of time."""

    trace: Int64  # index of the rank's trace
    call: Int64
    start_ns: Int64
    end_ns: Int64
    group: Int64
    op: Int64
    dtype: Int64
    size: Int64
    kind: Int64  # fingerprint: operation, dtype and, where members must agree, size
    seq: Int64
    step: Int64
    peer: Int64
    carried: Int64  # transfers of its kernel

    def __len__(self) -> int:
        return len(self.trace)

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> CallRows:
        return CallRows(*(getattr(self, name)[rows] for name in self.__slots__))


class Found(NamedTuple):
    """Instances of one group: an instance number per call, -1 for none."""

    instance: Int64
    match: Match
    refusals: tuple[tuple[int, str], ...] = ()
    margin: float | None = None


def joined(parts: Sequence[CallRows]) -> CallRows:
    """Several tables one after the other."""
    if not parts:
        return CallRows(*(np.empty(0, dtype=np.int64) for _ in CallRows.__slots__))
    return CallRows(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in CallRows.__slots__)
    )


def by_key(key: Int64, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Rows of each key, in their order."""
    rows = np.flatnonzero(wanted)
    order = rows[np.argsort(key[rows], kind="stable")]
    if not len(order):
        return
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    for part in np.split(order, cuts):
        yield int(key[part[0]]), part


def nothing(calls: CallRows) -> Found:
    """No instance at all."""
    return Found(np.full(len(calls), -1, dtype=np.int64), Match.SEQ)


def from_first(instance: Int64, end_ns: Int64) -> Int64:
    """End of each row minus the end of its instance's first row."""
    size = int(instance.max()) + 1
    first = np.full(size, -1, dtype=np.int64)
    # The first row of an instance is the last one written in reverse order.
    first[instance[::-1]] = np.arange(len(instance))[::-1]
    out: Int64 = end_ns - end_ns[first[instance]]
    return out
