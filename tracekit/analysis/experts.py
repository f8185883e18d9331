"""Experts: how evenly tokens are spread over the ranks that hold experts, and what that costs.

Definition: M[i, j] = rows that rank i sends to rank j in a dispatch, from the recorded
splits of its all_to_all, checked against what j says it received; load of j = column
sum, over the microbatches of a step. Per layer and step, over the ranks of one expert
group: max/mean, coefficient of variation, share of the busiest rank, and how often the
same rank is the busiest. What a missing rank gets is known from the others' rows, but
for the part it keeps, which follows where all ranks send equally much.
Time lost to imbalance = slope × (max − mean), summed over dispatches, with the slope of
the experts' compute (between a dispatch and its combine) on load, by Theil-Sen over
ranks, layers and steps, forward and backward apart; null where its 95 % interval
reaches zero. It is what a perfect balance would save on every rank of the group.
Without splits the runner's own counters of each expert serve; without these, the time of
grouped matrix products across ranks does, which is marked (source "grouped-gemm").
Limits: weight gradients that run apart from the dispatch are not in the slope. Padded,
even exchanges do not show where tokens go, nor do kernels that exchange inside themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.errors import MissingDataError
from tracekit.core.expertload import GROUPED_GEMM, Gathered, Load, cost, gathered
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.run import Run
from tracekit.core.table import Column, Schema

Float = npt.NDArray[np.float64]

_UNEVEN = 1.05  # max/mean from which a group is called uneven
_LAYER = Column("layer", "int32", "", "Layer with experts, in order; -1 where it is not known.")
_STEP = Column("step", "int64", "", "Step number.")
_COUNTED = Column("counted", "bool", "", "Used in statistics.")
PER_LAYER = Schema(
    _LAYER,
    _STEP,
    Column("rank", "int32", "", "Global rank that holds experts; it may have no trace."),
    Column("group", "str", "", "First and last rank of its expert group."),
    Column("tokens", "Int64", "count", "Rows its experts got; null where not known."),
    Column("work_ns", "Int64", "ns", "Compute of its experts, forward and backward; null if none."),
    Column("max_over_mean", "Float64", "", "Load of the busiest rank over the group's mean."),
    Column("lost_ns", "Float64", "ns", "What perfect balance would save; null if not measurable."),
    Column("inferred", "bool", "", "Put together from other ranks' traces."),
    _COUNTED,
)
BALANCE = Schema(
    _LAYER,
    _STEP,
    Column("group", "str", "", "First and last rank of the expert group."),
    Column("max_over_mean", "float64", "", "Load of the busiest rank over the group's mean."),
    Column("cv", "float64", "", "Standard deviation of the load over its mean."),
    Column("top_rank", "int32", "", "The busiest rank."),
    Column("top_share", "float64", "ratio", "Its share of the group's load."),
    Column("lost_ns", "Float64", "ns", "What perfect balance would save; null if not measurable."),
    _COUNTED,
)
PERSISTENCE = Schema(
    _LAYER,
    Column("group", "str", "", "First and last rank of the expert group."),
    Column("rank", "int32", "", "The rank that is busiest most often."),
    Column("share", "float64", "ratio", "Counted steps in which it is."),
    Column("n", "int64", "count", "Counted steps."),
)
TRAFFIC = Schema(
    Column("src", "int32", "", "Global rank that sends."),
    Column("dst", "int32", "", "Global rank whose experts get the rows."),
    Column("tokens", "Int64", "count", "Rows in counted steps; null where neither end is known."),
)
PER_EXPERT = Schema(
    _LAYER,
    Column("expert", "int32", "", "Number of the expert in its layer."),
    Column("rank", "int32", "", "Global rank that holds it."),
    Column("tokens", "int64", "count", "Tokens it got in counted steps."),
    Column("share", "float64", "ratio", "Share of all tokens of its layer."),
)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsResult:
    """Balance of the experts; scalars are means over counted layers and steps."""

    per_layer: pd.DataFrame
    balance: pd.DataFrame
    persistence: pd.DataFrame
    traffic: pd.DataFrame
    per_expert: pd.DataFrame
    source: str
    max_over_mean: float
    lost_ns_per_step: float | None
    slope_ns: float | None
    inconsistent_count: int
    findings: tuple[Finding, ...]


def analyze(run: Run) -> ExpertsResult:
    """Measure the balance of experts.

    Raises:
        MissingDataError: nothing tells how many tokens each rank's experts got.
    """
    found = gathered(run)
    if found is None:
        raise MissingDataError(_why_not(run))
    slope = cost(found)
    balance = _balance(found)
    counted = balance[balance.counted]
    lost = None if counted.lost_ns.isna().all() else _lost_per_step(counted)
    result = _Numbers(
        found.source,
        float(counted.max_over_mean.mean()) if len(counted) else 1.0,
        lost,
        slope,
    )
    per_expert = _per_expert(run)
    return ExpertsResult(
        per_layer=_per_layer(found),
        balance=balance,
        persistence=_persistence(counted),
        traffic=_traffic(found),
        per_expert=per_expert,
        source=found.source,
        max_over_mean=result.max_over_mean,
        lost_ns_per_step=lost,
        slope_ns=slope,
        inconsistent_count=found.inconsistent,
        findings=_findings(run, result, counted, per_expert),
    )


class _Numbers(NamedTuple):
    """What the findings say."""

    source: str
    max_over_mean: float
    lost_ns_per_step: float | None
    slope_ns: float | None


def _why_not(run: Run) -> str:
    exchanges = any("all_to_all" in trace.names for trace in run.traces)
    if exchanges:
        return (
            "all_to_alls were recorded, but none with uneven rows each way and back; "
            "record with record_shapes=True, or with `tracekit profile`, which counts tokens"
        )
    return (
        "no exchange of tokens between experts; profile a model with experts and "
        "record_shapes=True, or with `tracekit profile`, which counts tokens"
    )


# -- tables ----------------------------------------------------------------------------------------


def _name(ranks: Sequence[int]) -> str:
    return f"{ranks[0]}–{ranks[-1]}"


def _ratio(load: Float) -> float:
    """max/mean over the known ranks."""
    mean = float(np.nanmean(load))
    return float(np.nanmax(load)) / mean if mean > 0 else 1.0


def _whole(values: Float) -> list[int | None]:
    return [None if np.isnan(value) else round(value) for value in values.tolist()]


def _frame(schema: Schema, rows: Sequence[Sequence[object]]) -> pd.DataFrame:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema.names)
    return table(schema, dict(zip(schema.names, map(list, columns), strict=True)))


def _usable(found: Gathered) -> Iterator[tuple[tuple[int, ...], int, int, Load]]:
    for (ranks, layer, number), load in sorted(found.loads.items()):
        if not np.isnan(load.load).all():
            yield ranks, layer, number, load


def _per_layer(found: Gathered) -> pd.DataFrame:
    rows = []
    for ranks, layer, number, load in _usable(found):
        by_time = found.source == GROUPED_GEMM
        tokens = [None] * len(ranks) if by_time else _whole(load.load)
        for place, (rank, count, work) in enumerate(
            zip(ranks, tokens, _whole(load.work), strict=True)
        ):
            rows.append(
                (layer, number, rank, _name(ranks), count, work, _ratio(load.load), load.lost,
                 bool(load.inferred[place]), load.counted)
            )  # fmt: skip
    return _frame(PER_LAYER, rows)


def _balance(found: Gathered) -> pd.DataFrame:
    rows = []
    for ranks, layer, number, load in _usable(found):
        total, mean = float(np.nansum(load.load)), float(np.nanmean(load.load))
        top = int(np.nanargmax(load.load))
        rows.append(
            (layer, number, _name(ranks), _ratio(load.load),
             float(np.nanstd(load.load)) / mean if mean > 0 else 0.0, ranks[top],
             float(load.load[top]) / total if total else 0.0, load.lost, load.counted)
        )  # fmt: skip
    return _frame(BALANCE, rows)


def _persistence(counted: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (layer, group), frame in counted.groupby(["layer", "group"]):
        times = frame.top_rank.value_counts()
        often = int(times.max())
        rank = int(min(times[times == often].index))
        rows.append((layer, group, rank, often / len(frame), len(frame)))
    return _frame(PERSISTENCE, rows)


def _traffic(found: Gathered) -> pd.DataFrame:
    rows = [
        (src, dst, None if np.isnan(value) else round(value))
        for (src, dst), value in sorted(found.traffic.items())
    ]
    return _frame(TRAFFIC, rows)


def _per_expert(run: Run) -> pd.DataFrame:
    """Tokens of each expert in counted steps, from the runner's counters."""
    total: dict[tuple[int, int, int], int] = defaultdict(int)
    layers: dict[int, int] = defaultdict(int)
    for trace in run.traces:
        loads, use = trace.loads, trace.statistic_steps()
        step = np.searchsorted(trace.steps.start_ns, loads.at_ns, side="right") - 1
        for row in np.flatnonzero(step >= 0).tolist():
            if use[step[row]] and loads.at_ns[row] <= trace.steps.end_ns[step[row]]:
                count, layer = int(loads.tokens[row]), int(loads.layer[row])
                total[layer, int(loads.expert[row]), trace.rank] += count
                layers[layer] += count
    rows = [
        (layer, expert, rank, count, count / layers[layer] if layers[layer] else 0.0)
        for (layer, expert, rank), count in sorted(total.items())
    ]
    return _frame(PER_EXPERT, rows)


