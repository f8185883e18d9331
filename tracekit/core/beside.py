"""Compute kernels of all ranks, and how much communication runs beside each.

A class is a kernel by name and launch shape; its slowdown under communication is fitted
over kernels of equal work (:mod:`tracekit.core.slowdown`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.activity import kernel_union
from tracekit.core.grouped import Codes, mixed, turns
from tracekit.core.intervals import Intervals, covered_within, union
from tracekit.core.run import Run
from tracekit.core.slowdown import Pieces, Slowdown, slowdown
from tracekit.core.timing import Timing, across, timing
from tracekit.core.trace import Int64, KernelKind, Phase, RankTrace

Float = npt.NDArray[np.float64]

BLOCKS = 8  # parts of a step that count as one observation each
_REGIONS = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.INPUT: "backward",
    Phase.WEIGHT: "backward",
    Phase.LOSS: "forward",
}
_OUTSIDE = "outside any annotation"


class Beside(NamedTuple):
    """One rank: when communication runs, and when it moves data rather than waits."""

    trace: RankTrace
    communication: Intervals
    moving: Intervals
    compute: Intervals
    start_ns: Int64  # of each call's transfer, after the wait; -1 where not known
    waits_known: bool


def beside(run: Run) -> list[Beside]:
    """Of each loaded rank."""
    matching, clock = across(run)
    times = timing(run.traces, matching, clock)
    return [
        _rank(trace, _moving(place, trace, times, matching.rows.trace, matching.rows.call))
        for place, trace in enumerate(run.traces)
    ]


def _moving(
    place: int,
    trace: RankTrace,
    times: Timing,
    row_trace: npt.NDArray[np.int32],
    row_call: npt.NDArray[np.int32],
) -> Int64:
    """(calls,) when each call begins to move data, on the rank's own clock; -1 if not known."""
    out = np.full(len(trace.calls), -1, dtype=np.int64)
    mine = np.flatnonzero((row_trace == place) & (times.wait_ns >= 0))
    call = row_call[mine]
    kernel = trace.calls.kernel[call]
    begun = trace.kernels.start_ns[kernel] + times.wait_ns[mine]
    out[call] = np.minimum(begun, trace.kernels.end_ns[kernel])
    return out


def _rank(trace: RankTrace, begun: Int64) -> Beside:
    kernels = trace.kernels
    is_comm = kernels.kind == KernelKind.COMMUNICATION
    communication = kernel_union(trace, is_comm)
    start = kernels.start_ns
    known = begun >= 0
    moved = np.full(len(kernels), np.iinfo(np.int64).max)
    # A coalesced kernel moves data from the first of its transfers on.
    np.minimum.at(moved, trace.calls.kernel[known], begun[known])
    start = np.where(moved < np.iinfo(np.int64).max, moved, start)
    moving = union(start[is_comm], kernels.end_ns[is_comm])
    return Beside(
        trace,
        communication,
        moving,
        kernel_union(trace, kernels.kind == KernelKind.COMPUTE),
        begun,
        bool(known.sum() == is_comm.sum()),
    )


class ComputeKernels(NamedTuple):
    """Compute kernels of counted steps of all ranks."""

    trace: Int64  # index into Run.traces
    step: Int64  # index into the rank's Steps
    ns: Int64
    share: Float  # overlapped by communication
    hidden_ns: Int64  # beside communication that moves data
    name: Int64
    shape: Int64
    kind: Int64  # operator, stage, phase and neighbours
    turn: Int64  # in the rank's step
    inner: Int64  # in the span of its stage's action; -1 outside
    position: Float
    region: npt.NDArray[np.object_]


