"""What one rank did: typed, read-only columns on one clock, in int64 nanoseconds.

``io`` is the only producer. Id columns use -1 for "not known".
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.core.topology import Group

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Int16 = npt.NDArray[np.int16]
UInt8 = npt.NDArray[np.uint8]
Float64 = npt.NDArray[np.float64]


def column(dtype: npt.DTypeLike) -> Any:
    """A dataclass field that holds one column of this dtype."""
    return field(metadata={"dtype": np.dtype(dtype)})


class Columns:
    """Mixin of the column tables: checks dtype and length once, then freezes the arrays."""

    __slots__ = ()

    def __post_init__(self) -> None:
        lengths = set()
        for item in fields(self):  # type: ignore[arg-type]
            values = np.asarray(getattr(self, item.name))
            assert values.dtype == item.metadata["dtype"], (
                f"{type(self).__name__}.{item.name} is {values.dtype}, not {item.metadata['dtype']}"
            )
            values.flags.writeable = False
            lengths.add(len(values))
        assert len(lengths) == 1, f"columns of {type(self).__name__} differ in length: {lengths}"

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]


class KernelKind(IntEnum):
    """What a piece of device work is for."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2


class StepFlag(IntEnum):
    """Whether a step may be used in statistics."""

    OK = 0
    FIRST = 1  # the first captured step of a cycle: it pays for starting the profiler
    CUT = 2  # the capture window begins or ends inside it


class Phase(IntEnum):
    """What a span of the host's program is."""

    FORWARD = 0  # one microbatch through one stage, without waiting for its input
    BACKWARD = 1  # gradients of input and weights together
    INPUT = 2  # gradient of the stage's input alone
    WEIGHT = 3  # gradient of its weights alone
    LOSS = 4  # the last stage's loss of one microbatch
    REDUCE = 5  # scaling or reducing a stage's gradients, after its last backward
    RECV = 6  # the host waits for a receive
    SEND = 7  # the host waits for a send
    DATA = 8  # the next batch is fetched
    GC = 9  # Python collects garbage
    SYNC = 10  # the host waits for the device


@dataclass(frozen=True, slots=True, eq=False)
class Kernels(Columns):
    """Device work. On a CPU-only trace: leaf operators and the backend's transfers."""

    start_ns: Int64 = column(np.int64)
    end_ns: Int64 = column(np.int64)
    device: Int16 = column(np.int16)
    stream: Int32 = column(np.int32)
    kind: UInt8 = column(np.uint8)
    name_id: Int32 = column(np.int32)
    correlation: Int64 = column(np.int64)
    step: Int32 = column(np.int32)  # index into Steps
    launch_ns: Int64 = column(np.int64)  # when the host began to launch it


@dataclass(frozen=True, slots=True, eq=False)
class Calls(Columns):
    """The communication kernels whose operation is known, one row each.

    A coalesced kernel has a row for each transfer it carries, as far as they are known.
    """

    kernel: Int32 = column(np.int32)  # row in Kernels
    op_id: Int32 = column(np.int32)  # collective name, in RankTrace.names
    group: Int32 = column(np.int32)  # index into RankTrace.groups
    seq: Int64 = column(np.int64)
    in_bytes: Int64 = column(np.int64)
    out_bytes: Int64 = column(np.int64)
    dtype_id: Int32 = column(np.int32)  # in RankTrace.names
    peer: Int32 = column(np.int32)  # global rank of the other end of a p2p
    root: Int32 = column(np.int32)  # place in the group of who gives or gets all

    def carried(self) -> Int64:
        """(calls,) how many transfers the kernel of each call carries; 1 of all but coalesced."""
        out: Int64 = np.bincount(self.kernel)[self.kernel] if len(self) else np.empty(0, np.int64)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Columns):
    """Step windows, in order of time, never overlapping on one rank."""

    number: Int64 = column(np.int64)
    start_ns: Int64 = column(np.int64)
    end_ns: Int64 = column(np.int64)
    flag: UInt8 = column(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Spans(Columns):
    """What the host was at, sorted by start. Spans may nest: data or GC inside a phase."""

    start_ns: Int64 = column(np.int64)
    end_ns: Int64 = column(np.int64)
    phase: UInt8 = column(np.uint8)  # Phase
    stage: Int32 = column(np.int32)  # of the whole pipeline
    chunk: Int32 = column(np.int32)  # place of the stage among those of its rank
    microbatch: Int32 = column(np.int32)


NO_SPANS = Spans(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8),
    np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Origins(Columns):
    """Where each kernel comes from, one row per kernel; -1 where that is not recorded."""

    op_id: Int32 = column(np.int32)  # the operator that launched it, in RankTrace.names
    scope_id: Int32 = column(np.int32)  # the innermost annotation around its launch, in names
    shape_id: Int32 = column(np.int32)  # its grid and block, in RankTrace.names


@dataclass(frozen=True, slots=True, eq=False)
class Splits(Columns):
    """Rows that an all_to_all moves to and from each member, in order of call, then of member."""

    call: Int32 = column(np.int32)  # row in Calls
    member: Int32 = column(np.int32)  # place in the group
    sent: Int64 = column(np.int64)  # rows to that member, -1 when not recorded
    received: Int64 = column(np.int64)  # rows from it, -1 when not recorded


@dataclass(frozen=True, slots=True, eq=False)
class ExpertLoads(Columns):
    """Tokens that experts on this rank got, one row per call of a layer and expert."""

    at_ns: Int64 = column(np.int64)
    layer: Int32 = column(np.int32)
    expert: Int32 = column(np.int32)  # by its number in the whole model
    tokens: Int64 = column(np.int64)


def _no(kind: type[Any]) -> Any:
    return kind(*(np.empty(0, item.metadata["dtype"]) for item in fields(kind)))


NO_SPLITS: Splits = _no(Splits)
NO_LOADS: ExpertLoads = _no(ExpertLoads)


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """Everything the analyses need of one rank."""

    rank: int
    host: str | None
    device_type: str  # "gpu", or "cpu" when only operators and CPU transfers were recorded
    steps: Steps
    kernels: Kernels
    calls: Calls
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    spans: Spans = NO_SPANS
    steps_marked: bool = True  # step numbers are the job's own, so they agree between ranks
    origins: Origins | None = None  # None: nothing is known of any kernel
    splits: Splits = NO_SPLITS
    loads: ExpertLoads = NO_LOADS

    def origin(self) -> Origins:
        """Where each kernel comes from; all unknown where no trace tells."""
        if self.origins is not None:
            return self.origins
        unknown = np.full(len(self.kernels), -1, dtype=np.int32)
        return Origins(unknown, unknown, unknown)

    def calls_of(self, operations: Container[str]) -> npt.NDArray[np.bool_]:
        """(calls,) mask of the calls of these operations."""
        wanted = np.array([*(name in operations for name in self.names), False], dtype=np.bool_)
        return wanted[self.calls.op_id]

    def statistic_steps(self) -> npt.NDArray[np.bool_]:
        """(steps,) mask of the steps to use in statistics: unflagged ones, or all if none is."""
        clean: npt.NDArray[np.bool_] = self.steps.flag == StepFlag.OK
        return clean if clean.any() else np.ones(len(clean), dtype=np.bool_)
