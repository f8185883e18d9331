"""What if: the run replayed with the excess of some ranks, links or all removed.

Definitions: ``T`` is the mean over parts of connected ranks of the time from the begin
of the window to its end on the last rank. ``S = T / T_healthy`` with all excess removed
and all other scatter kept, so a run without excess has S = 1. ``S_w``: only the excess of
w kept. ``M_X``: share of the loss that removing X's excess alone recovers.

Source: Lin et al., "Understanding Stragglers in Large Model Training Using What-if
Analysis", OSDI 2025, for S, S_w and M; there all scatter is removed as well, which is
``slowdown_even`` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.excess import Excess
from tracekit.core.program import Program
from tracekit.core.replay import Float, Graph, replay
from tracekit.core.roles import RankSet, Roles
from tracekit.core.stats import median_by

_MOST_OWNERS = 48

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """Results of the replays; times in ns over the whole window.

    Attributes:
        observed_ns, healthy_ns: T as it was, replayed, and with all excess removed.
        truth_ns: T as it was recorded.
        step_ns: (steps,) T of each step, replayed as it was.
        healthy_step_ns: (steps,) the same without excess.
        owners: whose excess was replayed apart: place of a trace, or traces + k for link k.
        alone: S_w of each owner.
        recovered: M of each owner.
        blame_ns: per owner, time the other ranks waited less without its excess.
        sets: M of each set of ranks, in the order given.
        even_ns: T with kernels, gaps and transfers at the median of their class.
        rebalanced_ns: T with every stage's kernels at the mean over stages as well.
    """

    observed_ns: float
    healthy_ns: float
    truth_ns: float
    step_ns: Float
    healthy_step_ns: Float
    owners: tuple[int, ...]
    alone: tuple[float, ...]
    recovered: tuple[float, ...]
    blame_ns: tuple[float, ...]
    sets: tuple[float, ...]
    even_ns: float
    rebalanced_ns: float
    worst_error: float

    @property
    def slowdown(self) -> float:
        """S."""
        return self.observed_ns / self.healthy_ns if self.healthy_ns > 0 else 1.0

    @property
    def error(self) -> float:
        """How far the replay of what was is off what was recorded, as a share."""
        return abs(self.observed_ns / self.truth_ns - 1) if self.truth_ns > 0 else 0.0


def what_if(
    program: Program,
    plan: Graph,
    found: Excess,
    who: Roles,
    clock: Sequence[ClockFit],
    sets: Sequence[RankSet],
    ranks: Sequence[int],
    even: Float,
    rebalanced: Float,
) -> WhatIf:
    """Replay all scenarios at once.

    Args:
        program: the run's window.
        plan: its graph.
        found: the excess to remove.
        who: roles of the ranks.
        clock: for the parts of connected ranks.
        sets: sets of ranks to remove together.
        ranks: global rank of each trace.
        even, rebalanced: (nodes,) work of the two ideals.
    """
    work = program.busy_ns + program.gap_ns
    removed, owner = found.removed_ns, found.owner
    owners = _largest_owners(removed, owner)
    place_of = {rank: place for place, rank in enumerate(ranks)}
    masks = [np.zeros(len(work), dtype=np.bool_), owner >= 0]
    masks += [(owner >= 0) & (owner != number) for number in owners]  # only this one kept
    masks += [owner == number for number in owners]
    wanted = [np.array([place_of[rank] for rank in item.ranks]) for item in sets]
    used = set(np.unique(owner[owner >= 0]).tolist())
    needed = [bool(used & set(places.tolist())) for places in wanted]
    masks += [np.isin(owner, places) for places, use in zip(wanted, needed, strict=True) if use]
    scenarios = np.empty((len(work), len(masks) + 2))
    for column, mask in enumerate(masks):
        scenarios[:, column] = work - np.where(mask, removed, 0.0)
    scenarios[:, -2], scenarios[:, -1] = even, rebalanced
    times = replay(plan, program.begin_ns, scenarios)
    total = _totals(program, times, clock)
    waits = _waits(program, times)
    steps = _per_step(program, times[:, :2], clock)
    observed, healthy = float(total[0]), float(total[1])
    loss = observed - healthy
    count = len(owners)
    kept = total[2 : 2 + count]
    fixed = total[2 + count : 2 + 2 * count]
    m = iter(total[2 + 2 * count : -2])
    shares = [float((observed - next(m)) / loss) if use and loss > 0 else 0.0 for use in needed]
    begin = program.window.bounds_ns
    recorded = _truth(program, clock)
    at = program.at_ns[program.end] - program.window.base_ns
    length = np.maximum(begin[:, -1] - begin[:, 0], 1)
    return WhatIf(
        observed_ns=observed,
        healthy_ns=healthy,
        truth_ns=recorded,
        step_ns=steps[:, 0],
        healthy_step_ns=steps[:, 1],
        owners=tuple(owners),
        alone=tuple((kept / healthy).tolist()) if healthy > 0 else (1.0,) * count,
        recovered=tuple(((observed - fixed) / loss).tolist() if loss > 0 else [0.0] * count),
        blame_ns=tuple(_blame(waits, owners, count, program)),
        sets=tuple(shares),
        even_ns=float(total[-2]),
        rebalanced_ns=float(total[-1]),
        worst_error=float(np.max(np.abs(times[program.end, 0] - at) / length)),
    )


def recovered(
    program: Program, plan: Graph, found: Excess, clock: Sequence[ClockFit],
    what: WhatIf, choices: Sequence[Sequence[int]],
) -> list[float]:  # fmt: skip
    """M of each choice of owners, removed together."""
    loss = what.observed_ns - what.healthy_ns
    if loss <= 0 or not choices:
        return [0.0] * len(choices)
    work = program.busy_ns + program.gap_ns
    scenarios = np.stack(
        [
            work - np.where(np.isin(found.owner, list(chosen)), found.removed_ns, 0.0)
            for chosen in choices
        ],
        axis=1,
    )
    total = _totals(program, replay(plan, program.begin_ns, scenarios), clock)
    return [float(share) for share in (what.observed_ns - total) / loss]


def saved_by_halving(
    program: Program, plan: Graph, clock: Sequence[ClockFit], what: WhatIf, nodes: Bool
) -> float:
    """Share of T that would be saved if these nodes took half their time.

    Args:
        program, plan, clock, what: the run's window, its graph, its clocks, the replays of it.
        nodes: (nodes,) which of them.
    """
    if not nodes.any() or what.observed_ns <= 0:
        return 0.0
    work = (program.busy_ns + program.gap_ns) * np.where(nodes, 0.5, 1.0)
    total = _totals(program, replay(plan, program.begin_ns, work[:, None]), clock)
    return 1 - float(total[0]) / what.observed_ns


def _largest_owners(removed: Float, owner: npt.NDArray[np.int32]) -> list[int]:
    """Owners of excess, the largest first; the very smallest of many are left out."""
    known = owner >= 0
    if not known.any():
        return []
    total = np.bincount(owner[known], weights=np.maximum(removed[known], 0))
    order = np.argsort(-total, kind="stable")
    return [number for number in order.tolist() if total[number] > 0][:_MOST_OWNERS]


def _parts(clock: Sequence[ClockFit]) -> list[npt.NDArray[np.intp]]:
    component = np.array([item.component for item in clock])
    return [np.flatnonzero(component == number) for number in np.unique(component)]


def _totals(program: Program, times: Float, clock: Sequence[ClockFit]) -> Float:
    """(scenarios,) T."""
    begin = program.window.bounds_ns[:, 0] - program.window.base_ns
    parts = [times[program.end[part]].max(axis=0) - begin[part].max() for part in _parts(clock)]
    out: Float = np.mean(parts, axis=0)
    return out


def _truth(program: Program, clock: Sequence[ClockFit]) -> float:
    bounds = program.window.bounds_ns
    return float(
        np.mean([bounds[part, -1].max() - bounds[part, 0].max() for part in _parts(clock)])
    )


def _per_step(program: Program, times: Float, clock: Sequence[ClockFit]) -> Float:
    """(steps, scenarios) T of each step: from its predecessor's end on the last rank."""
    begin = program.window.bounds_ns[:, 0] - program.window.base_ns
    parts = []
    for part in _parts(clock):
        ends = times[program.step_end[part]].max(axis=0)  # (steps, scenarios)
        first = np.full((1, times.shape[1]), begin[part].max())
        parts.append(np.diff(np.concatenate((first, ends)), axis=0))
    out: Float = np.mean(parts, axis=0)
    return out


