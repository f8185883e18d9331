"""What each stage of a pipeline did when: its actions, as measured.

An action is one forward or backward of a stage on a microbatch. On a device its time is
that of the compute and the in-stage collectives launched in its span, so it leaves out
the receive before it, however early the host came. On a CPU the span itself counts, less
the waits inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.collective import P2P
from tracekit.core.intervals import Intervals, covered_within, intersect, union
from tracekit.core.schedule import Kind
from tracekit.core.trace import (
    Columns,
    Int32,
    Int64,
    KernelKind,
    Phase,
    RankTrace,
    UInt8,
    column,
)

Mask = npt.NDArray[np.bool_]

KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)
_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.INPUT, Phase.WEIGHT)
# Collectives along these axes are about parameters and gradients, not a part of a stage's work;
# of an expert group only the exchange of tokens is.
_OUTSIDE_AXES = frozenset({"pp", "dp", "dp_replicate", "fsdp", "dp_shard"})


@dataclass(frozen=True, slots=True, eq=False)
class StageWork(Columns):
    """Actions of one rank in order of begin; times in ns on the common clock."""

    step: Int32 = column(np.int32)  # index into the rank's Steps
    kind: UInt8 = column(np.uint8)  # index into KINDS
    stage: Int32 = column(np.int32)
    microbatch: Int32 = column(np.int32)
    begin_ns: Int64 = column(np.int64)
    end_ns: Int64 = column(np.int64)
    busy_ns: Int64 = column(np.int64)  # compute and in-stage collectives

    def take(self, rows: npt.NDArray[np.intp] | Mask) -> StageWork:
        """Some of the rows."""
        return StageWork(
            self.step[rows], self.kind[rows], self.stage[rows], self.microbatch[rows],
            self.begin_ns[rows], self.end_ns[rows], self.busy_ns[rows],
        )  # fmt: skip


def stage_work(
    trace: RankTrace, clock: ClockFit | None, only_stage: int, waits_inside: bool
) -> StageWork:
    """The actions of one rank; empty without spans of stages.

    Args:
        trace: one rank.
        clock: its fit; None leaves times on its own clock.
        only_stage: the stage of spans that do not name one; -1 if not known.
        waits_inside: whether the spans contain waiting for their input.
    """
    spans = trace.spans
    stage = np.where(spans.stage < 0, only_stage, spans.stage)
    rows = np.flatnonzero(
        np.isin(spans.phase, (*_PHASES, Phase.LOSS)) & (stage >= 0) & (spans.microbatch >= 0)
    )
    rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
    if trace.device_type == "cpu":
        step, begin, end, busy = _on_host(trace, rows, waits_inside)
    else:
        step, begin, end, busy = _on_device(trace, rows)
    if clock is not None:
        begin, end = clock.aligned(begin), clock.aligned(end)
    made = StageWork(
        step=step,
        kind=_kinds(spans.phase[rows]),
        stage=stage[rows].astype(np.int32),
        microbatch=spans.microbatch[rows],
        begin_ns=begin,
        end_ns=end,
        busy_ns=busy,
    )
    return _with_losses(made.take((step >= 0) & (end > begin)))


def _kinds(phase: UInt8) -> UInt8:
    """Index into KINDS; len(KINDS) for a loss."""
    table = np.full(len(Phase), len(KINDS), dtype=np.uint8)
    for place, item in enumerate(_PHASES):
        table[item] = place
    out: UInt8 = table[phase]
    return out


def _with_losses(work: StageWork) -> StageWork:
    """The loss of a microbatch as the end of its forward."""
    is_loss = work.kind == len(KINDS)
    if not is_loss.any():
        return work
    key = (work.step.astype(np.int64) << 40) + (work.stage.astype(np.int64) << 20) + work.microbatch
    forward = np.flatnonzero(work.kind == 0)
    order = forward[np.argsort(key[forward], kind="stable")]
    end, busy = work.end_ns.copy(), work.busy_ns.copy()
    if len(order):
        losses = np.flatnonzero(is_loss)
        place = np.minimum(np.searchsorted(key[order], key[losses]), len(order) - 1)
        hit = key[order][place] == key[losses]
        target = order[place[hit]]
        np.maximum.at(end, target, work.end_ns[losses[hit]])
        np.add.at(busy, target, work.busy_ns[losses[hit]])
    merged = StageWork(work.step, work.kind, work.stage, work.microbatch, work.begin_ns, end, busy)
    return merged.take(~is_loss)


# -- on a device -----------------------------------------------------------------------------

_Times = tuple[Int32, Int64, Int64, Int64]  # step, begin, end, busy


def _on_device(trace: RankTrace, rows: npt.NDArray[np.intp]) -> _Times:
    """From the kernels launched in each span."""
    spans, kernels = trace.spans, trace.kernels
    if len(rows) == 0:
        none = np.zeros(0, dtype=np.int64)
        return none.astype(np.int32), none, none, none
    chosen = np.flatnonzero(in_stage(trace) & (kernels.launch_ns >= 0))
    size = len(rows)
    low, high = spans.start_ns[rows], spans.end_ns[rows]
    place = np.searchsorted(low, kernels.launch_ns[chosen], side="right") - 1
    inside = (place >= 0) & (kernels.launch_ns[chosen] < high[np.maximum(place, 0)])
    chosen, place = chosen[inside], place[inside]
    start, end = kernels.start_ns[chosen], kernels.end_ns[chosen]
    begin_ns = np.full(size, np.iinfo(np.int64).max)
    end_ns = np.full(size, -1, dtype=np.int64)
    step = np.full(size, -1, dtype=np.int32)
    np.minimum.at(begin_ns, place, start)
    np.maximum.at(end_ns, place, end)
    np.maximum.at(step, place, kernels.step[chosen])
    begin_ns[end_ns < 0] = 0
    end_ns = np.maximum(end_ns, begin_ns)
    return step, begin_ns, end_ns, _union_by(place, start, end, size)


def _union_by(key: Int64, start: Int64, end: Int64, size: int) -> Int64:
    """(size,) time covered by the intervals of each key."""
    if len(start) == 0:
        return np.zeros(size, dtype=np.int64)
    # Apart from each other on one axis, so that one union serves all keys.
    base = int(start.min())
    width = int(end.max()) - base + 1
    shift = key * width - base
    merged = union(start + shift, end + shift)
    at = np.arange(size, dtype=np.int64) * width
    covered: Int64 = covered_within(merged, at, at + width)
    return covered


def in_stage(trace: RankTrace) -> Mask:
    """(kernels,) compute, and the collectives that a stage's own work waits for."""
    kind = trace.kernels.kind
    out: Mask = (kind == KernelKind.COMPUTE) | (kind == KernelKind.COMMUNICATION)
    calls = trace.calls
    op = np.array([*trace.names, ""], dtype=object)[calls.op_id]
    axis = np.array([*(group.axis for group in trace.groups), None], dtype=object)[calls.group]
    outside = np.isin(op.astype(str), list(P2P)) | np.isin(axis.astype(str), list(_OUTSIDE_AXES))
    outside |= (axis.astype(str) == "ep") & (op != "all_to_all")
    out[calls.kernel[outside]] = False
    return out


