"""How many tokens the experts of each rank got, however a run tells it.

Three sources, the best first: the splits of the exchanges, the runner's own counters, and
the time of grouped matrix products, which stands in for tokens.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracekit.core.activity import activity
from tracekit.core.exchange import Dispatches, Matrices, Part, dispatches, matrices
from tracekit.core.membership import resolve
from tracekit.core.robust import Slope, theil_sen
from tracekit.core.run import Run
from tracekit.core.trace import RankTrace

Float = npt.NDArray[np.float64]
GROUPED_GEMM = "grouped-gemm"  # the source that gives times instead of tokens

_PRODUCTS = re.compile(
    r"group(?:ed)?_?(?:gemm|mm)|GroupProblemShape|moe\w*_?gemm|fused_moe|m_grouped", re.IGNORECASE
)


@dataclass(slots=True)
class Load:
    """What the ranks of one group got in one layer and step.

    Attributes:
        ranks: members of the group.
        load: (ranks,) rows, or ns where the source is GROUPED_GEMM; NaN for not known.
        work: (ranks,) ns that their experts computed; NaN for not known.
        inferred: (ranks,) whether the load follows from what the others sent.
        excess: sum over dispatches of max - mean, in the load's unit.
        counted: the step counts in statistics.
        lost: ns that perfect balance would save; None where not measurable.
    """

    ranks: tuple[int, ...]
    load: Float
    work: Float
    inferred: npt.NDArray[np.bool_]
    excess: float = 0.0
    counted: bool = True
    lost: float | None = None


Key = tuple[tuple[int, ...], int, int]  # ranks of the group, layer, step number


@dataclass(slots=True)
class Gathered:
    """All loads of a run, however they became known.

    Attributes:
        source: "splits", "counters" or GROUPED_GEMM.
        loads: by group, layer and step number.
        traffic: rows by source and destination rank, summed over counted steps.
        points: by backward or not, (2, k) int64 rows and ns of the experts' work.
        inconsistent: dispatches of which sender and receiver tell different rows.
    """

    source: str
    loads: dict[Key, Load] = field(default_factory=dict)
    traffic: dict[tuple[int, int], float] = field(default_factory=dict)
    points: dict[bool, list[npt.NDArray[np.int64]]] = field(default_factory=dict)
    inconsistent: int = 0


def gathered(run: Run) -> Gathered | None:
    """The loads of all expert groups, layers and steps; None where nothing tells them."""
    return _from_splits(run) or _from_counters(run) or _from_kernels(run)


def _counted_numbers(trace: RankTrace) -> dict[int, bool]:
    """Step number -> whether it counts."""
    pairs = zip(trace.steps.number.tolist(), trace.statistic_steps().tolist(), strict=True)
    return dict(pairs)


# -- from recorded splits --------------------------------------------------------------------


def _from_splits(run: Run) -> Gathered | None:
    """Loads, traffic and cost points from dispatches; None where there are none."""
    membership = resolve(run.traces)
    microbatches = _microbatches(run)
    found = Gathered("splits", points={False: [], True: []})
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
    found: Gathered,
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
    found: Gathered, ranks: tuple[int, ...], told: Matrices, counts: Mapping[int, bool]
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
            Load(ranks, np.zeros(size), np.full(size, np.nan), told.missing[rows[mine[0]]], 0.0,
                  counts[step]),
        )  # fmt: skip
        load.load = load.load + column[mine].sum(axis=0)
        load.excess += float(excess[mine].sum())
    use = np.array([counts[step] for step in told.number[rows].tolist()], dtype=np.bool_)
    total = told.rows[rows[use]].sum(axis=0)
    for i, src in enumerate(ranks):
        for j, dst in enumerate(ranks):
            found.traffic[src, dst] = found.traffic.get((src, dst), 0.0) + float(total[i, j])


def cost(found: Gathered) -> float | None:
    """Fill in what each load's excess costs.

    Returns:
        ns per row, forward and backward together; None where no slope is certain.
    """
    if found.source == GROUPED_GEMM:
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


def _from_counters(run: Run) -> Gathered | None:
    """Loads from the tokens that each expert counted."""
    found = Gathered("counters")
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


def _from_kernels(run: Run) -> Gathered | None:
    """Time of grouped matrix products, a stand-in for load."""
    found = Gathered(GROUPED_GEMM)
    times = {}
    for trace in run.traces:
        wanted = np.array([bool(_PRODUCTS.search(name)) for name in (*trace.names, "")])
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


def _fill(run: Run, found: Gathered, values: Mapping[int, Mapping[tuple[int, int], float]]) -> None:
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
            by_time = found.source == GROUPED_GEMM
            found.loads[ranks, layer, number] = Load(
                ranks,
                load,
                load if by_time else np.full(len(ranks), np.nan),
                np.zeros(len(ranks), dtype=np.bool_),
                float(known.max() - known.mean()),
                all(counts[rank].get(number, True) for rank in told),
            )
