"""Two runs of one job: what became slower, what faster, beyond the runs' own noise.

Definition: a metric has one value per step and rank; over the ranks of a step it is
averaged (for the step itself the median, for the slowest rank the highest is taken),
and a run's value is the median over counted steps. ``difference = new - base``, so a
positive time is slower, with a 95 % bootstrap interval over steps. The floor is what a
run's median may move by itself:
the 95th percentile of the difference between the medians of two random halves of its
steps, the larger one of both runs, and at least 1 % of the base's step. Halves hold
half the steps, so the floor is 1.4 times what two equal runs would differ by: on equal
runs 2 % of the verdicts are a regression with 4 steps, 0.5 % from 8 steps on.
``regression``: the interval lies above zero and the difference above the floor;
``improvement``: the same below; ``equivalent``: the interval lies within plus and minus
the floor; else ``inconclusive``, as always with fewer than 4 counted steps in a run.
Limits: steps of one run do not show what differs from launch to launch (placement,
clocks, neighbours on the machine); runs given as repeats of the base add that to the
floor. Unequal conditions are named and forbid a verdict unless forced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Outcome, table
from tracekit.core.conditions import Difference, Status, differences
from tracekit.core.run import Run
from tracekit.core.table import Column, Schema

Float = npt.NDArray[np.float64]

LEAST_STEPS = 4
LEAST_MARGIN = 0.01  # of the base's step
RESAMPLES = 4_000
SPLITS = 1_000
MANY_STEPS = 4_000  # of a run; more are thinned evenly, which the interval does not feel


class Verdict(str, Enum):
    """What a difference between two runs amounts to."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that every step of every rank has.

    Attributes:
        table: "analysis.table" that holds it.
        over: what is taken over the ranks of a step: "mean", "max" or "median".
        parts: rows of one rank and step are parts of a sum (layers), not devices.
    """

    name: str
    label: str
    table: str
    column: str
    over: str = "mean"
    parts: bool = False


METRICS = (
    Metric("step", "step", "breakdown.per_step", "step_ns", "median"),
    Metric("compute", "compute", "breakdown.per_step", "compute_ns"),
    Metric("compute_max", "compute of the slowest rank", "breakdown.per_step", "compute_ns", "max"),
    Metric("exposed_comm", "exposed communication", "breakdown.per_step", "exposed_comm_ns"),
    Metric("exposed_memory", "exposed memory copies", "breakdown.per_step", "exposed_memory_ns"),
    Metric("idle", "idle", "breakdown.per_step", "idle_ns"),
    Metric("bubble", "pipeline bubble", "pipeline.per_stage", "bubble_ns"),
    Metric("host_bound", "waiting for the host", "launch.per_step", "host_bound_ns"),
    Metric("dataloader", "data loading", "launch.per_step", "dataloader_ns"),
    Metric("gc", "garbage collection", "launch.per_step", "gc_ns"),
    Metric(
        "expert_imbalance", "expert imbalance", "experts.per_layer", "lost_ns", "max", parts=True
    ),
)

VERDICTS = Schema(
    Column("metric", "str", "", "Name of the metric."),
    Column("label", "str", "", "The metric in words."),
    Column("base_ns", "float64", "ns", "Median over the counted steps of the base."),
    Column("new_ns", "float64", "ns", "Median over the counted steps of the new run."),
    Column("difference_ns", "float64", "ns", "new - base: positive is slower."),
    Column("low_ns", "float64", "ns", "Lower end of its 95 % interval."),
    Column("high_ns", "float64", "ns", "Upper end of its 95 % interval."),
    Column("change_ratio", "Float64", "ratio", "difference / base; null where the base has none."),
    Column("noise_ns", "float64", "ns", "What a run's median moves by itself, or 1 % of a step."),
    Column("n_base", "int64", "count", "Counted steps of the base."),
    Column("n_new", "int64", "count", "Counted steps of the new run."),
    Column("verdict", "str", "", "regression, improvement, equivalent or inconclusive."),
)
PER_RANK = Schema(
    Column("rank", "int32", "", "Global rank, in both runs."),
    Column("metric", "str", "", "Name of the metric."),
    Column("base_ns", "float64", "ns", "Median over the counted steps of the base."),
    Column("new_ns", "float64", "ns", "Median over the counted steps of the new run."),
    Column("difference_ns", "float64", "ns", "new - base: positive is slower."),
)
DETAILS = Schema(
    Column("what", "str", "", "Kernel, or operation with axis and size."),
    Column("kind", "str", "", "kernel, or collective."),
    Column("base_ns", "Float64", "ns", "In the base; null where it does not occur."),
    Column("new_ns", "Float64", "ns", "In the new run; null where it does not occur."),
    Column("difference_ns", "Float64", "ns", "new - base: positive is slower."),
)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One side of a comparison: a run with the outcomes of its analyses."""

    run: Run
    outcomes: Sequence[Outcome]

    def frame(self, name: str) -> pd.DataFrame | None:
        """The table "analysis.table", if that analysis has a result."""
        analysis, _, wanted = name.partition(".")
        for outcome in self.outcomes:
            if outcome.analyzer.name == analysis and outcome.result is not None:
                return outcome.tables.get(wanted)
        return None


