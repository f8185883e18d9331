"""Gaps in which a rank's host lets its device wait longer than the peers' hosts do.

A gap that is there in step after step is *lasting*; one far beyond the scatter in single steps is
an *episode*. On GPUs a gap is only the host's as far as it launched late; where ranks share
cores, only as far as all its work is clearly more than the peers', or its own marks tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.gaps import gaps as gaps_of
from tracekit.core.intervals import covered_within, union
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.roles import Roles
from tracekit.core.slowkernels import TRIFLE
from tracekit.core.slowstages import SIGNIFICANT
from tracekit.core.stats import low_median, spread
from tracekit.core.trace import KernelKind, Phase, RankTrace

CPU_LEAST = 0.04  # share of the step, where ranks share cores
_EPISODE = 0.01  # share of the step
_EPISODE_SPREADS = 8.0
_OFTEN = 0.75  # share of steps from which a gap is there always


def sums(program: Program, values: Float, traces: int) -> Float:
    """(traces, steps) sums over the nodes of each rank and step."""
    out = np.zeros((traces, program.window.steps))
    inside = (program.trace >= 0) & (program.step >= 0)
    np.add.at(out, (program.trace[inside], program.step[inside]), values[inside])
    return out


def over_peers(values: Float, who: Roles) -> Float:
    """(traces, steps) above what healthy peers have; all ranks stand in for missing peers."""
    role = np.array(who.role)
    out = np.zeros_like(values)
    for number in np.unique(role).tolist():
        members = role == number
        peers = members if members.sum() > 1 else np.ones(len(role), dtype=np.bool_)
        out[members] = values[members] - low_median(values[peers])[None, :]
    return out


def gap_excess(gaps: Float, who: Roles, step_ns: float) -> tuple[Float, npt.NDArray[np.bool_]]:
    """(traces, steps) gap beyond the peers' where it counts; and who has it in single steps."""
    over = over_peers(gaps, who)
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
        out[_lonely(who)] = 0.0
    # More than half of the steps, yet far from all: it comes and goes all the same.
    often = (out > 0.5 * out.max(axis=1, keepdims=True)).mean(axis=1)
    return out, (~lasting & episode.any(axis=1)) | (lasting & (often < _OFTEN))


def _lonely(who: Roles) -> npt.NDArray[np.bool_]:
    """(traces,) whether no other rank has the same role."""
    count = Counter(who.role)
    return np.array([count[role] == 1 for role in who.role], dtype=np.bool_)


def _least_scatter(gaps: Float) -> float:
    """What the steadiest of a few ranks scatters over steps: by itself, or against another."""
    alone = [spread(row) for row in gaps]
    apart = [spread(a - b) for k, a in enumerate(gaps) for b in gaps[k + 1 :]]
    return float(min(alone + apart))


def launched_late(
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


def marked_pauses(
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
    over = marked_over_peers(traces, clock, program, who, (Phase.GC, Phase.DATA))
    over[over < _EPISODE * step_ns] = 0.0
    return over


def marked_over_peers(
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
    return over_peers(out, who)


def local_excess(local: Float, who: Roles, step_ns: float) -> npt.NDArray[np.bool_]:
    """(traces,) whose own work, all together, is clearly more than the peers'."""
    over = over_peers(local, who)
    steps = over.shape[1]
    centre = np.median(over, axis=1)
    deviation = np.abs(over - centre[:, None])
    pooled = 1.4826 * float(np.median(np.median(deviation, axis=1))) if len(over) else 0.0
    own = np.maximum(pooled, deviation.mean(axis=1))
    error = 1.2533 * own / np.sqrt(max(steps, 1))
    clear = (centre > SIGNIFICANT * error) & (centre > CPU_LEAST * step_ns)
    # Without peers of equal role another amount of work is no excess.
    out: npt.NDArray[np.bool_] = clear & ~_lonely(who) & (over > 0).all(axis=1)
    return out


def removed_gaps(
    traces: Sequence[RankTrace],
    clock: Sequence[ClockFit],
    program: Program,
    who: Roles,
    amount: Float,
    removed: Float,
) -> tuple[Float, Float]:
    """Take the excess of gaps from the program's nodes, from the longest gaps first.

    Args:
        traces, clock, program, who: the run.
        amount: (traces, steps) ns to take.
        removed: (nodes,) ns; what is taken is added.

    Returns:
        (traces, steps) ns taken; (traces,) share of it that lay before a step's first kernel.
    """
    begin = np.zeros(len(traces))
    taken_ns = np.zeros(amount.shape)
    lead = np.array([_lead(trace, clock[p], program, p) for p, trace in enumerate(traces)])
    lead = np.maximum(over_peers(lead.reshape(amount.shape), who), 0.0)
    for place in range(len(traces)):
        nodes = np.flatnonzero((program.trace == place) & (program.gap_ns > 0))
        early = _first_of_step(program, nodes)
        at_begin = 0.0
        for step in np.flatnonzero(amount[place] > 0).tolist():
            here = program.step[nodes] == step
            taken = _largest_first(program.gap_ns[nodes[here]], float(amount[place, step]))
            removed[nodes[here]] += taken
            taken_ns[place, step] = taken.sum()
            at_begin += min(float(taken[early[here]].sum()), float(lead[place, step]))
        whole = taken_ns[place].sum()
        begin[place] = at_begin / whole if whole > 0 else 0.0
    return taken_ns, begin


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
