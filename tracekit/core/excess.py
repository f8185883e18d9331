"""Excess: what each rank's own work takes longer than its peers' does.

Peers are ranks of equal role in the same step. Three kinds of excess are told apart:
*busy*, by kernel name, where a rank's kernels take a larger share of time in step
after step; *gap*, where its host lets the device wait; *link*, where the transfers of
one group take longer than those of its siblings with equal operation and size. An
excess counts when it stands out of its own scatter over steps, by four standard
errors, and is more than a trifle of the step; a gap far beyond the scatter in single
steps is an *episode*.

What healthy looks like: the lower median of four and more peers, the least of two or
three (:func:`tracekit.core.stats.low_median`). Stages, which have no peers of equal
role, are compared by the length of equal kernels (:mod:`tracekit.core.slowstages`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.collective import Matching
from tracekit.core.gaps import gaps as gaps_of
from tracekit.core.intervals import covered_within, union
from tracekit.core.kerneltimes import Kernel, kernels
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.roles import Roles
from tracekit.core.sequences import lengths_explain
from tracekit.core.slowlinks import SlowTransfers, slow_transfers
from tracekit.core.slowsends import slow_sends
from tracekit.core.slowstages import single_names, whole_and_spared
from tracekit.core.staged import is_staged
from tracekit.core.stats import low_median, spread
from tracekit.core.trace import Int64, KernelKind, Phase, RankTrace

TRIFLE = 0.003  # share of the step below which an excess is not looked at
SIGNIFICANT = 4.0  # standard errors
_EPISODE = 0.01  # share of the step
_EPISODE_SPREADS = 8.0
_OFTEN = 0.75  # share of steps from which a gap is there always
_PEERS = 8  # that a rank's sequences are compared with
_MORE_TOKENS = 1.01  # times the mean of its group that a rank with too many tokens moves
_CPU_LEAST = 0.04  # share of the step, where ranks share cores


@dataclass(frozen=True, slots=True, eq=False)
class Excess:
    """What would be removed from a program to make it healthy.

    Attributes:
        removed_ns: (nodes,) float64, what each node's work has too much.
        owner: (nodes,) int32, whose fault that is: a trace's place, or ``traces + k`` for
            link k; -1 where nothing is removed.
        busy_ns, gap_ns: (traces, steps) float64, the removed parts.
        alike: (traces,) share of the busy excess that lies in names slowed alike.
        by_name: per trace, (name, busy excess in ns) with the largest first.
        left_out_ns: (traces,) float64, pauses per step that may be the doing of other programs
            on shared cores, so that nobody is charged with them.
        episodic: (traces,) whether its gap excess comes in single steps.
        begin_gap: (traces,) share of the removed gap before a step's first kernel.
        exchanging: places of the traces whose busy excess is work on tokens of others.
        links: slow links and operations, longest excess first.
        unjudged: (nodes,) transfers of which nothing tells the usual time.
        stage_factor: per trace, how much slower its stage is than the others.
        lengths: per trace with busy excess, whether longer sequences explain it; None where
            they have no part in it.
        marked_ns: (2, traces) float64, pauses of the host for garbage collection and for data
            beyond the peers', by its own marks, over all steps.
    """

    removed_ns: Float
    owner: npt.NDArray[np.int32]
    busy_ns: Float
    gap_ns: Float
    left_out_ns: Float
    alike: Float
    by_name: tuple[tuple[tuple[str, float], ...], ...]
    episodic: npt.NDArray[np.bool_]
    begin_gap: Float
    exchanging: frozenset[int]
    links: tuple[SlowTransfers, ...]
    unjudged: npt.NDArray[np.bool_]
    stage_factor: Float
    lengths: tuple[bool | None, ...]
    marked_ns: Float


def excess(
    traces: Sequence[RankTrace],
    clock: Sequence[ClockFit],
    program: Program,
    matching: Matching,
    who: Roles,
) -> Excess:
    """All excess of a run's window."""
    steps = program.window.steps
    kernel = kernels(traces, clock, program)
    on_cpu = any(trace.device_type == "cpu" for trace in traces)
    step_ns = float(np.median(np.diff(program.window.bounds_ns, axis=1)))
    removed = np.zeros(len(program.busy_ns))
    owner = np.full(len(removed), -1, dtype=np.int32)
    gaps = _sums(program, program.gap_ns, len(traces))
    busy = _sums(program, program.busy_ns, len(traces))
    # Experts with unequal loads differ from stage to stage, and no launch shows it.
    single = not on_cpu and not (matching.ops() == "all_to_all").any()
    factor, stage_factor = _factors(kernel, who, step_ns, single=single)
    lender, exchanging = _evened_experts(kernel, factor, matching, traces, program.window.numbers)
    gap_excess, episodic = _gap_excess(gaps, who, step_ns)
    left_out = np.zeros(len(traces))
    if on_cpu:
        # Cores are shared: which part of a rank's work was slowed says little, their sum more.
        keep = _local_excess(busy + gaps, who, step_ns)
        lent = lender >= 0
        # A stage's marks are its own doing, whoever has the cores: sleeping takes none.
        told = np.array([is_staged(trace) for trace in traces])
        slow_stage = told & (stage_factor > 1 + _CPU_LEAST)
        factor[~keep & ~(lent & keep[np.maximum(lender, 0)]) & ~slow_stage] = 1.0
        marked = _marked_pauses(traces, clock, program, who, step_ns)
        sure = np.where(keep[:, None], gap_excess, np.minimum(marked, gaps))
        left_out = np.maximum(gap_excess - sure, 0.0).mean(axis=1)
        gap_excess = sure
    else:
        gap_excess = np.minimum(gap_excess, _launched_late(traces, clock, program))
    by_name = []
    busy_out = np.zeros((len(traces), steps))
    for place in range(len(traces)):
        node, code, length = kernel.kernels[place]
        amount = length * (1 - 1 / factor[place, code])
        share = _clipped_to_busy(program, node, length)
        np.add.at(removed, node, amount * share)
        by_name.append(_named(kernel.names, code, amount))
    mine = program.trace >= 0
    inside = mine & (program.step >= 0)
    np.add.at(busy_out, (program.trace[inside], program.step[inside]), removed[inside])
    begin = np.zeros(len(traces))
    gap_out = np.zeros((len(traces), steps))
    lead = np.array([_lead(trace, clock[p], program, p) for p, trace in enumerate(traces)])
    lead = np.maximum(_over_peers(lead.reshape(len(traces), steps), who), 0.0)
    for place in range(len(traces)):
        nodes = np.flatnonzero((program.trace == place) & (program.gap_ns > 0))
        early = _first_of_step(program, nodes)
        at_begin = 0.0
        for step in np.flatnonzero(gap_excess[place] > 0).tolist():
            chosen = nodes[program.step[nodes] == step]
            taken = _largest_first(program.gap_ns[chosen], float(gap_excess[place, step]))
            removed[chosen] += taken
            gap_out[place, step] = taken.sum()
            at_begin += min(
                float(taken[early[program.step[nodes] == step]].sum()), float(lead[place, step])
            )
        begin[place] = at_begin / gap_out[place].sum() if gap_out[place].any() else 0.0
    hit = (removed != 0) & mine
    owner[hit] = np.where(lender >= 0, lender, np.arange(len(traces)))[program.trace[hit]]
    _even_exchanges(traces, program, matching, lender, removed, owner)
    transfers = slow_transfers(traces, program, matching, step_ns, removed, owner)
    links = transfers.slow
    if on_cpu:
        links = slow_sends(traces, clock, program, step_ns, removed, owner)
    return Excess(
        removed_ns=removed,
        owner=owner,
        busy_ns=busy_out,
        gap_ns=gap_out,
        left_out_ns=left_out,
        alike=_alike(kernel, factor),
        by_name=tuple(by_name),
        episodic=episodic,
        begin_gap=begin,
        exchanging=exchanging,
        links=links,
        unjudged=transfers.unjudged,
        stage_factor=stage_factor,
        lengths=tuple(
            lengths_explain(trace, [traces[p] for p in _peers(place, who)])
            if busy_out[place].any()
            else None
            for place, trace in enumerate(traces)
        ),
        marked_ns=np.array(
            [
                np.maximum(_marked_over_peers(traces, clock, program, who, (phase,)), 0).sum(axis=1)
                for phase in (Phase.GC, Phase.DATA)
            ]
        ),
    )


