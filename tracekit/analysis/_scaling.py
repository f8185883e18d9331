"""One job at several world sizes: how much of each added rank is used.

Definition: throughput = work per step / median step, the work being the global batch
of the conditions (the same for all runs where it is not recorded, which is said).
``speedup`` = throughput / throughput of the smallest run; ``efficiency`` = speedup /
(ranks / ranks of the smallest run), with a 95 % bootstrap interval over steps. The
shares of a step are those of the breakdown, the bubble of the pipeline and the waste
of the stragglers, where those could be measured.
Limits: world size, its mesh degrees, hosts and the batch may differ between runs; any
other difference in what must be held forbids the comparison unless forced. A share
that grows tells where efficiency goes, not that nothing else would take its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Outcome, table
from tracekit.core.conditions import Difference, Status, differences
from tracekit.core.errors import MissingDataError
from tracekit.core.run import Run
from tracekit.core.table import Column, Schema

Float = npt.NDArray[np.float64]

RESAMPLES = 4_000
# What grows with the number of ranks, by nature.
SCALED = (
    "parallel.world_size", "parallel.nodes", "parallel.dp", "parallel.fsdp", "parallel.tp",
    "parallel.pp", "parallel.ep", "parallel.cp", "mesh", "batch", "hardware.count",
)  # fmt: skip

PER_RUN = Schema(
    Column("run", "str", "", "Name of the run."),
    Column("world_size", "int64", "count", "Ranks of the job."),
    Column("hosts", "int64", "count", "Hosts of the loaded ranks; 0 when not recorded."),
    Column("mesh", "str", "", "Degrees of parallelism."),
    Column("step_ns", "float64", "ns", "Median step over ranks and counted steps."),
    Column("n", "int64", "count", "Counted steps."),
    Column("work", "float64", "count", "Samples per step; 1 for every run when not recorded."),
    Column("per_second", "float64", "", "Work per second."),
    Column("tokens_per_second_per_rank", "Float64", "", "Null without batch and sequence length."),
    Column("speedup", "float64", "", "Throughput over that of the smallest run."),
    Column("efficiency_ratio", "float64", "ratio", "Speed-up per factor of added ranks."),
    Column("low_ratio", "float64", "ratio", "Lower end of its 95 % interval."),
    Column("high_ratio", "float64", "ratio", "Upper end of its 95 % interval."),
    Column("compute_ratio", "Float64", "ratio", "Share of step time in compute."),
    Column("exposed_comm_ratio", "Float64", "ratio", "Share in exposed communication."),
    Column("idle_ratio", "Float64", "ratio", "Share with nothing running."),
    Column("bubble_ratio", "Float64", "ratio", "Share of pipeline bubbles; null without them."),
    Column("straggler_ratio", "Float64", "ratio", "Share lost to stragglers; null if unknown."),
)
_SHARES = (
    ("compute_ratio", "breakdown", "compute_ratio"),
    ("exposed_comm_ratio", "breakdown", "exposed_comm_ratio"),
    ("idle_ratio", "breakdown", "idle_ratio"),
    ("bubble_ratio", "pipeline", "bubble_ratio"),
    ("straggler_ratio", "stragglers", "waste_ratio"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One run of the series with the outcomes of its analyses."""

    run: Run
    outcomes: Sequence[Outcome]

    def scalar(self, analysis: str, name: str) -> float | None:
        """A number of one analysis; None where it was not measured."""
        for outcome in self.outcomes:
            known = {column.name for column in outcome.analyzer.scalars}
            if outcome.analyzer.name == analysis and outcome.result is not None and name in known:
                value = getattr(outcome.result, name)
                return None if pd.isna(value) else float(value)
        return None

    @property
    def size(self) -> int:
        """Ranks of the job, else of those that are loaded."""
        return self.run.topology.world_size or len(self.run.traces)


@dataclass(frozen=True, slots=True, eq=False)
class ScalingResult:
    """The runs by size; efficiencies are void where ``comparable`` is false.

    Attributes:
        kind: "strong" (same work for all), "weak" (work grows with the ranks), "mixed",
            or "assumed strong" where the work is not recorded.
        conditions: differences of each run from the smallest one.
    """

    per_run: pd.DataFrame
    kind: str
    conditions: tuple[tuple[str, Difference], ...]
    comparable: bool
    forced: bool

    @property
    def obstacles(self) -> tuple[tuple[str, Difference], ...]:
        """Differences that forbid the comparison, with the run that has them."""
        return tuple(item for item in self.conditions if item[1].status is Status.DIFFERS)


