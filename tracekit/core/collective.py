"""Collectives across ranks: which calls of different ranks are one operation.

A call is one rank's part in a collective or a transfer between two ranks; an
*instance* is the operation all its members take part in. Times stay on each
rank's own clock here; :mod:`tracekit.core.timing` brings them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.core.topology import Group
from tracekit.core.trace import Columns, Int32, Int64, UInt8, column

# Every member must have arrived before any may leave.
SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
# One member's data goes to all, so none leaves before that one arrived; and the reverse.
FROM_ROOT = frozenset({"broadcast", "scatter"})
TO_ROOT = frozenset({"reduce", "gather"})
# Point-to-point operations; "send_recv" is one whose direction is not recorded.
P2P = frozenset({"send", "recv", "send_recv"})
P2P_OP = "p2p"  # what a matched send and recv are called together


class Match(IntEnum):
    """What two calls of different ranks were joined on."""

    SEQ = 0  # the group's own sequence number
    STEP = 1  # their order inside a step both ranks mark
    VOTE = 2  # the offset most pairs of equal calls agree on, then nearest in time


@dataclass(frozen=True, slots=True, eq=False)
class Instances(Columns):
    """One operation of a group each, in order of group, then of time."""

    group: Int32 = column(np.int32)  # index into Matching.groups
    op: Int32 = column(np.int32)  # index into Matching.names
    dtype: Int32 = column(np.int32)  # index into Matching.names, -1 when not recorded
    bytes: Int64 = column(np.int64)  # of the larger side, -1 when not recorded
    seq: Int64 = column(np.int64)  # the group's number, else the place in the order of matching
    step: Int64 = column(np.int64)  # step number, -1 outside steps
    match: UInt8 = column(np.uint8)
    members: Int32 = column(np.int32)  # ranks that should take part
    least_bytes: Int64 = column(np.int64)  # what the member with least moves


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Columns):
    """One member of one instance each, in order of instance, then of rank."""

    instance: Int32 = column(np.int32)  # index into Instances
    trace: Int32 = column(np.int32)  # index into Run.traces
    call: Int32 = column(np.int32)  # row in that trace's Calls
    start_ns: Int64 = column(np.int64)  # on the rank's own clock
    end_ns: Int64 = column(np.int64)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Calls that could not be matched, and why."""

    group: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """All calls of a run that could be joined across ranks.

    Attributes:
        groups: process groups across ranks, and one per pair of ranks that exchange p2p.
        names: operations and dtypes by the codes of ``instances``.
        refusals: what stays unmatched.
        margin: least ratio of the best to the second-best offset of a vote; None without one.
    """

    groups: tuple[Group, ...]
    names: tuple[str, ...]
    instances: Instances
    rows: Rows
    refusals: tuple[Refusal, ...]
    margin: float | None

    def ops(self) -> npt.NDArray[np.object_]:
        """(instances,) operation of each instance."""
        return np.array((*self.names, ""), dtype=object)[self.instances.op]

    def per_row(self, per_call: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """(rows,) of columns that have a value for each call of each trace."""
        if len(self.rows) == 0:
            return np.empty(0, dtype=np.bool_)
        first = np.cumsum([0, *map(len, per_call)])
        return np.concatenate(per_call)[first[self.rows.trace] + self.rows.call]

    def present(self) -> Int64:
        """(instances,) members that are loaded and matched."""
        return np.bincount(self.rows.instance, minlength=len(self.instances)).astype(np.int64)

    def complete(self) -> npt.NDArray[np.bool_]:
        """(instances,) whether every member is here."""
        return self.present() >= self.instances.members

    def synchronising(self) -> npt.NDArray[np.bool_]:
        """(instances,) whether the operation makes every member wait for every other."""
        wanted = np.array([name in SYNCHRONISING for name in (*self.names, "")], dtype=np.bool_)
        return wanted[self.instances.op]

    def even(self) -> npt.NDArray[np.bool_]:
        """(instances,) whether all members move equally many bytes."""
        out: npt.NDArray[np.bool_] = self.instances.least_bytes == self.instances.bytes
        return out

    def p2p(self) -> npt.NDArray[np.bool_]:
        """(instances,) whether the instance is one send and its recv."""
        wanted = np.array([name == P2P_OP for name in (*self.names, "")], dtype=np.bool_)
        return wanted[self.instances.op]


def bus_factor(op: str, size: int) -> float:
    """busbw ÷ algbw of an operation over ``size`` ranks.

    Source: nccl-tests, doc/PERFORMANCE.md. Bytes are those of the larger side: the
    output of an all_gather, the input of a reduce_scatter.
    """
    if op == "all_reduce":
        return 2 * (size - 1) / size
    if op in {"all_gather", "reduce_scatter", "all_to_all"}:
        return (size - 1) / size
    return 1.0
