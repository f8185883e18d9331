"""Who is comparable with whom, and which sets of ranks can be to blame together.

Ranks of equal *role* do the same work: those of one pipeline stage. The stage comes
from the ``pp`` groups, else from who sends to whom first in a step (then it is inferred).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.core.clock import ClockFit
from tracekit.core.collective import Matching
from tracekit.core.topology import Group, Topology
from tracekit.core.trace import RankTrace

_REPLICA_AXES = ("dp_replicate", "dp", "fsdp", "dp_shard")


@dataclass(frozen=True, slots=True)
class RankSet:
    """Ranks that can be to blame together.

    Attributes:
        kind: "rank", "tp_group", "stage", "dp_replica" or "host".
        members: what the set is called: rank numbers, or the number of a stage or replica.
        ranks: global ranks.
    """

    kind: str
    members: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Roles:
    """Per trace: its stage (-1 unknown) and its role; and all sets of more than one rank.

    Attributes:
        stage: per trace, -1 when there are no stages.
        role: per trace, a number equal for comparable ranks.
        sets: single ranks first, then larger sets; sets of all ranks are left out.
        inferred: whether the stages were worked out from transfers.
    """

    stage: tuple[int, ...]
    role: tuple[int, ...]
    sets: tuple[RankSet, ...]
    inferred: bool


def roles(
    traces: Sequence[RankTrace],
    topology: Topology,
    matching: Matching,
    clock: Sequence[ClockFit],
) -> Roles:
    """Stages, roles and sets of the loaded ranks."""
    groups = _groups(topology, matching)
    ranks = [trace.rank for trace in traces]
    stage = _stages_of_groups(groups, ranks)
    inferred = False
    if stage is None:
        stage = _stages_of_transfers(traces, matching)
        inferred = max(stage) > 0 if stage else False
    numbers: dict[tuple[int, int], int] = {}
    role = tuple(
        numbers.setdefault((stage[place], clock[place].component), len(numbers))
        for place in range(len(traces))
    )
    return Roles(tuple(stage), role, tuple(_sets(traces, groups, stage)), inferred)


def _groups(topology: Topology, matching: Matching) -> tuple[Group, ...]:
    known = {(tuple(sorted(group.ranks)), group.axis): group for group in topology.groups}
    for group in matching.groups:
        if group.description != "p2p":
            known.setdefault((tuple(sorted(group.ranks)), group.axis), group)
    return tuple(known.values())


def _stages_of_groups(groups: Sequence[Group], ranks: Sequence[int]) -> list[int] | None:
    """Place of each rank in its pipeline group, None without such groups."""
    place: dict[int, int] = {}
    for group in groups:
        if group.axis == "pp" and len(group.ranks) > 1:
            for number, rank in enumerate(sorted(group.ranks)):
                place[rank] = number
    if not place or not all(rank in place for rank in ranks):
        return None
    return [place[rank] for rank in ranks]


def _stages_of_transfers(traces: Sequence[RankTrace], matching: Matching) -> list[int]:
    """Depth of each rank in the chain of first transfers: a later stage receives first."""
    rows = matching.rows
    p2p = matching.p2p()[rows.instance] if len(rows) else np.zeros(0, dtype=np.bool_)
    # Ranks whose windows begin apart do not see the same transfers first.
    common = _common_step(traces)
    if common is not None and len(rows):
        p2p &= matching.instances.step[rows.instance] == common
    before = [-1] * len(traces)
    for place, trace in enumerate(traces):
        mine = np.flatnonzero(p2p & (rows.trace == place))
        if len(mine) == 0:
            continue
        first = mine[np.argmin(rows.start_ns[mine])]
        call = rows.call[first]
        if trace.names[trace.calls.op_id[call]] != "recv":
            continue
        other = np.flatnonzero((rows.instance == rows.instance[first]) & (rows.trace != place))
        if len(other):
            before[place] = int(rows.trace[other[0]])
    depth = []
    for place in range(len(traces)):
        steps, at = 0, place
        while before[at] >= 0 and steps <= len(traces):
            at, steps = before[at], steps + 1
        depth.append(steps if steps <= len(traces) else 0)
    return depth


def _common_step(traces: Sequence[RankTrace]) -> int | None:
    """Number of a step in the middle of those that all ranks mark; None without one."""
    if not traces or not all(trace.steps_marked for trace in traces):
        return None
    numbers = sorted(set.intersection(*(set(trace.steps.number.tolist()) for trace in traces)))
    return numbers[len(numbers) // 2] if numbers else None


def _sets(
    traces: Sequence[RankTrace], groups: Sequence[Group], stage: Sequence[int]
) -> list[RankSet]:
    """Sets that can be to blame, smallest kinds first, each with loaded ranks only."""
    ranks = [trace.rank for trace in traces]
    here = set(ranks)
    found = [RankSet("rank", str(rank), (rank,)) for rank in ranks]
    for group in groups:
        members = tuple(sorted(here & set(group.ranks)))
        if group.axis == "tp" and len(members) > 1:
            found.append(RankSet("tp_group", _listed(members), members))
    found += _labelled("stage", ranks, stage if max(stage, default=0) > 0 else ())
    found += _labelled("dp_replica", ranks, _replicas(groups, ranks))
    hosts = [trace.host for trace in traces]
    if len(set(hosts)) > 1 and None not in hosts:
        found += _labelled("host", ranks, [str(host) for host in hosts])
    return [item for item in found if len(item.ranks) < len(ranks)]


def _listed(ranks: Sequence[int]) -> str:
    """ "0-3" for neighbours, else "0, 2, 4"."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def _labelled(kind: str, ranks: Sequence[int], labels: Sequence[object]) -> list[RankSet]:
    """One set per label; none when there is no label or all are alike."""
    if not labels or len(set(labels)) < 2:
        return []
    return [
        RankSet(
            kind, str(label),
            tuple(rank for rank, own in zip(ranks, labels, strict=True) if own == label),
        )
        for label in sorted(set(labels), key=str)
    ]  # fmt: skip


def _replicas(groups: Sequence[Group], ranks: Sequence[int]) -> list[int]:
    """Number of each rank's replica of the model, over all data-parallel axes."""
    number = dict.fromkeys(ranks, 0)
    found = False
    for axis in _REPLICA_AXES:
        mine = [group for group in groups if group.axis == axis and len(group.ranks) > 1]
        size = max((len(group.ranks) for group in mine), default=1)
        place = {rank: k for group in mine for k, rank in enumerate(sorted(group.ranks))}
        if size > 1 and all(rank in place for rank in ranks):
            found = True
            for rank in ranks:
                number[rank] = number[rank] * size + place[rank]
    return [number[rank] for rank in ranks] if found else []
