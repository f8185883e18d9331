"""Contention: what overlap costs, and whether it pays.

Definition: a class is a kernel by name and launch shape; its kernels are compared inside
strata of equal work: operator, stage and phase, the kernels before and after it, and the
position in the step, or else in the action of the stage with a straight trend over the
step. With f = the share of a kernel's own time that communication overlaps and d0 its time
alone, one slowdown κ per class is fitted by ``d0 / d = 1 − f (1 − 1/κ)``, robustly, with a 99 %
interval from blocks of steps. κ = 1.25 means that compute under communication runs 25 %
slower. It needs at least 5 kernels with f = 0 and 5 with f > 0 in strata that hold both;
else there is "no baseline".
``lost_ns`` = Σ (d − d0). Likewise for transfers under compute, of equal operation and size: x is
the transfer without waiting, x0 its median alone.
Net benefit of overlap = |T & K| − Σ (d − d0) − Σ (x − x0), with T the time of communication that
moves data: hidden *waiting* is no win. Where wait and transfer are not known, all communication
counts and ``waits_known`` says so. Per region: the same over the compute of one phase or
annotation, without what transfers lose. Negative: overlap hurts.
Source: Huber, Robust Statistics, for the fit. A plain ratio of medians would measure where
in a step overlap happens.
Limits: a class that always runs under communication has no baseline and adds nothing to the
loss, so the benefit is an upper bound then; its share is stated (``unmeasured_ratio``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.activity import kernel_union
from tracekit.core.alone import alone_ns
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.grouped import Codes, mixed, turns
from tracekit.core.intervals import Intervals, covered_within, intersect, union
from tracekit.core.run import LinkLatency, Run, why_no_device_work
from tracekit.core.slowdown import LEAST, Pieces, Slowdown, slowdown
from tracekit.core.table import Column, Schema
from tracekit.core.timing import Timing, across, timing
from tracekit.core.trace import Int64, KernelKind, Phase, RankTrace

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

NO_BASELINE = "no baseline"
_BLOCKS = 8  # parts of a step that count as one observation each
_LEAST_SHARE = 0.002  # of the step, for a finding
_REGIONS = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.INPUT: "backward",
    Phase.WEIGHT: "backward",
    Phase.LOSS: "forward",
}
_OUTSIDE = "outside any annotation"

_FIT = (
    Column("n_alone", "int64", "count", "Without any overlap, in counted steps."),
    Column("n_overlapped", "int64", "count", "With some."),
    Column("slowdown", "Float64", "", "Time under overlap over time alone; null if no baseline."),
    Column("slowdown_low", "Float64", "", "Lower end of its 99 % interval."),
    Column("slowdown_high", "Float64", "", "Upper end of its 99 % interval."),
    Column("lost_ns", "Float64", "ns", "Time lost to it, all ranks and counted steps."),
)
PER_CLASS = Schema(
    Column("kernel", "str", "", "Name of the compute kernel."),
    Column("shape", "str", "", "Its grid and block, where recorded."),
    *_FIT,
    Column("total_ns", "int64", "ns", "Time of all its kernels in counted steps."),
    Column("baseline", "str", "", 'Equal in "position", "action", a part of a step, or none.'),
)
PER_TRANSFER = Schema(
    Column("op", "str", "", "Collective or p2p operation."),
    Column("axis", "str", "", "Mesh axis, else the group's name."),
    Column("bytes", "int64", "bytes", "Of the larger side; -1 where not recorded."),
    *_FIT,
    Column("alone_p50_ns", "Float64", "ns", "Median transfer without compute beside it."),
    Column("overlapped_p50_ns", "Float64", "ns", "Median transfer with compute beside it."),
    Column("bench_p50_ns", "Float64", "ns", "The same by `tracekit bench`, alone; null if none."),
    Column("bench_slowdown", "Float64", "", "overlapped_p50_ns / bench_p50_ns; null if none."),
)
PER_STEP = Schema(
    Column("rank", "int32", "", "Global rank."),
    Column("step", "int64", "", "Step number."),
    Column("hidden_ns", "int64", "ns", "Communication with compute running."),
    Column("hidden_wait_ns", "int64", "ns", "Part of it that only waits for another rank."),
    Column("compute_lost_ns", "int64", "ns", "What compute loses to it."),
    Column("transfer_lost_ns", "int64", "ns", "What transfers lose to compute."),
    Column("net_benefit_ns", "int64", "ns", "hidden - hidden_wait - both losses."),
    Column("counted", "bool", "", "Used in statistics."),
)
PER_REGION = Schema(
    Column("region", "str", "", "Phase of the program, else the annotation around the compute."),
    Column("hidden_ns", "int64", "ns", "Compute time beside transfers, all ranks, counted steps."),
    Column("compute_lost_ns", "int64", "ns", "What compute loses to communication there."),
    Column("net_benefit_ns", "int64", "ns", "hidden - lost; transfers' own loss is not in it."),
)


@dataclass(frozen=True, slots=True, eq=False)
class ContentionResult:
    """What overlap costs and brings; sums are over all ranks and counted steps."""

    per_class: pd.DataFrame
    per_transfer: pd.DataFrame
    per_step: pd.DataFrame
    per_region: pd.DataFrame
    net_benefit_ns: int
    hidden_ns: int
    compute_lost_ns: int
    transfer_lost_ns: int
    unmeasured_ratio: float
    waits_known: bool
    findings: tuple[Finding, ...]


def analyze(run: Run) -> ContentionResult:
    """Fit the slowdown of every class and weigh it against what overlap hides.

    Raises:
        MissingDataError: there is no compute, no communication, or they never overlap.
    """
    _require(run)
    matching, clock = across(run)
    times = timing(run.traces, matching, clock)
    ranks = [
        _rank(trace, _moving(place, trace, times, matching.rows.trace, matching.rows.call))
        for place, trace in enumerate(run.traces)
    ]
    names, kernels = _collected(run, ranks)
    if not (kernels.share > 0).any():
        raise MissingDataError(
            "compute and communication never run at the same time in counted steps, so there is "
            "no contention; a job that overlaps them is needed"
        )
    classes = _classes(names, kernels)
    lost = np.zeros(len(kernels.ns))
    for item in classes:
        lost[item.rows] = item.lost
    transfers = _transfers(ranks)
    per_step = _per_step(run, ranks, kernels, lost, transfers)
    counted = per_step[per_step.counted]
    overlapped = kernels.share > 0
    known = np.zeros(len(kernels.ns), dtype=np.bool_)
    for item in classes:
        known[item.rows] = item.fit is not None
    spent = float((kernels.ns * kernels.share).sum())
    return ContentionResult(
        per_class=_per_class(names, classes, kernels),
        per_transfer=_per_transfer(transfers, run.baseline),
        per_step=per_step,
        per_region=_per_region(kernels, lost),
        net_benefit_ns=int(counted.net_benefit_ns.sum()),
        hidden_ns=int(counted.hidden_ns.sum()),
        compute_lost_ns=int(counted.compute_lost_ns.sum()),
        transfer_lost_ns=int(counted.transfer_lost_ns.sum()),
        unmeasured_ratio=float((kernels.ns * kernels.share)[overlapped & ~known].sum()) / spent,
        waits_known=all(item.waits_known for item in ranks),
        findings=_findings(run, names, classes, kernels, counted),
    )


def _require(run: Run) -> None:
    kinds = {int(kind) for trace in run.traces for kind in np.unique(trace.kernels.kind).tolist()}
    if not kinds:
        raise MissingDataError(why_no_device_work(run))
    if KernelKind.COMMUNICATION not in kinds:
        raise MissingDataError(
            "no communication in any trace; record a job of more than one rank, or name its "
            "kernels with --comm-pattern"
        )


# -- kernels of all ranks ------------------------------------------------------------------------


class _Rank(NamedTuple):
    """One rank: when communication runs, and when it moves data rather than waits."""

    trace: RankTrace
    communication: Intervals
    moving: Intervals
    compute: Intervals
    start_ns: Int64  # of each call's transfer, after the wait; -1 where not known
    waits_known: bool


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


def _rank(trace: RankTrace, begun: Int64) -> _Rank:
    kernels = trace.kernels
    is_comm = kernels.kind == KernelKind.COMMUNICATION
    communication = kernel_union(trace, is_comm)
    start = kernels.start_ns.copy()
    known = begun >= 0
    start[trace.calls.kernel[known]] = begun[known]
    moving = union(start[is_comm], kernels.end_ns[is_comm])
    return _Rank(
        trace,
        communication,
        moving,
        kernel_union(trace, kernels.kind == KernelKind.COMPUTE),
        begun,
        bool(known.sum() == is_comm.sum()),
    )


class _Kernels(NamedTuple):
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


def _collected(run: Run, ranks: Sequence[_Rank]) -> tuple[tuple[str, ...], _Kernels]:
    names = Codes()
    parts = [_of_rank(place, item, names) for place, item in enumerate(ranks)]
    joined = _Kernels(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return names.texts(), joined


def _of_rank(place: int, item: _Rank, names: Codes) -> _Kernels:
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
    return _Kernels(
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


# -- classes -------------------------------------------------------------------------------------


class _Class(NamedTuple):
    """Kernels of one name and shape, and their slowdown."""

    name: int
    shape: int
    rows: npt.NDArray[np.intp]
    fit: Slowdown | None
    lost: Float  # ns, of each row


def _classes(names: tuple[str, ...], kernels: _Kernels) -> list[_Class]:
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
        found.append(_Class(int(kernels.name[first]), int(kernels.shape[first]), rows, fit, lost))
    return found


def _pieces(kernels: _Kernels, rows: npt.NDArray[np.intp]) -> Pieces:
    part = np.minimum(kernels.position[rows] * _BLOCKS, _BLOCKS - 1).astype(np.int64)
    block = (kernels.trace[rows] << 40) + (kernels.step[rows] << 8) + part
    return Pieces(
        kernels.ns[rows], kernels.share[rows], kernels.kind[rows], kernels.turn[rows],
        kernels.inner[rows], kernels.position[rows], block,
    )  # fmt: skip


def _per_class(
    names: tuple[str, ...], classes: Sequence[_Class], kernels: _Kernels
) -> pd.DataFrame:
    """Most time lost first, then those without a baseline."""
    rows = []
    for item in classes:
        share = kernels.share[item.rows]
        rows.append(
            (names[item.name], "" if item.shape < 0 else names[item.shape],
             int((share == 0).sum()), int((share > 0).sum()), *_fit_cells(item.fit, item.lost),
             int(kernels.ns[item.rows].sum()),
             NO_BASELINE if item.fit is None else item.fit.baseline)
        )  # fmt: skip
    rows.sort(key=lambda row: (row[7] is None, -(row[7] or 0.0), -row[8], row[0], row[1]))
    columns = list(zip(*rows, strict=True)) or [()] * len(PER_CLASS.names)
    return table(PER_CLASS, dict(zip(PER_CLASS.names, map(list, columns), strict=True)))


def _fit_cells(
    fit: Slowdown | None, lost: Float
) -> tuple[float | None, float | None, float | None, float | None]:
    if fit is None:
        return None, None, None, None
    return fit.value, fit.low, fit.high, float(lost.sum())


# -- transfers under compute ---------------------------------------------------------------------


class _Transfer(NamedTuple):
    """Transfers of one operation, axis and size."""

    op: str
    axis: str
    bytes: int
    ns: Int64
    share: Float  # overlapped by compute
    trace: Int64
    step: Int64
    members: int  # of the group; 0 when not known
    fit: Slowdown | None

    @property
    def alone_p50(self) -> float | None:
        """Median time of those without compute beside them; None below five."""
        alone = self.ns[self.share == 0]
        return float(np.median(alone)) if len(alone) >= LEAST else None

    @property
    def lost(self) -> Float:
        """(n,) what each loses to compute: x - x0; 0 without a baseline."""
        base = self.alone_p50
        if base is None:
            return np.zeros(len(self.ns))
        out: Float = np.where(self.share > 0, self.ns - base, 0.0)
        return out


class _Moved(NamedTuple):
    """Transfers of counted steps whose wait is known; op and axis are codes over all ranks."""

    op: Int64
    axis: Int64
    members: Int64
    bytes: Int64
    ns: Int64
    share: Float
    trace: Int64
    step: Int64
    position: Float

    def take(self, rows: npt.NDArray[np.intp]) -> _Moved:
        """Some of the rows."""
        return _Moved(
            self.op[rows], self.axis[rows], self.members[rows], self.bytes[rows], self.ns[rows],
            self.share[rows], self.trace[rows], self.step[rows], self.position[rows],
        )  # fmt: skip


def _transfers(ranks: Sequence[_Rank]) -> list[_Transfer]:
    """Transfers by operation, axis and size."""
    words = Codes()
    parts = [_moved(place, item, words) for place, item in enumerate(ranks)]
    every = _Moved(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    key = mixed(every.op, every.axis, every.members, every.bytes)
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order], prepend=~key[order][:1], append=~key[order][-1:]))
    texts = words.texts()
    found = [
        _transfer(every.take(order[low:high]), texts)
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return sorted(found, key=lambda item: (item.op, item.axis, item.bytes))


def _moved(place: int, item: _Rank, words: Codes) -> _Moved:
    """The transfers of one rank in order of call."""
    trace = item.trace
    calls, kernels = trace.calls, trace.kernels
    use = np.append(trace.statistic_steps(), False)[kernels.step[calls.kernel]]
    end = kernels.end_ns[calls.kernel]
    chosen = np.flatnonzero(use & (item.start_ns >= 0) & (end > item.start_ns))
    start, end = item.start_ns[chosen], end[chosen]
    step = kernels.step[calls.kernel[chosen]].astype(np.int64)
    length = np.maximum(trace.steps.end_ns - trace.steps.start_ns, 1)[step]
    axes = [group.axis or group.description or "world" for group in trace.groups]
    # The last entry, which -1 selects, is a name of its own here.
    axis = words.of([*axes, "unknown"])[:-1]
    members = np.array([*(len(group.ranks) for group in trace.groups), 0], dtype=np.int64)
    return _Moved(
        op=words.of(trace.names)[calls.op_id[chosen]],
        axis=axis[calls.group[chosen]],
        members=members[calls.group[chosen]],
        bytes=np.maximum(calls.in_bytes, calls.out_bytes)[chosen],
        ns=end - start,
        share=covered_within(item.compute, start, end) / (end - start),
        trace=np.full(len(chosen), place, dtype=np.int64),
        step=step,
        position=np.clip((start - trace.steps.start_ns[step]) / length, 0, 1),
    )


def _transfer(rows: _Moved, texts: tuple[str, ...]) -> _Transfer:
    zero = np.zeros(len(rows.ns), dtype=np.int64)
    part = np.minimum(rows.position * _BLOCKS, _BLOCKS - 1).astype(np.int64)
    pieces = Pieces(
        rows.ns, rows.share, zero, turns(mixed(rows.trace, rows.step)), zero - 1, rows.position,
        (rows.trace << 40) + (rows.step << 8) + part,
    )  # fmt: skip
    return _Transfer(
        texts[rows.op[0]], texts[rows.axis[0]], int(rows.bytes[0]), rows.ns, rows.share,
        rows.trace, rows.step, int(rows.members[0]), slowdown(pieces),
    )  # fmt: skip


def _per_transfer(transfers: Sequence[_Transfer], baseline: Sequence[LinkLatency]) -> pd.DataFrame:
    rows = []
    for item in transfers:
        over = item.share > 0
        if not over.any():
            continue
        beside = float(np.median(item.ns[over]))
        bench, _ = alone_ns(baseline, item.op, item.members, item.bytes)
        rows.append(
            (item.op, item.axis, item.bytes, int((~over).sum()), int(over.sum()),
             *_fit_cells(item.fit, item.lost)[:3],
             None if item.alone_p50 is None else float(item.lost.sum()), item.alone_p50, beside,
             bench, None if bench is None else beside / bench)
        )  # fmt: skip
    columns = list(zip(*rows, strict=True)) or [()] * len(PER_TRANSFER.names)
    return table(PER_TRANSFER, dict(zip(PER_TRANSFER.names, map(list, columns), strict=True)))


# -- benefit -------------------------------------------------------------------------------------


def _per_step(
    run: Run,
    ranks: Sequence[_Rank],
    kernels: _Kernels,
    lost: Float,
    transfers: Sequence[_Transfer],
) -> pd.DataFrame:
    """One row per rank and step; losses are known in counted steps only, else 0."""
    compute = _sums(run, kernels.trace, kernels.step, lost)
    moved = [np.zeros(len(trace.steps)) for trace in run.traces]
    for alike in transfers:
        parts = _sums(run, alike.trace, alike.step, alike.lost)
        for total, part in zip(moved, parts, strict=True):
            total += part
    frames = []
    for place, item in enumerate(ranks):
        steps = item.trace.steps
        start, end = steps.start_ns, steps.end_ns
        hidden = covered_within(intersect(item.communication, item.compute), start, end)
        useful = covered_within(intersect(item.moving, item.compute), start, end)
        slower, late = (
            np.rint(compute[place]).astype(np.int64),
            np.rint(moved[place]).astype(np.int64),
        )
        frames.append(
            table(
                PER_STEP,
                {
                    "rank": np.full(len(steps), item.trace.rank),
                    "step": steps.number,
                    "hidden_ns": hidden,
                    "hidden_wait_ns": hidden - useful,
                    "compute_lost_ns": slower,
                    "transfer_lost_ns": late,
                    "net_benefit_ns": useful - slower - late,
                    "counted": item.trace.statistic_steps(),
                },
            )
        )
    return pd.concat(frames, ignore_index=True)


def _sums(run: Run, trace: Int64, step: Int64, values: Float) -> list[Float]:
    """Per rank: (steps,) sum of the values."""
    out = []
    for place, item in enumerate(run.traces):
        mine = trace == place
        out.append(np.bincount(step[mine], values[mine], len(item.steps)).astype(np.float64))
    return out


def _per_region(kernels: _Kernels, lost: Float) -> pd.DataFrame:
    rows = []
    for region in sorted(set(kernels.region.tolist())):
        mine = kernels.region == region
        hidden, slower = int(kernels.hidden_ns[mine].sum()), round(float(lost[mine].sum()))
        if hidden or slower:
            rows.append((region, hidden, slower, hidden - slower))
    rows.sort(key=lambda row: (row[3], row[0]))
    columns = list(zip(*rows, strict=True)) or [()] * len(PER_REGION.names)
    return table(PER_REGION, dict(zip(PER_REGION.names, map(list, columns), strict=True)))


# -- findings ------------------------------------------------------------------------------------


def _findings(
    run: Run,
    names: tuple[str, ...],
    classes: Sequence[_Class],
    kernels: _Kernels,
    counted: pd.DataFrame,
) -> tuple[Finding, ...]:
    """Compute that communication certainly slows down, and overlap that does not pay."""
    lengths = [
        int(ns)
        for trace in run.traces
        for ns in (trace.steps.end_ns - trace.steps.start_ns)[trace.statistic_steps()]
    ]
    sure = [item for item in classes if item.fit is not None and item.fit.low > 1]
    lost = float(sum(item.lost.sum() for item in sure))
    if not sure or not lengths or lost < _LEAST_SHARE * sum(lengths):
        return ()
    worst = max(sure, key=lambda item: float(item.lost.sum()))
    assert worst.fit is not None
    fit = worst.fit
    share = lost / sum(lengths)
    net = int(counted.net_benefit_ns.sum())
    pays = "it still pays" if net > 0 else "overlap costs more than it hides"
    n = int((kernels.share[worst.rows] > 0).sum())
    return (
        Finding(
            analysis="contention",
            title=f"communication slows compute beside it, by {percent(share)} of step time; most "
            f"{_short(names[worst.name])}, {fit.value:.3g} times as slow ({fit.low:.3g} to "
            f"{fit.high:.3g}); {pays}",
            lost_ns_per_step=round(lost / len(lengths)),
            lost_ratio=share,
            ranks=(),
            evidence=f"{len(sure)} kernel classes with an interval above 1; {n} overlapped kernels "
            f"of the largest, compared at equal {fit.baseline}",
            confidence=Confidence.HIGH
            if fit.baseline in ("position", "action")
            else Confidence.LOW,
            advice="give communication fewer SMs (NCCL_MAX_CTAS, NCCL_CTA_POLICY), move it beside "
            "kernels that are less sensitive, or use copy engines and in-network reduction",
        ),
    )


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"


ANALYZER = Analyzer(
    name="contention",
    question="Does overlap slow compute down, and does it pay?",
    analyze=analyze,
    result=ContentionResult,
    tables={
        "per_class": PER_CLASS,
        "per_transfer": PER_TRANSFER,
        "per_step": PER_STEP,
        "per_region": PER_REGION,
    },
    scalars=(
        Column("net_benefit_ns", "int64", "ns", "What overlap saves in all; negative: it costs."),
        Column("hidden_ns", "int64", "ns", "Communication with compute running."),
        Column("compute_lost_ns", "int64", "ns", "What compute loses to communication."),
        Column("transfer_lost_ns", "int64", "ns", "What transfers lose to compute."),
        Column("unmeasured_ratio", "float64", "ratio", "Overlapped compute without a baseline."),
        Column("waits_known", "bool", "", "Waiting is told from transfer in all communication."),
    ),
)