def _peers(place: int, who: Roles) -> list[int]:
    """Some of those of equal role."""
    same = [p for p, role in enumerate(who.role) if role == who.role[place] and p != place]
    return same[:_PEERS]


# -- kernels -------------------------------------------------------------------------


def _factors(kernel: Kernel, who: Roles, step_ns: float, *, single: bool) -> tuple[Float, Float]:
    """(traces, names) how many times longer each rank's kernels take; and each stage's part.

    Args:
        kernel: of all ranks.
        who: their roles.
        step_ns: what excess is measured by.
        single: whether stages are compared by single names, too.
    """
    traces, _, names = kernel.total_ns.shape
    factor: Float = np.ones((traces, names))
    role = np.array(who.role)
    for number in np.unique(role).tolist():
        members = np.flatnonzero(role == number)
        if len(members) < 2:
            continue
        total = kernel.total_ns[members]
        centre = np.median(total, axis=0, keepdims=True)
        # A name that a rank does not use has no ratio: 1 is as good as any.
        relative = np.where(centre > 0, total / np.maximum(centre, 1e-9), 1.0)
        middle = np.median(relative, axis=1)
        ratio = middle / low_median(middle)[None, :]
        error = _step_error(relative, kernel, members)
        length = np.median(total, axis=1)
        clear = (ratio - 1 > SIGNIFICANT * np.sqrt(2) * error) & (length > 0)
        trifle = (ratio - 1) / ratio * length < 0.1 * TRIFLE * step_ns
        factor[members] = np.where(clear & ~trifle & np.isfinite(ratio), ratio, 1.0)
    factor = _without_trifles(kernel, factor, step_ns)
    stage, spared = whole_and_spared(kernel, who, factor)
    factor = factor * np.where(spared, 1.0, stage[:, None])
    if single:
        factor = factor * single_names(kernel, who, factor, TRIFLE * step_ns)
    return factor, stage