def compute_kernels(run: Run, ranks: Sequence[Beside]) -> tuple[tuple[str, ...], ComputeKernels]:
    """Those of counted steps, and the texts of their codes."""
    names = Codes()
    parts = [_of_rank(place, item, names) for place, item in enumerate(ranks)]
    joined = ComputeKernels(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return names.texts(), joined


def _of_rank(place: int, item: Beside, names: Codes) -> ComputeKernels:
    trace = item.trace
    kernels, origin = trace.kernels, trace.origin()
    use = np.append(trace.statistic_steps(), False)[kernels.step]
    rows = np.flatnonzero(use & (kernels.kind == KernelKind.COMPUTE))
    rows = rows[np.argsort(kernels.start_ns[rows], kind="stable")]
    start, end = kernels.start_ns[rows], kernels.end_ns[rows]
    step = kernels.step[rows].astype(np.int64)
    ns = end - start
    with np.errstate(invalid="ignore"):
        share = covered_within(item.communication, start, end) / ns
    length = np.maximum(trace.steps.end_ns - trace.steps.start_ns, 1)[step]
    code = names.of(trace.names)
    launch = np.where(kernels.launch_ns[rows] < 0, start, kernels.launch_ns[rows])
    span, stage, phase = _spans_at(trace, launch)
    name, shape = code[kernels.name_id[rows]], code[origin.shape_id[rows]]
    kind = mixed(code[origin.op_id[rows]], stage, phase, *_neighbours(name))
    inner = turns(mixed(name, shape, kind, span))
    return ComputeKernels(
        trace=np.full(len(rows), place, dtype=np.int64),
        step=step,
        ns=ns,
        share=np.nan_to_num(share),
        hidden_ns=covered_within(item.moving, start, end),
        name=name,
        shape=shape,
        kind=kind,
        turn=turns(mixed(name, shape, kind, step)),
        inner=np.where(span >= 0, inner, -1),
        position=np.clip((start - trace.steps.start_ns[step]) / length, 0, 1),
        region=_regions(trace, phase, origin.scope_id[rows]),
    )


def _neighbours(name: Int64) -> tuple[Int64, Int64]:
    """Names of the compute kernels before and after each; they tell equal work from other."""
    ends = np.full(1, -1, dtype=np.int64)
    return np.concatenate((ends, name[:-1])), np.concatenate((name[1:], ends))


def _spans_at(trace: RankTrace, at: Int64) -> tuple[Int64, Int64, Int64]:
    """Row, stage and phase of the span of a stage around each launch; -1 for none."""
    spans = trace.spans
    rows = np.flatnonzero(np.isin(spans.phase, list(_REGIONS)))
    none = np.full(len(at), -1, dtype=np.int64)
    if len(rows) == 0:
        return none, none, none
    place = np.searchsorted(spans.start_ns[rows], at, side="right") - 1
    inside = (place >= 0) & (at < spans.end_ns[rows][np.maximum(place, 0)])
    row = rows[np.maximum(place, 0)]
    stage, phase = spans.stage[row].astype(np.int64), spans.phase[row].astype(np.int64)
    return np.where(inside, row, -1), np.where(inside, stage, -1), np.where(inside, phase, -1)


def _regions(
    trace: RankTrace, phase: Int64, scope: npt.NDArray[np.int32]
) -> npt.NDArray[np.object_]:
    """A name for where in the program each kernel belongs."""
    words = np.array([*(_REGIONS.get(item, "") for item in Phase), ""], dtype=object)
    named = np.array([*trace.names, _OUTSIDE], dtype=object)[scope]
    out: npt.NDArray[np.object_] = np.where(phase >= 0, words[phase], named)
    return out


class KernelClass(NamedTuple):
    """Kernels of one name and shape, and their slowdown."""

    name: int
    shape: int
    rows: npt.NDArray[np.intp]
    fit: Slowdown | None
    lost: Float  # ns, of each row


def kernel_classes(names: tuple[str, ...], kernels: ComputeKernels) -> list[KernelClass]:
    """The classes of which some kernel runs beside communication."""
    key = kernels.name * (len(names) + 1) + kernels.shape + 1
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order], prepend=-1, append=-1))
    found = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rows = order[low:high]
        share = kernels.share[rows]
        if not (share > 0).any():
            continue
        fit = slowdown(_pieces(kernels, rows))
        sigma = 0.0 if fit is None else 1 - 1 / fit.value
        lost = kernels.ns[rows] * share * sigma
        first = rows[0]
        found.append(
            KernelClass(int(kernels.name[first]), int(kernels.shape[first]), rows, fit, lost)
        )
    return found


def _pieces(kernels: ComputeKernels, rows: npt.NDArray[np.intp]) -> Pieces:
    part = np.minimum(kernels.position[rows] * BLOCKS, BLOCKS - 1).astype(np.int64)
    block = (kernels.trace[rows] << 40) + (kernels.step[rows] << 8) + part
    return Pieces(
        kernels.ns[rows], kernels.share[rows], kernels.kind[rows], kernels.turn[rows],
        kernels.inner[rows], kernels.position[rows], block,
    )  # fmt: skip