@dataclass(frozen=True, slots=True, eq=False)
class CompareResult:
    """The comparison of two runs; ``verdicts`` are void where ``comparable`` is false."""

    base: str
    new: str
    conditions: tuple[Difference, ...]
    comparable: bool
    forced: bool
    verdicts: pd.DataFrame
    per_rank: pd.DataFrame
    details: pd.DataFrame

    @property
    def obstacles(self) -> tuple[Difference, ...]:
        """Differences that forbid the comparison."""
        return tuple(item for item in self.conditions if item.status is Status.DIFFERS)

    @property
    def regressions(self) -> tuple[str, ...]:
        """Labels of the metrics that regressed."""
        found = self.verdicts[self.verdicts["verdict"] == Verdict.REGRESSION.value]
        return tuple(found["label"])


def compare(
    base: Subject,
    new: Subject,
    *,
    force: bool = False,
    allowed: Sequence[str] = (),
    repeats: Sequence[Subject] = (),
) -> CompareResult:
    """Compare two runs.

    Args:
        base: what is compared with.
        new: what is compared.
        force: give verdicts over unequal conditions, too; the result says so.
        allowed: condition fields, or groups of them, that differ on purpose.
        repeats: further runs of the base, whose differences from it are noise.
    """
    conditions = differences(base.run, new.run, allowed)
    obstacles = any(item.status is Status.DIFFERS for item in conditions)
    names = (base.run.name, new.run.name)
    if names[0] == names[1]:
        names = (f"{names[0]} (base)", f"{names[1]} (new)")
    return CompareResult(
        base=names[0],
        new=names[1],
        conditions=conditions,
        comparable=not obstacles,
        forced=obstacles and force,
        verdicts=_verdicts(base, new, repeats, judged=force or not obstacles),
        per_rank=_per_rank(base, new),
        details=_details(base, new),
    )


# -- values of a run -----------------------------------------------------------------


def counted_steps(run: Run) -> frozenset[tuple[int, int]]:
    """(rank, step number) of every step that counts in statistics."""
    return frozenset(
        (trace.rank, int(number))
        for trace in run.traces
        for number in trace.steps.number[trace.statistic_steps()]
    )


def values(subject: Subject, metric: Metric, ranks: frozenset[int]) -> pd.DataFrame:
    """One row per counted step, one column per rank; empty where the metric is not measured."""
    frame = subject.frame(metric.table)
    if frame is None or not {"rank", "step", metric.column} <= set(frame.columns):
        return pd.DataFrame()
    use = counted_steps(subject.run)
    keys = zip(frame["rank"].tolist(), frame["step"].tolist(), strict=True)
    frame = frame[[rank in ranks and (rank, step) in use for rank, step in keys]]
    grouped = frame.assign(value=frame[metric.column].astype(float)).groupby(["step", "rank"])
    found = grouped["value"].sum() if metric.parts else grouped["value"].mean()
    return found.unstack("rank")