def _evened_experts(
    kernel: Kernel, factor: Float, matching: Matching, traces: Sequence[RankTrace], numbers: Int64
) -> tuple[npt.NDArray[np.int64], frozenset[int]]:
    """Corrects the factors of ranks that exchange tokens; (traces,) whose excess one bears.

    Tokens that one rank has too many are missing on the others of its ep group, so there
    healthy is the mean: members below it get more work once the excess is gone, which is
    the doing of the group's busiest rank. Only kernels that are not slowed like all others
    count as tokens' work. Also returned: who has too many.
    """
    exchanging: set[int] = set()
    lender = np.full(len(traces), -1, dtype=np.int64)
    place_of = {trace.rank: place for place, trace in enumerate(traces)}
    alike = _alike(kernel, factor)
    mean = kernel.total_ns.mean(axis=1)
    moved = np.array([_moved_bytes(trace, numbers) for trace in traces])
    for group in matching.groups:
        members = np.array([place_of[r] for r in group.ranks if r in place_of], dtype=np.int64)
        if group.axis != "ep" or len(members) < 2:
            continue
        # A rank that moves no more than the others has no more tokens, however slow it is.
        known = not np.isnan(moved[members]).any()
        more = moved[members] > _MORE_TOKENS * moved[members].mean() if known else True
        odd = members[more & (factor[members] > 1).any(axis=1) & (alike[members] < 0.5)]
        if len(odd) == 0:
            continue
        names = np.flatnonzero((factor[odd] > 1).any(axis=0) & (mean[members].min(axis=0) > 0))
        busiest = int(odd[np.argmax((mean[odd] * (1 - 1 / factor[odd])).sum(axis=1))])
        for name in names.tolist():
            factor[members, name] = mean[members, name] / mean[members, name].mean()
        others = members[~np.isin(members, odd)]
        lender[others] = busiest
        exchanging |= set(odd.tolist())
    return lender, frozenset(exchanging)