# -- findings ------------------------------------------------------------------------------------


def _lost_per_step(counted: pd.DataFrame) -> float:
    """Per step: over layers the sum, over groups, which wait on their own, the mean."""
    by_group = counted.groupby(["group", "step"]).lost_ns.sum()
    return float(by_group.mean())


def _findings(
    run: Run, numbers: _Numbers, counted: pd.DataFrame, per_expert: pd.DataFrame
) -> tuple[Finding, ...]:
    """What the imbalance costs, and who gets most."""
    if numbers.max_over_mean < _UNEVEN or counted.empty:
        return ()
    steps = [
        int(step_ns)
        for trace in run.traces
        for step_ns in (trace.steps.end_ns - trace.steps.start_ns)[trace.statistic_steps()]
    ]
    step_ns = float(np.mean(steps)) if steps else 0.0
    lost = numbers.lost_ns_per_step or 0.0
    share = lost / step_ns if step_ns else 0.0
    top = counted.top_rank.value_counts()
    rank = int(top.index[0])
    times = counted[counted.top_rank == rank]
    who = f"rank {rank} gets {times.top_share.mean() * 100:.3g} % of the tokens of its group"
    if len(per_expert):
        hot = per_expert.loc[per_expert.share.idxmax()]
        who += f", expert {int(hot.expert)} on rank {int(hot['rank'])} {percent(float(hot.share))}"
    if numbers.source == GROUPED_GEMM:
        who = f"rank {rank} spends longest in grouped matrix products"
    cost = f"{percent(share)} of step time is lost to uneven experts" if lost else (
        "experts are uneven, at a cost these traces do not show"
    )  # fmt: skip
    return (
        Finding(
            analysis="experts",
            title=f"{cost}: {who}",
            lost_ns_per_step=round(lost),
            lost_ratio=share,
            ranks=(rank,),
            evidence=f"busiest over mean {numbers.max_over_mean:.3g} in {len(counted)} layers and "
            f"steps, {_SOURCES[numbers.source]}; busiest in {percent(len(times) / len(counted))}",
            confidence=Confidence.LOW
            if numbers.source == GROUPED_GEMM or not lost
            else Confidence.HIGH,
            advice="balance the routing (auxiliary loss, bias, capacity), or place hot experts "
            "on different ranks or twice",
        ),
    )


_SOURCES: Mapping[str, str] = {
    "splits": "from the splits of dispatches",
    "counters": "from the tokens each expert counted",
    GROUPED_GEMM: "from kernel times, for want of token counts",
}

ANALYZER = Analyzer(
    name="experts",
    question="How evenly are tokens spread over experts, and what does that cost?",
    analyze=analyze,
    result=ExpertsResult,
    tables={
        "per_layer": PER_LAYER,
        "balance": BALANCE,
        "persistence": PERSISTENCE,
        "traffic": TRAFFIC,
        "per_expert": PER_EXPERT,
    },
    scalars=(
        Column("source", "str", "", 'Where loads come from: "splits", "counters", "grouped-gemm".'),
        Column("max_over_mean", "float64", "", "Mean of max/mean over counted layers and steps."),
        Column("lost_ns_per_step", "float64", "", "What perfect balance would save, in ns."),
        Column("slope_ns", "float64", "ns", "Time of the experts per row, forward and backward."),
        Column("inconsistent_count", "int64", "count", "Dispatches that two ranks tell apart."),
    ),
)
