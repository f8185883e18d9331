"""Step time breakdown: compute, exposed communication, exposed memory, idle.

Definition, per rank, device and step window W, with K, C and M the times
covered by compute, communication and memory work inside W:
``compute = |K|``, ``exposed_comm = |C - K|``, ``exposed_memory = |M - K - C|`` and
``idle`` the rest, so the four sum to ``step = |W|`` exactly. ``hidden_comm = |C & K|``
is a part of compute.
Limits: a collective that spins for a late peer counts as communication. On a
CPU-only trace "idle" is the time of no leaf operator and no transfer: Python,
dispatch and waiting, which such a trace cannot tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.activity import Activity, devices
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.intervals import covered_within, subtract, union
from tracekit.core.run import Run, why_no_device_work
from tracekit.core.table import Column, Schema
from tracekit.core.trace import RankTrace

PER_STEP = Schema(
    Column("rank", "int32", "", "Global rank."),
    Column("device", "int32", "", "Device index; -1 for the CPU."),
    Column("step", "int64", "", "Step number."),
    Column("step_ns", "int64", "ns", "Length of the step window."),
    Column("compute_ns", "int64", "ns", "Time with at least one compute kernel running."),
    Column("exposed_comm_ns", "int64", "ns", "Communication with no compute kernel running."),
    Column("hidden_comm_ns", "int64", "ns", "Communication under compute; part of compute_ns."),
    Column("exposed_memory_ns", "int64", "ns", "Copies and sets with nothing else running."),
    Column("idle_ns", "int64", "ns", "Nothing running on the device."),
    Column("counted", "bool", "", "Used in statistics: not the first step of a capture, not cut."),
)


@dataclass(frozen=True, slots=True, eq=False)
class BreakdownResult:
    """Where each step of each rank went; ratios are over counted steps."""

    per_step: pd.DataFrame
    step_p50_ns: int
    compute_ratio: float
    exposed_comm_ratio: float
    exposed_memory_ratio: float
    idle_ratio: float
    findings: tuple[Finding, ...]


def analyze(run: Run) -> BreakdownResult:
    """Break every step down.

    Raises:
        MissingDataError: no rank has device work inside a step.
    """
    frames = [_per_step(trace, *item) for trace in run.traces for item in devices(trace)]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        raise MissingDataError(why_no_device_work(run))
    per_step = pd.concat(frames, ignore_index=True)
    counted = per_step[per_step.counted]
    total = int(counted.step_ns.sum())
    ratios = {
        part: float(counted[f"{part}_ns"].sum() / total) if total else 0.0
        for part in ("compute", "exposed_comm", "exposed_memory", "idle")
    }
    return BreakdownResult(
        per_step=per_step,
        step_p50_ns=int(counted.step_ns.median()),
        compute_ratio=ratios["compute"],
        exposed_comm_ratio=ratios["exposed_comm"],
        exposed_memory_ratio=ratios["exposed_memory"],
        idle_ratio=ratios["idle"],
        findings=_findings(run, counted),
    )


def _per_step(trace: RankTrace, device: int, activity: Activity) -> pd.DataFrame:
    """One row per step of one device of one rank."""
    compute, communication, memory = activity
    busy = union(
        np.concatenate((compute.starts, communication.starts)),
        np.concatenate((compute.ends, communication.ends)),
    )
    start, end = trace.steps.start_ns, trace.steps.end_ns
    step_ns = end - start
    compute_ns = covered_within(compute, start, end)
    exposed_ns = covered_within(subtract(communication, compute), start, end)
    memory_ns = covered_within(subtract(memory, busy), start, end)
    count = len(trace.steps)
    return table(
        PER_STEP,
        {
            "rank": np.full(count, trace.rank),
            "device": np.full(count, device),
            "step": trace.steps.number,
            "step_ns": step_ns,
            "compute_ns": compute_ns,
            "exposed_comm_ns": exposed_ns,
            "hidden_comm_ns": covered_within(communication, start, end) - exposed_ns,
            "exposed_memory_ns": memory_ns,
            "idle_ns": step_ns - compute_ns - exposed_ns - memory_ns,
            "counted": trace.statistic_steps(),
        },
    )


def _findings(run: Run, counted: pd.DataFrame) -> tuple[Finding, ...]:
    """Idle and copying time, each as a share of the step over all ranks."""
    on_cpu = all(trace.device_type == "cpu" for trace in run.traces)
    total = int(counted.step_ns.sum())
    made = []
    for column, what, advice in (
        ("idle_ns", *(_UNATTRIBUTED if on_cpu else _IDLE)),
        ("exposed_memory_ns", *_MEMORY),
    ):
        lost = int(counted[column].sum())
        if not lost:
            continue
        share = lost / total
        by_rank = counted.groupby("rank")[[column, "step_ns"]].sum().eval(f"{column} / step_ns")
        worst = int(by_rank.idxmax())
        made.append(
            Finding(
                analysis="breakdown",
                title=f"{percent(share)} of step time {what}"
                + (
                    f"; rank {worst} has the most ({percent(by_rank[worst])})"
                    if len(by_rank) > 1
                    else ""
                ),
                lost_ns_per_step=lost // len(counted),
                lost_ratio=share,
                ranks=(worst,),
                evidence=f"{len(counted)} steps of {len(by_rank)} rank{'s' * (len(by_rank) > 1)}",
                confidence=Confidence.LOW if on_cpu and column == "idle_ns" else Confidence.EXACT,
                advice=advice,
            )
        )
    return tuple(made)


_IDLE = (
    "has nothing running on the device",
    "look at the host: data loading, synchronisation, many small launches "
    "(CUDA graphs or torch.compile reduce them)",
)
_UNATTRIBUTED = (
    "is in no operator and no transfer (Python, dispatch, waiting for another rank)",
    "use fewer, larger operators; look for a rank that others wait for",
)
_MEMORY = (
    "is copying with nothing else running",
    "pin host memory and copy on a stream of its own, or copy less",
)

ANALYZER = Analyzer(
    name="breakdown",
    question="Where does each step's time go?",
    analyze=analyze,
    result=BreakdownResult,
    tables={"per_step": PER_STEP},
    scalars=(
        Column("step_p50_ns", "int64", "ns", "Median step over ranks and counted steps."),
        Column("compute_ratio", "float64", "ratio", "Share of step time in compute."),
        Column("exposed_comm_ratio", "float64", "ratio", "Share in exposed communication."),
        Column("exposed_memory_ratio", "float64", "ratio", "Share in exposed copies and sets."),
        Column("idle_ratio", "float64", "ratio", "Share with nothing running."),
    ),
)