def _moved_bytes(trace: RankTrace, numbers: Int64 | None = None) -> float:
    """Bytes a rank hands to and gets from exchanges of tokens; NaN where a size is not known.

    Only in the steps of these numbers, where steps are marked: ranks may hold more of them.
    Each token comes and goes once in the dispatch and once in the combine, so among ranks
    of equal batches who moves more has more tokens.
    """
    calls = trace.calls
    exchange = np.array([name == "all_to_all" for name in (*trace.names, "")], dtype=np.bool_)
    rows = exchange[calls.op_id]
    if numbers is not None and trace.steps_marked:
        step = trace.kernels.step[calls.kernel]
        rows &= (step >= 0) & np.isin(np.append(trace.steps.number, -1)[step], numbers)
    sizes = np.concatenate((calls.in_bytes[rows], calls.out_bytes[rows]))
    return float(sizes.sum()) if len(sizes) and (sizes >= 0).all() else math.nan


def _step_error(relative: Float, kernel: Kernel, members: npt.NDArray[np.intp]) -> Float:
    """(names,) standard error of a rank's median over steps, pooled over the ranks."""
    steps = relative.shape[1]
    if steps >= 3:
        centre = np.median(relative, axis=1, keepdims=True)
        deviation = np.abs(relative - centre)
        # The median of few deviations is low by chance: take the mean over ranks.
        pooled = 1.4826 * np.mean(np.median(deviation, axis=1), axis=0)
        rough = np.mean(np.mean(deviation, axis=1), axis=0)
        error: Float = 1.2533 * np.maximum(pooled, rough) / np.sqrt(steps)
        return error
    # One or two steps: from the scatter of single kernels.
    out = np.full(relative.shape[2], np.inf)
    for name in range(relative.shape[2]):
        paired = [kernel.kernels[p][2][kernel.kernels[p][1] == name] for p in members.tolist()]
        if len(paired[0]) >= 4 and len({len(mine) for mine in paired}) == 1:
            # The k-th kernel of a name is the same work on all ranks, whatever its size.
            lengths = np.array(paired)
            ratio = lengths / np.maximum(np.median(lengths, axis=0), 1.0)
            out[name] = 1.2533 * max(map(spread, ratio)) / np.sqrt(lengths.shape[1])
            continue
        ratios, least = [], np.inf
        for place in members.tolist():
            _, code, length = kernel.kernels[place]
            mine = length[code == name]
            if len(mine) >= 4:
                ratios.append(spread(mine) / max(float(np.median(mine)), 1.0))
                least = min(least, len(mine))
        if ratios:
            out[name] = 1.2533 * max(ratios) / np.sqrt(least)
    return out


def _without_trifles(kernel: Kernel, factor: Float, step_ns: float) -> Float:
    """Factors of ranks whose whole busy excess is a trifle become 1."""
    mean = kernel.total_ns.mean(axis=1)
    whole = (mean * (1 - 1 / factor)).sum(axis=1)
    out: Float = factor.copy()
    out[whole < TRIFLE * step_ns] = 1.0
    return out


def _alike(kernel: Kernel, factor: Float) -> Float:
    """(traces,) share of a rank's kernel time in names slowed about as much as the whole."""
    mean = kernel.total_ns.mean(axis=1)
    healthy = mean / factor
    whole = mean.sum(axis=1) / np.maximum(healthy.sum(axis=1), 1e-9) - 1
    near = np.abs(factor - 1 - whole[:, None]) <= 0.5 * np.maximum(whole, 1e-9)[:, None]
    out: Float = (healthy * near).sum(axis=1) / np.maximum(healthy.sum(axis=1), 1e-9)
    return out


def _named(names: Sequence[str], code: Int64, amount: Float) -> tuple[tuple[str, float], ...]:
    sums = np.bincount(code, weights=amount, minlength=len(names))
    order = np.argsort(-sums, kind="stable")
    return tuple((names[place], float(sums[place])) for place in order.tolist() if sums[place] > 0)


def _clipped_to_busy(program: Program, node: npt.NDArray[np.intp], length: Float) -> Float:
    """Per kernel: its part of its node's busy time, below 1 where kernels overlap."""
    whole = np.zeros(len(program.busy_ns))
    np.add.at(whole, node, length)
    out: Float = np.minimum(1.0, program.busy_ns[node] / np.maximum(whole[node], 1e-9))
    return out


# -- gaps ----------------------------------------------------------------------------


def _sums(program: Program, values: Float, traces: int) -> Float:
    """(traces, steps) sums over the nodes of each rank and step."""
    out = np.zeros((traces, program.window.steps))
    inside = (program.trace >= 0) & (program.step >= 0)
    np.add.at(out, (program.trace[inside], program.step[inside]), values[inside])
    return out