def _waits(program: Program, times: Float) -> Float:
    """(traces + 1, scenarios) time each rank's calls waited for their last member."""
    traces = len(program.end)
    node = program.arrive
    rows = program.arrive_row
    use = rows >= 0
    out = np.zeros((traces, times.shape[1]))
    if not use.any():
        return out
    node, rows = node[use], rows[use]
    order = np.argsort(program.arrive_instance[use], kind="stable")
    node = node[order]
    instance = program.arrive_instance[use][order]
    first = np.flatnonzero(np.concatenate(([True], np.diff(instance) != 0)))
    size = np.diff(np.append(first, len(instance)))
    for column in range(times.shape[1]):
        arrival = times[node, column]
        last = np.repeat(np.maximum.reduceat(arrival, first), size)
        np.add.at(out[:, column], program.trace[node], last - arrival)
    return out


def _blame(waits: Float, owners: Sequence[int], count: int, program: Program) -> list[float]:
    """Per owner: how much less the others wait without its excess."""
    out = []
    for place, number in enumerate(owners):
        change = waits[:, 0] - waits[:, 2 + count + place]
        if number < len(change):
            change = np.delete(change, number)
        out.append(max(0.0, float(change.sum())))
    return out


def ideals(
    program: Program,
    lengths: Sequence[tuple[npt.NDArray[np.intp], npt.NDArray[np.int64], Float]],
    who: Roles,
    names: int,
) -> tuple[Float, Float]:
    """(nodes,) work with every kernel, gap and transfer at the median of its class.

    A kernel's class is its name, its place among those of its name in the step, and its
    role; in the second ideal the stages' totals are evened out too.

    Args:
        program: the run's window.
        lengths: per trace: node, class of name, length of each kernel.
        who: roles of the ranks.
        names: how many classes of names there are.
    """
    busy = _even_busy(program, lengths, who, names)
    gap = _even_gaps(program, who)
    even = busy + gap
    stage = np.array(who.stage)
    balanced = busy.copy()
    mine = program.trace >= 0
    sums = np.bincount(program.trace[mine], weights=busy[mine], minlength=len(stage))
    numbers = np.unique(stage)
    means = {number: float(sums[stage == number].mean()) for number in numbers.tolist()}
    whole = float(np.mean(list(means.values())))
    for number, mean in means.items():
        chosen = mine & np.isin(program.trace, np.flatnonzero(stage == number))
        balanced[chosen] *= whole / mean if mean > 0 else 1.0
    return even, balanced + gap


