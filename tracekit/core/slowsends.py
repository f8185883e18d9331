"""Links of a CPU backend on which sends leave late.

Such a backend records a transfer from when it is posted, and until its rank waits for it, so
the length of a transfer says little. But while the host waits for a send (its mark says so)
one of its sends must be on its way. Where none is yet, the send is held back on its path.

A pair is slow where that holds for nearly every send, in both directions. A rank whose sends
are held back to all of several others is no link's doing, and is not named here.
Limits: what a send is held back while its rank works on is hidden, so the loss is a lower bound;
a link that delays messages after they were posted is not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.intervals import Intervals, covered_within, subtract, union
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.slowlinks import SlowTransfers
from tracekit.core.stats import spread
from tracekit.core.trace import Int64, KernelKind, Phase, RankTrace

_LEAST_NS = 1e6  # a host may wake up late by less
_LEAST_SENDS = 6  # in each direction
_NEARLY_ALL = 0.1  # quantile of the delays that must be at least that
_SIGNIFICANT = 4.0  # standard errors
_LEAST_SHARE = 0.01  # of the step

_Nodes = dict[int, float]


def slow_sends(
    traces: Sequence[RankTrace], clock: Sequence[ClockFit], program: Program,
    step_ns: float, removed: Float, owner: npt.NDArray[np.int32],
) -> tuple[SlowTransfers, ...]:  # fmt: skip
    """Each such link, largest loss first.

    What their sends are held back is marked in ``removed`` (ns per node) and ``owner``, where
    link k is number ``len(traces) + k``.
    """
    delays: dict[tuple[int, int], Float] = {}
    nodes: dict[tuple[int, int], list[_Nodes]] = defaultdict(list)
    for place, trace in enumerate(traces):
        if trace.device_type != "cpu":
            continue
        for peer, (delay, held) in _held_back(trace, clock[place], program, place).items():
            delays[trace.rank, peer] = delay
            nodes[min(trace.rank, peer), max(trace.rank, peer)].append(held)
    slow = _one_link_only(
        {pair: _is_slow(pair, delays) for pair in {(min(p), max(p)) for p in delays}}
    )
    least = _LEAST_SHARE * step_ns * program.window.steps
    sums = {pair: sum(sum(part.values()) for part in nodes[pair]) for pair in slow}
    chosen = sorted((pair for pair in slow if sums[pair] > least), key=lambda pair: -sums[pair])
    for number, pair in enumerate(chosen):
        for part in nodes[pair]:
            for node, value in part.items():
                removed[node] = value
                owner[node] = len(traces) + number
    return tuple(SlowTransfers("link", f"{pair[0]}-{pair[1]}", pair) for pair in chosen)


def _is_slow(pair: tuple[int, int], delays: dict[tuple[int, int], Float]) -> bool:
    """Whether nearly all sends are held back, in every direction that is recorded."""
    both = [delays.get(pair), delays.get((pair[1], pair[0]))]
    for delay in both:
        if delay is None or len(delay) < _LEAST_SENDS:
            return False
        error = 1.2533 * spread(delay) / len(delay) ** 0.5
        if np.quantile(delay, _NEARLY_ALL) < _LEAST_NS:
            return False
        if np.median(delay) < _SIGNIFICANT * error:
            return False
    return True


def _one_link_only(slow: dict[tuple[int, int], bool]) -> list[tuple[int, int]]:
    """The slow pairs, without those of a rank that is slow towards all of several others."""
    mine: dict[int, list[bool]] = defaultdict(list)
    for pair, hit in slow.items():
        for rank in pair:
            mine[rank].append(hit)
    suspect = {rank for rank, hits in mine.items() if len(hits) > 1 and all(hits)}
    return [pair for pair, hit in slow.items() if hit and not suspect & set(pair)]


def _held_back(
    trace: RankTrace, fit: ClockFit, program: Program, place: int
) -> dict[int, tuple[Float, _Nodes]]:
    """Per peer: how long each send was held back, and how much of that is in which node."""
    calls, kernels, spans = trace.calls, trace.kernels, trace.spans
    marked = spans.phase == Phase.SEND
    sends = np.flatnonzero(trace.calls_of({"send"}) & (calls.peer >= 0))
    if not marked.any() or len(sends) == 0:
        return {}
    start = fit.aligned(kernels.start_ns[calls.kernel[sends]])
    sends, start = sends[np.argsort(start, kind="stable")], np.sort(start)
    bounds = program.window.bounds_ns[place]
    inside = (start >= bounds[0]) & (start < bounds[-1])
    sends, start = sends[inside], start[inside]
    on_way = union(start, fit.aligned(kernels.end_ns[calls.kernel[sends]]))
    own = kernels.kind != KernelKind.COMMUNICATION
    works = union(fit.aligned(kernels.start_ns[own]), fit.aligned(kernels.end_ns[own]))
    waits = union(fit.aligned(spans.start_ns[marked]), fit.aligned(spans.end_ns[marked]))
    idle = subtract(subtract(waits, on_way), works)
    before = np.concatenate((bounds[:1], start[:-1]))
    delay = covered_within(idle, before, start).astype(np.float64)
    in_node = _per_node(idle, start, program, place)
    peer = calls.peer[sends]
    out: dict[int, tuple[Float, _Nodes]] = {}
    for other in np.unique(peer).tolist():
        chosen = np.flatnonzero(peer == other)
        held: _Nodes = {}
        for number in chosen.tolist():
            held.update(in_node.get(number, {}))
        out[other] = (delay[chosen], held)
    return out


def _per_node(idle: Intervals, start: Int64, program: Program, place: int) -> dict[int, _Nodes]:
    """By number of the send that follows: what each node of the rank holds of idle waiting."""
    until, node = program.cuts[place]
    gap = program.gap_ns[node]
    length = np.rint(program.busy_ns[node] + gap).astype(np.int64)
    part = np.minimum(covered_within(idle, until - length, until), gap)
    following = np.searchsorted(start, until, side="left")
    out: dict[int, _Nodes] = defaultdict(dict)
    for at in np.flatnonzero((part > 0) & (following < len(start))).tolist():
        out[int(following[at])][int(node[at])] = float(part[at])
    return out