def _over_peers(values: Float, who: Roles) -> Float:
    """(traces, steps) above what healthy peers have; all ranks stand in for missing peers."""
    role = np.array(who.role)
    out = np.zeros_like(values)
    for number in np.unique(role).tolist():
        members = role == number
        peers = members if members.sum() > 1 else np.ones(len(role), dtype=np.bool_)
        out[members] = values[members] - low_median(values[peers])[None, :]
    return out


def _gap_excess(gaps: Float, who: Roles, step_ns: float) -> tuple[Float, npt.NDArray[np.bool_]]:
    """(traces, steps) gap beyond the peers' where it counts; and who has it in single steps."""
    over = _over_peers(gaps, who)
    steps = over.shape[1]
    centre = np.median(over, axis=1)
    deviation = np.abs(over - centre[:, None])
    scatter = np.array([spread(row) for row in over])
    # Of two ranks one may be all scatter: what a healthy one shows is the measure.
    pooled = np.full(len(over), float(low_median(scatter)) if len(scatter) else 0.0)
    # Over the least of few peers that one has none at all: see what its gaps have themselves.
    role = np.array(who.role)
    for number in np.unique(role).tolist():
        members = role == number
        if 1 < members.sum() < 4:
            pooled[members] = np.maximum(pooled[members], _least_scatter(gaps[members]))
    # Three steps say little of one rank's scatter; the other ranks' says more.
    own = np.maximum(pooled, np.minimum(scatter, deviation.mean(axis=1)))
    error = 1.2533 * own / np.sqrt(max(steps, 1))
    lasting = (centre > SIGNIFICANT * error) & (centre > TRIFLE * step_ns)
    high = over - np.where(lasting, centre, np.minimum(centre, 0))[:, None]
    limit = np.maximum(_EPISODE * step_ns, _EPISODE_SPREADS * pooled)[:, None]
    episode = (high > limit) & (over > limit)
    out = np.where(lasting[:, None] | episode, np.maximum(over, 0), 0.0)
    if steps == 1:  # one step of ranks of other roles is no measure
        out[[(role == number).sum() == 1 for number in role.tolist()]] = 0.0
    # More than half of the steps, yet far from all: it comes and goes all the same.
    often = (out > 0.5 * out.max(axis=1, keepdims=True)).mean(axis=1)
    return out, (~lasting & episode.any(axis=1)) | (lasting & (often < _OFTEN))


def _least_scatter(gaps: Float) -> float:
    """What the steadiest of a few ranks scatters over steps: by itself, or against another."""
    alone = [spread(row) for row in gaps]
    apart = [spread(a - b) for k, a in enumerate(gaps) for b in gaps[k + 1 :]]
    return float(min(alone + apart))


def _launched_late(
    traces: Sequence[RankTrace], clock: Sequence[ClockFit], program: Program
) -> Float:
    """(traces, steps) idle time before the host launched what came next; inf where not recorded.

    A gap before work that was launched in time is no host's doing, whatever else it waits for.
    """
    out = np.full((len(traces), program.window.steps), np.inf)
    for place, (trace, fit) in enumerate(zip(traces, clock, strict=True)):
        found = gaps_of(trace, trace.kernels.kind != KernelKind.COMMUNICATION)
        if not found.linked.all():
            continue
        idle = found.late_ns > 0
        start = found.start_ns[idle]
        late = union(fit.aligned(start), fit.aligned(start + found.late_ns[idle]))
        bounds = program.window.bounds_ns[place]
        out[place] = covered_within(late, bounds[:-1], bounds[1:])
    return out


def _marked_pauses(
    traces: Sequence[RankTrace],
    clock: Sequence[ClockFit],
    program: Program,
    who: Roles,
    step_ns: float,
) -> Float:
    """(traces, steps) pauses beyond the peers' in which the host collected garbage or loaded data.

    Where ranks share cores any rank may lose its core for a while; these pauses are known
    to be the rank's own.
    """
    over = _marked_over_peers(traces, clock, program, who, (Phase.GC, Phase.DATA))
    over[over < _EPISODE * step_ns] = 0.0
    return over