def scaling(
    members: Sequence[Member], *, force: bool = False, allowed: Sequence[str] = ()
) -> ScalingResult:
    """Compare runs of one job at different world sizes.

    Args:
        members: at least two sizes.
        force: compare over unequal conditions, too; the result says so.
        allowed: further condition fields, or groups of them, that differ on purpose.

    Raises:
        MissingDataError: fewer than two world sizes, or a run without steps.
    """
    ordered = sorted(members, key=lambda member: (member.size, member.run.name))
    if len({member.size for member in ordered}) < 2:
        raise MissingDataError("scaling needs runs of at least two world sizes")
    steps = [_steps(member) for member in ordered]
    smallest = ordered[0]
    conditions = tuple(
        (member.run.name, item)
        for member in ordered[1:]
        for item in differences(smallest.run, member.run, (*SCALED, *allowed))
        if item.status is not Status.NOTED
    )
    obstacles = any(item.status is Status.DIFFERS for _, item in conditions)
    work, kind = _work(ordered)
    return ScalingResult(
        per_run=_per_run(ordered, steps, work),
        kind=kind,
        conditions=conditions,
        comparable=not obstacles,
        forced=obstacles and force,
    )


def _steps(member: Member) -> Float:
    """(steps,) length of each counted step, the median over ranks, in ns."""
    lengths: dict[int, list[int]] = {}
    for trace in member.run.traces:
        use = trace.statistic_steps()
        spans = (trace.steps.end_ns - trace.steps.start_ns)[use]
        for number, length in zip(trace.steps.number[use].tolist(), spans.tolist(), strict=True):
            lengths.setdefault(number, []).append(length)
    if not lengths:
        raise MissingDataError(f"{member.run.name}: no step was recorded; call prof.step()")
    return np.array([np.median(lengths[number]) for number in sorted(lengths)])


def _work(members: Sequence[Member]) -> tuple[list[float], str]:
    """Samples per step of each run, and what kind of scaling that makes."""
    found = [_condition(member.run, "batch", "global") for member in members]
    known = [float(value) for value in found if isinstance(value, (int, float)) and value > 0]
    if len(known) < len(members):
        return [1.0] * len(members), "assumed strong"
    per_rank = {value / member.size for value, member in zip(known, members, strict=True)}
    if len(set(known)) == 1:
        return known, "strong"
    return known, "weak" if len(per_rank) == 1 else "mixed"


def _condition(run: Run, group: str, field: str) -> object:
    values = run.conditions.get(group)
    return values.get(field) if isinstance(values, dict) else None


def _per_run(
    members: Sequence[Member], steps: Sequence[Float], work: Sequence[float]
) -> pd.DataFrame:
    rates = [done / np.median(length) for done, length in zip(work, steps, strict=True)]
    rng = np.random.default_rng(0)
    drawn = [done / _medians(rng, length) for done, length in zip(work, steps, strict=True)]
    rows = []
    for place, member in enumerate(members):
        growth = member.size / members[0].size
        efficiency = drawn[place] / drawn[0] / growth
        # The smallest run is what the others are measured by.
        low, high = np.quantile(efficiency, (0.025, 0.975)) if place else (1.0, 1.0)
        hosts = {trace.host for trace in member.run.traces if trace.host}
        axes = {axis: size for axis, size in member.run.topology.axes.items() if size > 1}
        per_second = rates[place] * 1e9
        rows.append(
            {
                "run": member.run.name,
                "world_size": member.size,
                "hosts": len(hosts),
                "mesh": ", ".join(f"{axis} {size}" for axis, size in axes.items()),
                "step_ns": float(np.median(steps[place])),
                "n": len(steps[place]),
                "work": work[place],
                "per_second": per_second,
                "tokens_per_second_per_rank": _tokens(member, per_second),
                "speedup": rates[place] / rates[0],
                "efficiency_ratio": rates[place] / rates[0] / growth,
                "low_ratio": float(low),
                "high_ratio": float(high),
                **{name: member.scalar(analysis, field) for name, analysis, field in _SHARES},
            }
        )
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in PER_RUN.names}
    return table(PER_RUN, columns)


def _medians(rng: np.random.Generator, data: Float) -> Float:
    """(RESAMPLES,) medians of the steps drawn anew with replacement."""
    out: Float = np.median(data[rng.integers(0, len(data), (RESAMPLES, len(data)))], axis=1)
    return out


def _tokens(member: Member, samples_per_second: float) -> float | None:
    """Tokens per second and rank, where the conditions hold batch and sequence length."""
    batch = _condition(member.run, "batch", "global")
    length = _condition(member.run, "workload", "seq")
    if not isinstance(batch, (int, float)) or not isinstance(length, (int, float)):
        return None
    return samples_per_second * length / member.size
