"""An operation kind that is slow on all ranks alike, in some steps.

A transfer is compared with those of the same group, operation and size at the same place of
other steps, so that what always runs beside it makes no difference. An operation kind is slow
where that happens in several steps, in every group that uses it, while the other
operations of these groups stay as they are: else it is a link, or the whole network, and
nothing is said here. An operation that is slow in every step is compared with those of
sibling groups, in :mod:`tracekit.core.slowlinks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracekit.core.collective import Matching
from tracekit.core.excess import Excess
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.slowlinks import SlowTransfers
from tracekit.core.stats import spread
from tracekit.core.timing import Timing
from tracekit.core.trace import RankTrace

_LEAST_STEPS = 8  # to know what is usual
_LEAST_SLOW = 3  # steps
_LEAST_RATIO = 0.5  # beyond the usual transfer
_SPREADS = 8.0
_LEAST_NS = 50_000.0
_OTHERS = 0.25  # of its own share of slow transfers, that other operations may have


@dataclass(frozen=True, slots=True, eq=False)
class SlowOp:
    """The operation, the ranks that use it, and what each of its transfers takes too long."""

    name: str
    ranks: tuple[int, ...]
    nodes: npt.NDArray[np.intp]
    over_ns: Float


def slow_op(
    traces: Sequence[RankTrace], program: Program, matching: Matching, times: Timing
) -> SlowOp | None:
    """The only slow operation kind of a run's window; None where there is none, or several."""
    if program.window.steps < _LEAST_STEPS or any(t.device_type == "cpu" for t in traces):
        return None
    nodes = np.flatnonzero(program.instance >= 0)
    instance = program.instance[nodes]
    use = (matching.synchronising() & times.comparable)[instance]
    nodes, instance = nodes[use], instance[use]
    if len(nodes) == 0:
        return None
    step = _step_of(program, nodes)
    over, slow, known = _unusual(program, matching, times, nodes, instance, step)
    op = matching.instances.op[instance]
    group = matching.instances.group[instance]
    found = [
        code
        for code in np.unique(op[slow]).tolist()
        if _everywhere(matching, traces, op == code, slow, group, step)
    ]
    if len(found) != 1:
        return None
    mine = op == found[0]
    others = ~mine & known & np.isin(group, group[mine])
    share = slow[mine & known].mean()
    if others.sum() < _LEAST_STEPS or slow[others].mean() > _OTHERS * share:
        return None
    hit = mine & slow
    ranks = sorted({r for g in np.unique(group[mine]).tolist() for r in matching.groups[g].ranks})
    return SlowOp(matching.names[found[0]], tuple(ranks), nodes[hit], over[hit])


def with_op(found: Excess, slow: SlowOp, traces: int) -> Excess:
    """The excess of a run with that of an operation; its owner comes after the links."""
    removed, owner = found.removed_ns.copy(), found.owner.copy()
    removed[slow.nodes] = slow.over_ns
    owner[slow.nodes] = traces + len(found.links)
    mine = SlowTransfers("op", slow.name, slow.ranks, lasting=False)
    return replace(found, removed_ns=removed, owner=owner, links=(*found.links, mine))


def _step_of(program: Program, nodes: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Step in which each transfer ends, by the step of the last rank."""
    bounds = program.window.bounds_ns.max(axis=0)
    place = np.searchsorted(bounds, program.at_ns[nodes], side="left") - 1
    return np.clip(place, 0, program.window.steps - 1).astype(np.int64)


def _unusual(
    program: Program, matching: Matching, times: Timing, nodes: npt.NDArray[np.intp],
    instance: npt.NDArray[np.int32], step: npt.NDArray[np.int64],
) -> tuple[Float, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:  # fmt: skip
    """Per transfer: ns beyond the usual, whether that is much, whether the usual is known."""
    took = program.gap_ns[nodes]
    table = matching.instances
    alike = np.stack((table.group[instance], table.op[instance], table.bytes[instance]), 1)
    _, kind = np.unique(alike.astype(np.int64), axis=0, return_inverse=True)
    kind = kind.reshape(-1).astype(np.int64)
    order = np.lexsort((program.at_ns[nodes], step, kind))
    new = np.concatenate(([True], (np.diff(kind[order]) != 0) | (np.diff(step[order]) != 0)))
    first = np.flatnonzero(new)
    turn = np.empty(len(order), dtype=np.int64)
    turn[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    place = (kind << 24) + turn
    by_place = np.argsort(place, kind="stable")
    cuts = np.flatnonzero(np.diff(place[by_place])) + 1
    over = np.zeros(len(nodes))
    slow = np.zeros(len(nodes), dtype=np.bool_)
    known = np.zeros(len(nodes), dtype=np.bool_)
    for part in np.split(by_place, cuts):
        if len(part) < _LEAST_STEPS:
            continue
        usual = float(np.median(took[part]))
        limit = max(_LEAST_RATIO * usual, _SPREADS * spread(took[part]), _LEAST_NS)
        over[part] = took[part] - usual
        slow[part] = over[part] > np.maximum(limit, _SPREADS * times.sigma_ns[instance[part]])
        known[part] = True
    return over, slow, known


def _everywhere(
    matching: Matching, traces: Sequence[RankTrace], mine: npt.NDArray[np.bool_],
    slow: npt.NDArray[np.bool_], group: npt.NDArray[np.int32], step: npt.NDArray[np.int64],
) -> bool:  # fmt: skip
    """Whether an operation is slow in several steps, in all its groups, and these hold all."""
    groups = np.unique(group[mine]).tolist()
    covered = {rank for number in groups for rank in matching.groups[number].ranks}
    if not {trace.rank for trace in traces} <= covered:
        return False
    steps_of = [set(step[mine & slow & (group == number)].tolist()) for number in groups]
    shared = set.intersection(*steps_of) if steps_of else set()
    return len(shared) >= _LEAST_SLOW
