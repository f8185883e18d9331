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

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.activity import activity
from tracekit.core.errors import MissingDataError
from tracekit.core.exchange import Dispatches, Matrices, Part, dispatches, matrices
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.membership import resolve
from tracekit.core.robust import Slope, theil_sen
from tracekit.core.run import Run
from tracekit.core.table import Column, Schema
from tracekit.core.trace import RankTrace

Float = npt.NDArray[np.float64]

_UNEVEN = 1.05  # max/mean from which a group is called uneven
_GROUPED_GEMM = re.compile(
    r"group(?:ed)?_?(?:gemm|mm)|GroupProblemShape|moe\w*_?gemm|fused_moe|m_grouped", re.IGNORECASE
)

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


@dataclass(slots=True)
class _Load:
    """What the ranks of one group got in one layer and step; NaN for not known."""

    ranks: tuple[int, ...]
    load: Float
    work: Float
    inferred: npt.NDArray[np.bool_]
    excess: float = 0.0  # Σ over dispatches of max - mean
    counted: bool = True
    lost: float | None = None


Key = tuple[tuple[int, ...], int, int]  # ranks of the group, layer, step number


@dataclass(slots=True)
class _Gathered:
    """All loads of a run, however they became known."""

    source: str
    loads: dict[Key, _Load] = field(default_factory=dict)
    traffic: dict[tuple[int, int], float] = field(default_factory=dict)
    # By backward: (2, k) rows and time of the experts.
    points: dict[bool, list[npt.NDArray[np.int64]]] = field(default_factory=dict)
    inconsistent: int = 0


def analyze(run: Run) -> ExpertsResult:
    """Measure the balance of experts.

    Raises:
        MissingDataError: nothing tells how many tokens each rank's experts got.
    """
    found = _from_splits(run) or _from_counters(run) or _from_kernels(run)
    if found is None:
        raise MissingDataError(_why_not(run))
    slope = _cost(found)
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


def _counted_numbers(trace: RankTrace) -> dict[int, bool]:
    """Step number -> whether it counts."""
    pairs = zip(trace.steps.number.tolist(), trace.statistic_steps().tolist(), strict=True)
    return dict(pairs)


# -- from recorded splits --------------------------------------------------------------------


def _from_splits(run: Run) -> _Gathered | None:
    """Loads, traffic and cost points from dispatches; None where there are none."""
    membership = resolve(run.traces)
    microbatches = _microbatches(run)
    found = _Gathered("splits", points={False: [], True: []})
    parts: dict[tuple[int, ...], list[Part]] = defaultdict(list)
    counts: dict[int, bool] = {}
    work: dict[tuple[int, int, int], float] = {}  # rank, layer, step number
    for place, trace in enumerate(run.traces):
        if len(trace.splits) == 0:
            continue
        compute = activity(trace, np.ones(len(trace.kernels), dtype=np.bool_)).compute
        for number, use in _counted_numbers(trace).items():
            counts[number] = counts.get(number, True) and use
        for item in dispatches(trace, membership.of[place].tolist(), compute, microbatches):
            known = membership.groups[item.group].ranks if item.group >= 0 else ()
            ranks = _members(run, known, trace.rank, item.sent.shape[1])
            if ranks is not None:
                _tell(found, trace, item, work)
                parts[ranks].append(_part(trace, item, ranks.index(trace.rank)))
    for ranks, told in sorted(parts.items()):
        for rows in matrices(len(ranks), told):
            _add(found, ranks, rows, counts)
    for (ranks, layer, number), load in found.loads.items():
        for place, rank in enumerate(ranks):
            load.work[place] = work.get((rank, layer, number), np.nan)
    return found if found.loads else None


def _tell(
    found: _Gathered,
    trace: RankTrace,
    item: Dispatches,
    work: dict[tuple[int, int, int], float],
) -> None:
    """What one rank's dispatches say of the time that rows cost."""
    number = trace.steps.number[item.step]
    use = trace.statistic_steps()[item.step]
    load = item.received.sum(axis=1)
    for backward in (False, True):
        mine = use & (item.backward == backward)
        found.points[backward].append(np.stack((load[mine], item.work_ns[mine])))
    keys, place = np.unique(np.stack((item.layer, number)), axis=1, return_inverse=True)
    sums = np.bincount(place.reshape(-1), item.work_ns)
    for (layer, step), total in zip(keys.T.tolist(), sums.tolist(), strict=True):
        work[trace.rank, layer, step] = work.get((trace.rank, layer, step), 0.0) + total