def per_step(subject: Subject, metric: Metric, ranks: frozenset[int]) -> Float:
    """(steps,) the metric of each counted step, over ranks."""
    found = values(subject, metric, ranks)
    if found.empty:
        return np.empty(0)
    over = {"mean": found.mean, "max": found.max, "median": found.median}[metric.over](axis=1)
    out: Float = over.dropna().to_numpy(dtype=np.float64)
    return out[:: -(-len(out) // MANY_STEPS)] if len(out) else out


# -- verdicts ------------------------------------------------------------------------


def _verdicts(
    base: Subject, new: Subject, repeats: Sequence[Subject], *, judged: bool
) -> pd.DataFrame:
    ranks = _common_ranks(base, new)
    steps = per_step(base, METRICS[0], ranks)
    margin = LEAST_MARGIN * float(np.median(steps)) if len(steps) else 0.0
    rows = []
    for metric in METRICS:
        left, right = (per_step(side, metric, ranks) for side in (base, new))
        # A part that neither run has is no news.
        if len(left) and len(right) and (left.any() or right.any()):
            again = [per_step(side, metric, ranks) for side in repeats]
            rows.append(
                {"metric": metric.name, "label": metric.label}
                | _row(left, right, again, margin, judged=judged)
            )
    if all(trace.device_type == "cpu" for side in (base, new) for trace in side.run.traces):
        # Without device work, the time of no operator is not known to be idle.
        rows = [
            row | ({"label": "unattributed"} if row["metric"] == "idle" else {}) for row in rows
        ]
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in VERDICTS.names}
    return table(VERDICTS, columns)


def _row(
    left: Float,
    right: Float,
    again: Iterable[Float],
    margin: float,
    *,
    judged: bool,
) -> dict[str, object]:
    base, new = float(np.median(left)), float(np.median(right))
    low, high = interval(left, right)
    moved = [abs(float(np.median(other)) - base) for other in again if len(other)]
    noise = float(max(own_noise(left), own_noise(right), margin, *moved))
    enough = min(len(left), len(right)) >= LEAST_STEPS
    verdict = judge(new - base, low, high, noise) if judged and enough else Verdict.INCONCLUSIVE
    return {
        "base_ns": base,
        "new_ns": new,
        "difference_ns": new - base,
        "low_ns": low,
        "high_ns": high,
        "change_ratio": (new - base) / base if base else None,
        "noise_ns": noise,
        "n_base": len(left),
        "n_new": len(right),
        "verdict": verdict.value,
    }


def judge(difference: float, low: float, high: float, noise: float) -> Verdict:
    """The verdict on a difference with its interval, for what is better when low."""
    if low > 0 and difference > noise:
        return Verdict.REGRESSION
    if high < 0 and difference < -noise:
        return Verdict.IMPROVEMENT
    if -noise <= low and high <= noise:
        return Verdict.EQUIVALENT
    return Verdict.INCONCLUSIVE


def interval(left: Float, right: Float) -> tuple[float, float]:
    """95 % bootstrap interval of the difference of medians, right - left.

    Each run's steps are drawn anew with replacement; the seed is fixed, so the same
    steps give the same interval. Source: Efron and Tibshirani, An Introduction to the
    Bootstrap, chapter 13 (percentile interval).
    """
    rng = np.random.default_rng(0)
    drawn = _medians_of_draws(rng, right) - _medians_of_draws(rng, left)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def _medians_of_draws(rng: np.random.Generator, data: Float) -> Float:
    # Drawn in pieces: 4,000 draws of 4,000 steps at once would take 128 MB.
    size = max(1, 2_000_000 // len(data))
    parts = [
        np.median(data[rng.integers(0, len(data), (min(size, RESAMPLES - done), len(data)))], 1)
        for done in range(0, RESAMPLES, size)
    ]
    out: Float = np.concatenate(parts)
    return out


def own_noise(data: Float) -> float:
    """How far the medians of two random halves of a run's steps lie apart: 95th percentile."""
    half = len(data) // 2
    if half == 0:
        return 0.0
    rng = np.random.default_rng(0)
    order = np.argsort(rng.random((SPLITS, len(data))), axis=1)
    first, second = data[order[:, :half]], data[order[:, half : 2 * half]]
    apart = np.abs(np.median(first, axis=1) - np.median(second, axis=1))
    return float(np.quantile(apart, 0.95))


# -- where it changed ----------------------------------------------------------------


def _common_ranks(base: Subject, new: Subject) -> frozenset[int]:
    """Ranks both runs have; all of either where they share none, as with one rank each."""
    common = frozenset(base.run.ranks) & frozenset(new.run.ranks)
    return common or frozenset(base.run.ranks) | frozenset(new.run.ranks)


def _per_rank(base: Subject, new: Subject) -> pd.DataFrame:
    """The parts of a step, rank by rank."""
    ranks = _common_ranks(base, new)
    frames = [table(PER_RANK, dict.fromkeys(PER_RANK.names, ()))]
    for metric in METRICS:
        if metric.table != "breakdown.per_step" or metric.over == "max":
            continue
        left, right = (values(side, metric, ranks) for side in (base, new))
        if left.empty or right.empty:
            continue
        both = pd.DataFrame({"base": left.median(), "new": right.median()}).dropna()
        columns = {
            "rank": both.index.to_numpy(),
            "metric": [metric.name] * len(both),
            "base_ns": both["base"].to_numpy(),
            "new_ns": both["new"].to_numpy(),
            "difference_ns": (both["new"] - both["base"]).to_numpy(),
        }
        frames.append(table(PER_RANK, columns))
    return pd.concat(frames, ignore_index=True)


def _details(base: Subject, new: Subject) -> pd.DataFrame:
    """Kernels by time per step of one rank, collectives by median transfer."""
    frames = [table(DETAILS, dict.fromkeys(DETAILS.names, ()))]
    kernels = [_kernels(side) for side in (base, new)]
    collectives = [_collectives(side) for side in (base, new)]
    for kind, (left, right) in (("kernel", kernels), ("collective", collectives)):
        both = pd.DataFrame({"base": left, "new": right}, dtype="Float64")
        apart = both["new"].fillna(0.0) - both["base"].fillna(0.0)
        if kind == "collective":  # a latency that is absent is not a latency of zero
            apart = both["new"] - both["base"]
        order = apart.abs().sort_values(ascending=False, kind="stable").index
        columns = {
            "what": list(order),
            "kind": [kind] * len(order),
            "base_ns": both["base"].loc[order].array,
            "new_ns": both["new"].loc[order].array,
            "difference_ns": apart.loc[order].array,
        }
        frames.append(table(DETAILS, columns))
    return pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)


def _kernels(side: Subject) -> pd.Series:
    """Time of each kernel per counted step and rank."""
    frame = side.frame("kernels.per_kernel")
    if frame is None or not {"kernel", "total_ns"} <= set(frame.columns):
        return pd.Series(dtype=float)
    windows = max(1, len(counted_steps(side.run)))
    return frame.groupby("kernel")["total_ns"].sum().astype(float) / windows


def _collectives(side: Subject) -> pd.Series:
    """Median transfer of each operation, axis and size."""
    frame = side.frame("collectives.latency")
    if frame is None or not {"op", "axis", "bytes", "transfer_p50_ns"} <= set(frame.columns):
        return pd.Series(dtype=float)
    keys = [
        f"{op} over {axis}, {size} bytes"
        for op, axis, size in zip(frame["op"], frame["axis"], frame["bytes"], strict=True)
    ]
    return frame["transfer_p50_ns"].astype(float).groupby(np.array(keys, dtype=object)).median()