def _marked_over_peers(
    traces: Sequence[RankTrace],
    clock: Sequence[ClockFit],
    program: Program,
    who: Roles,
    phases: Sequence[Phase],
) -> Float:
    """(traces, steps) time in marks of these phases beyond what healthy peers have."""
    out = np.zeros((len(traces), program.window.steps))
    for place, (trace, fit) in enumerate(zip(traces, clock, strict=True)):
        rows = np.isin(trace.spans.phase, [int(phase) for phase in phases])
        spans = trace.spans
        pauses = union(fit.aligned(spans.start_ns[rows]), fit.aligned(spans.end_ns[rows]))
        bounds = program.window.bounds_ns[place]
        out[place] = covered_within(pauses, bounds[:-1], bounds[1:])
    return _over_peers(out, who)


def _local_excess(local: Float, who: Roles, step_ns: float) -> npt.NDArray[np.bool_]:
    """(traces,) whose own work, all together, is clearly more than the peers'."""
    role = np.array(who.role)
    over = _over_peers(local, who)
    steps = over.shape[1]
    centre = np.median(over, axis=1)
    deviation = np.abs(over - centre[:, None])
    pooled = 1.4826 * float(np.median(np.median(deviation, axis=1))) if len(over) else 0.0
    own = np.maximum(pooled, deviation.mean(axis=1))
    error = 1.2533 * own / np.sqrt(max(steps, 1))
    lonely = np.array([(role == number).sum() == 1 for number in role])
    clear = (centre > SIGNIFICANT * error) & (centre > _CPU_LEAST * step_ns)
    # Without peers of equal role another amount of work is no excess.
    out: npt.NDArray[np.bool_] = clear & ~lonely & (over > 0).all(axis=1)
    return out


def _lead(trace: RankTrace, fit: ClockFit, program: Program, place: int) -> Float:
    """(steps,) time from a step's begin to its first kernel of any kind."""
    bounds = program.window.bounds_ns[place]
    start = np.sort(fit.aligned(trace.kernels.start_ns))
    first = np.searchsorted(start, bounds[:-1], side="left")
    if len(start) == 0:
        return np.zeros(len(bounds) - 1)
    out: Float = (start[np.minimum(first, len(start) - 1)] - bounds[:-1]).astype(np.float64)
    return np.maximum(out, 0.0)


def _largest_first(gaps: Float, amount: float) -> Float:
    """How much is taken from each gap when the largest ones give first."""
    order = np.argsort(-gaps, kind="stable")
    before = np.concatenate(([0.0], np.cumsum(gaps[order])[:-1]))
    taken = np.zeros(len(gaps))
    taken[order] = np.clip(amount - before, 0, gaps[order])
    return taken


def _first_of_step(program: Program, nodes: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Which of a rank's nodes, given in order, are the first of their step with a gap."""
    step = program.step[nodes]
    at = program.at_ns[nodes]
    out = np.zeros(len(nodes), dtype=np.bool_)
    for number in np.unique(step).tolist():
        mine = np.flatnonzero(step == number)
        out[mine[np.argmin(at[mine])]] = True
    return out


def _even_exchanges(
    traces: Sequence[RankTrace], program: Program, matching: Matching,
    lender: npt.NDArray[np.int64], removed: Float, owner: npt.NDArray[np.int32],
) -> None:  # fmt: skip
    """Removes from exchanges of tokens what their busiest rank makes them take longer."""
    if not (lender >= 0).any():
        return
    place_of = {trace.rank: place for place, trace in enumerate(traces)}
    nodes = np.flatnonzero(program.instance >= 0)
    instance = program.instance[nodes]
    instances = matching.instances
    exchange = (matching.ops()[instance] == "all_to_all") & (instances.bytes[instance] > 0)
    group = instances.group[instance]
    for number in np.unique(group[exchange]).tolist():
        members = [place_of[rank] for rank in matching.groups[number].ranks if rank in place_of]
        whose = [int(lender[place]) for place in members if lender[place] >= 0]
        if not whose:
            continue
        mine = np.flatnonzero(exchange & (group == number))
        took = program.gap_ns[nodes[mine]]
        latency = float(took.min())
        part = instances.least_bytes[instance[mine]] / instances.bytes[instance[mine]]
        removed[nodes[mine]] = (took - latency) * (1 - part)
        owner[nodes[mine]] = whose[0]