def _part(trace: RankTrace, item: Dispatches, place: int) -> Part:
    rows = np.flatnonzero(~item.backward)
    return Part(
        place, trace.steps.number[item.step[rows]], item.turn[rows], item.layer[rows],
        item.sent[rows], item.received[rows],
    )  # fmt: skip


def _members(run: Run, ranks: tuple[int, ...], rank: int, size: int) -> tuple[int, ...] | None:
    """Ranks of the group a dispatch goes over; None where they are not known."""
    every = tuple(range(run.topology.world_size or 0))
    for known in (ranks, every, run.ranks):
        if len(known) == size and rank in known:
            return tuple(sorted(known))
    return None


def _microbatches(run: Run) -> int | None:
    batch = run.conditions.get("batch")
    value = batch.get("microbatches") if isinstance(batch, Mapping) else None
    return value if isinstance(value, int) and value > 0 else None


def _add(
    found: _Gathered, ranks: tuple[int, ...], told: Matrices, counts: Mapping[int, bool]
) -> None:
    """Dispatches into the sums of their layers and steps.

    Those that ranks tell differently are not the same on all of them: what they say of
    anyone would be wrong.
    """
    found.inconsistent += int((~told.consistent).sum())
    rows = np.flatnonzero(told.consistent)
    column = told.rows[rows].sum(axis=1)  # NaN where a part is not known
    known = ~np.isnan(column)
    most = np.where(known, column, -np.inf).max(axis=1, initial=0)
    mean = np.where(known, column, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    excess = np.where(known.any(axis=1), most - mean, 0.0)
    keys = np.stack((told.layer[rows], told.number[rows]))
    unique, place = np.unique(keys, axis=1, return_inverse=True)
    place = place.reshape(-1)
    size = len(ranks)
    for number, (layer, step) in enumerate(unique.T.tolist()):
        mine = np.flatnonzero(place == number)
        load = found.loads.setdefault(
            (ranks, layer, step),
            _Load(ranks, np.zeros(size), np.full(size, np.nan), told.missing[rows[mine[0]]], 0.0,
                  counts[step]),
        )  # fmt: skip
        load.load = load.load + column[mine].sum(axis=0)
        load.excess += float(excess[mine].sum())
    use = np.array([counts[step] for step in told.number[rows].tolist()], dtype=np.bool_)
    total = told.rows[rows[use]].sum(axis=0)
    for i, src in enumerate(ranks):
        for j, dst in enumerate(ranks):
            found.traffic[src, dst] = found.traffic.get((src, dst), 0.0) + float(total[i, j])


def _cost(found: _Gathered) -> float | None:
    """Fill in what each load's excess costs; the time of a row, both ways, where it is known."""
    if found.source == "grouped-gemm":
        for load in found.loads.values():
            load.lost = load.excess
        return None
    slopes = [
        slope
        for points in found.points.values()
        if points and (slope := _sure(theil_sen(*np.concatenate(points, axis=1)))) is not None
    ]
    total = sum(slope.value for slope in slopes)
    for load in found.loads.values():
        if load.excess == 0:
            load.lost = 0.0
        elif slopes:
            load.lost = load.excess * total
    return total if slopes else None


def _sure(slope: Slope | None) -> Slope | None:
    """A slope that is certainly above zero."""
    return slope if slope is not None and slope.low > 0 else None


# -- from counters and from kernel times ---------------------------------------------------------


def _groups(run: Run) -> list[tuple[int, ...]]:
    """Expert groups with at least two loaded ranks; all ranks as one where none is named."""
    here = set(run.ranks)
    named = [
        tuple(sorted(group.ranks)) for group in run.topology.groups
        if group.axis == "ep" and len(here & set(group.ranks)) > 1
    ]  # fmt: skip
    return sorted(set(named)) or ([run.ranks] if len(here) > 1 else [])


def _from_counters(run: Run) -> _Gathered | None:
    """Loads from the tokens that each expert counted."""
    found = _Gathered("counters")
    tokens = {
        trace.rank: _sums(trace, _counted_tokens(trace)) for trace in run.traces if len(trace.loads)
    }
    _fill(run, found, tokens)
    return found if found.loads else None


def _counted_tokens(trace: RankTrace) -> Iterator[tuple[int, int, float]]:
    """Layer, step index and tokens of each count inside a step."""
    loads = trace.loads
    step = np.searchsorted(trace.steps.start_ns, loads.at_ns, side="right") - 1
    inside = (step >= 0) & (loads.at_ns <= trace.steps.end_ns[np.maximum(step, 0)])
    rows = zip(loads.layer.tolist(), step.tolist(), loads.tokens.tolist(), strict=True)
    yield from (row for row, use in zip(rows, inside.tolist(), strict=True) if use)


def _from_kernels(run: Run) -> _Gathered | None:
    """Time of grouped matrix products, a stand-in for load."""
    found = _Gathered("grouped-gemm")
    times = {}
    for trace in run.traces:
        wanted = np.array([bool(_GROUPED_GEMM.search(name)) for name in (*trace.names, "")])
        rows = np.flatnonzero(wanted[trace.kernels.name_id] & (trace.kernels.step >= 0))
        if len(rows):
            ns = (trace.kernels.end_ns - trace.kernels.start_ns)[rows]
            step = trace.kernels.step[rows]
            times[trace.rank] = _sums(
                trace, ((-1, s, float(t)) for s, t in zip(step.tolist(), ns.tolist(), strict=True))
            )
    _fill(run, found, times)
    return found if found.loads else None


def _sums(trace: RankTrace, rows: Iterator[tuple[int, int, float]]) -> dict[tuple[int, int], float]:
    """Layer and step number -> sum."""
    out: dict[tuple[int, int], float] = defaultdict(float)
    for layer, step, value in rows:
        out[layer, int(trace.steps.number[step])] += value
    return out


def _fill(
    run: Run, found: _Gathered, values: Mapping[int, Mapping[tuple[int, int], float]]
) -> None:
    """Loads of every group, layer and step that at least two of its ranks know."""
    counts = {trace.rank: _counted_numbers(trace) for trace in run.traces}
    for ranks in _groups(run):
        told = [rank for rank in ranks if rank in values]
        keys = sorted({key for rank in told for key in values[rank]})
        for layer, number in keys if len(told) > 1 else ():
            load = np.array([values.get(rank, {}).get((layer, number), np.nan) for rank in ranks])
            known = load[~np.isnan(load)]
            if len(known) < 2 or known.mean() <= 0:
                continue
            by_time = found.source == "grouped-gemm"
            found.loads[ranks, layer, number] = _Load(
                ranks,
                load,
                load if by_time else np.full(len(ranks), np.nan),
                np.zeros(len(ranks), dtype=np.bool_),
                float(known.max() - known.mean()),
                all(counts[rank].get(number, True) for rank in told),
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


def _usable(found: _Gathered) -> Iterator[tuple[tuple[int, ...], int, int, _Load]]:
    for (ranks, layer, number), load in sorted(found.loads.items()):
        if not np.isnan(load.load).all():
            yield ranks, layer, number, load


def _per_layer(found: _Gathered) -> pd.DataFrame:
    rows = []
    for ranks, layer, number, load in _usable(found):
        by_time = found.source == "grouped-gemm"
        tokens = [None] * len(ranks) if by_time else _whole(load.load)
        for place, (rank, count, work) in enumerate(
            zip(ranks, tokens, _whole(load.work), strict=True)
        ):
            rows.append(
                (layer, number, rank, _name(ranks), count, work, _ratio(load.load), load.lost,
                 bool(load.inferred[place]), load.counted)
            )  # fmt: skip
    return _frame(PER_LAYER, rows)


def _balance(found: _Gathered) -> pd.DataFrame:
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


def _traffic(found: _Gathered) -> pd.DataFrame:
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
    if numbers.source == "grouped-gemm":
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
            if numbers.source == "grouped-gemm" or not lost
            else Confidence.HIGH,
            advice="balance the routing (auxiliary loss, bias, capacity), or place hot experts "
            "on different ranks or twice",
        ),
    )


_SOURCES: Mapping[str, str] = {
    "splits": "from the splits of dispatches",
    "counters": "from the tokens each expert counted",
    "grouped-gemm": "from kernel times, for want of token counts",
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
