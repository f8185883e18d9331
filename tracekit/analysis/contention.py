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

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.alone import alone_ns
from tracekit.core.beside import (
    Beside,
    ComputeKernels,
    KernelClass,
    beside,
    compute_kernels,
    kernel_classes,
)
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.intervals import covered_within, intersect
from tracekit.core.run import LinkLatency, Run, why_no_device_work
from tracekit.core.slowdown import Slowdown
from tracekit.core.table import Column, Schema
from tracekit.core.trace import Int64, KernelKind
from tracekit.core.transfers import Transfer, transfers_of

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

NO_BASELINE = "no baseline"
_LEAST_SHARE = 0.002  # of the step, for a finding
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
    ranks = beside(run)
    names, kernels = compute_kernels(run, ranks)
    if not (kernels.share > 0).any():
        raise MissingDataError(
            "compute and communication never run at the same time in counted steps, so there is "
            "no contention; a job that overlaps them is needed"
        )
    classes = kernel_classes(names, kernels)
    lost = np.zeros(len(kernels.ns))
    for item in classes:
        lost[item.rows] = item.lost
    transfers = transfers_of(ranks)
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


# -- classes -------------------------------------------------------------------------------------


def _per_class(
    names: tuple[str, ...], classes: Sequence[KernelClass], kernels: ComputeKernels
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


def _per_transfer(transfers: Sequence[Transfer], baseline: Sequence[LinkLatency]) -> pd.DataFrame:
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
    ranks: Sequence[Beside],
    kernels: ComputeKernels,
    lost: Float,
    transfers: Sequence[Transfer],
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


def _per_region(kernels: ComputeKernels, lost: Float) -> pd.DataFrame:
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
    classes: Sequence[KernelClass],
    kernels: ComputeKernels,
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