# -- on a CPU --------------------------------------------------------------------------------


def _on_host(trace: RankTrace, rows: npt.NDArray[np.intp], waits_inside: bool) -> _Times:
    """From the spans themselves, less their waits."""
    spans, steps = trace.spans, trace.steps
    begin, end = spans.start_ns[rows], spans.end_ns[rows]
    step = np.searchsorted(steps.start_ns, begin, side="right") - 1
    outside = (step < 0) | (begin >= steps.end_ns[np.maximum(step, 0)]) if len(steps) else step < 0
    step = np.where(outside, -1, step)
    waits = _waits(trace, waits_inside)
    if waits_inside:
        begin = _after_longest(waits, begin, end)
    busy = end - begin - covered_within(waits, begin, end)
    return step.astype(np.int32), begin, end, busy.astype(np.int64)


def _waits(trace: RankTrace, waits_inside: bool) -> Intervals:
    """When the host waits for another stage."""
    spans = trace.spans
    told = np.isin(spans.phase, (Phase.RECV, Phase.SEND))
    waits = union(spans.start_ns[told], spans.end_ns[told])
    if not waits_inside or told.any():
        return waits
    # Unnamed: before a receive ends no operator runs, until the host is let go.
    calls, kernels = trace.calls, trace.kernels
    op = np.array([*trace.names, ""], dtype=object)[calls.op_id].astype(str)
    received = calls.kernel[op == "recv"]
    compute = kernels.kind == KernelKind.COMPUTE
    ran = union(kernels.start_ns[compute], kernels.end_ns[compute])
    end = kernels.end_ns[received]
    before = np.searchsorted(ran.starts, end, side="left") - 1
    idle_since = (
        np.where(before >= 0, ran.ends[np.maximum(before, 0)], end) if len(ran.ends) else end
    )
    return union(np.maximum(kernels.start_ns[received], idle_since), end)


def _after_longest(waits: Intervals, begin: Int64, end: Int64) -> Int64:
    """Where each span goes on after the longest wait inside it; its begin without any."""
    out: Int64 = begin.copy()
    inside = intersect(waits, union(begin, end))
    owner = np.searchsorted(begin, inside.starts, side="right") - 1
    length = inside.ends - inside.starts
    for place in np.unique(owner).tolist():
        mine = np.flatnonzero(owner == place)
        out[place] = inside.ends[mine[length[mine].argmax()]]
    return out


def sequence(work: StageWork) -> tuple[tuple[int, int, int], ...]:
    """Kind, stage and microbatch of each action, in order."""
    rows: Sequence[tuple[int, int, int]] = list(
        zip(work.kind.tolist(), work.stage.tolist(), work.microbatch.tolist(), strict=True)
    )
    return tuple(rows)