def _even_busy(
    program: Program,
    lengths: Sequence[tuple[npt.NDArray[np.intp], npt.NDArray[np.int64], Float]],
    who: Roles,
    names: int,
) -> Float:
    keys, values, nodes = [], [], []
    for place, (node, code, length) in enumerate(lengths):
        step = program.step[node].astype(np.int64)
        order = np.lexsort((np.arange(len(node)), code, step))
        key = (step * names + code)[order]
        new = np.concatenate(([True], np.diff(key) != 0))[: len(key)]
        first = np.flatnonzero(new)
        ordinal = np.empty(len(key), dtype=np.int64)
        ordinal[order] = np.arange(len(key)) - np.repeat(first, np.diff(np.append(first, len(key))))
        keys.append((who.role[place] * names + code) * (1 << 24) + ordinal)
        values.append(length)
        nodes.append(node)
    if not keys:
        same: Float = program.busy_ns.copy()
        return same
    key, value, node_all = np.concatenate(keys), np.concatenate(values), np.concatenate(nodes)
    _, code = np.unique(key, return_inverse=True)
    code = code.reshape(-1)
    size = int(code.max(initial=-1)) + 1
    middle = median_by(value, code.astype(np.int64), size)
    whole = np.bincount(node_all, weights=value, minlength=len(program.busy_ns))
    even = np.bincount(node_all, weights=middle[code], minlength=len(program.busy_ns))
    # Overlapping kernels cover less time than they sum to; keep that proportion.
    out: Float = program.busy_ns * np.where(whole > 0, even / np.maximum(whole, 1e-9), 1.0)
    return out


def _even_gaps(program: Program, who: Roles) -> Float:
    """Gaps and transfers at the median of their class."""
    out: Float = program.gap_ns.copy()
    role = np.array((*who.role, -1))
    mine = np.flatnonzero((program.trace >= 0) & (program.gap_ns > 0))
    if len(mine):
        key = role[program.trace[mine]].astype(np.int64)
        limit = median_by(program.gap_ns[mine], key, int(key.max()) + 1)
        out[mine] = np.minimum(out[mine], limit[key])
    return out
