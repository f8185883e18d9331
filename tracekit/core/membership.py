"""Which process groups of different ranks are one group.

A group is known by its members and its description. Names differ between
ranks for one group, and one name covers sibling groups, so a name only counts
where the members are not recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.core.topology import Group
from tracekit.core.trace import Int32, RankTrace

_Key = tuple[tuple[int, ...], str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """The groups of a run, and where each rank's own group table points.

    Attributes:
        groups: one per set of members and description; those without members last.
        of: per trace, (groups of the trace,) int32 index into ``groups``, -1 for a
            group that does not hold the rank.
        unnamed: (traces,) index of the group that calls without a recorded group are tried
            in, -1 for none; it is marked inferred.
    """

    groups: tuple[Group, ...]
    of: tuple[Int32, ...]
    unnamed: Int32


def resolve(traces: Sequence[RankTrace]) -> Membership:
    """Join the groups that the ranks know, each under its own number and names."""
    found: dict[_Key, int] = {}
    groups: list[Group] = []
    of = []
    told = _told(traces)
    for trace in traces:
        table = np.full(len(trace.groups), -1, dtype=np.int32)
        used = set(trace.calls.group.tolist())
        seen: dict[tuple[tuple[int, ...], str], int] = defaultdict(int)
        for place, group in enumerate(trace.groups):
            members = tuple(sorted(group.ranks)) or told.get(
                (group.name, group.description), {}
            ).get(trace.rank, ())
            if members and trace.rank not in members:
                continue  # a header lists the groups of every rank
            # Two groups of one rank with equal members and description stay apart, in order.
            # A name alone would be a key that differs between ranks.
            same = (members, group.description or ("" if members else group.name))
            if not members:
                same = ((), f"{group.name}\0{group.description}")
            if not members and place not in used:
                continue
            key = (*same, seen[same])
            seen[same] += 1
            if key not in found:
                found[key] = len(groups)
                groups.append(
                    Group(group.name, group.description, members, group.axis, not members)
                )
            table[place] = found[key]
        of.append(table)
    unnamed = _unnamed(traces, groups)
    return Membership(tuple(groups), tuple(of), unnamed)


def _unnamed(traces: Sequence[RankTrace], groups: list[Group]) -> Int32:
    """The group of calls that carry none: kernels of an engine's own, or of a replayed graph.

    Those are tensor-parallel in all engines known; without such groups, all ranks are tried.
    Whether that is right is for their times to tell.
    """
    out = np.full(len(traces), -1, dtype=np.int32)
    if not any((trace.calls.group < 0).any() for trace in traces):
        return out
    members: dict[int, tuple[int, ...]] = {}
    for trace in traces:
        for group in trace.groups:
            if group.axis == "tp" and trace.rank in group.ranks:
                members[trace.rank] = tuple(sorted(group.ranks))
    everybody = tuple(trace.rank for trace in traces)
    axis = "tp" if members else None
    made: dict[tuple[int, ...], int] = {}
    for place, trace in enumerate(traces):
        mine = members.get(trace.rank, () if members else everybody)
        if len(mine) < 2:
            continue
        if mine not in made:
            made[mine] = len(groups)
            groups.append(Group("", f"inferred {axis or 'world'}", mine, axis, True))
        out[place] = made[mine]
    return out


def _told(
    traces: Sequence[RankTrace],
) -> dict[tuple[str, str], dict[int, tuple[int, ...]]]:
    """Members of groups as other ranks tell them: by name and description, then by rank.

    Sibling groups share a name but no rank, so a rank tells which of them is meant; a
    rank that two lists claim is told by none.
    """
    told: dict[tuple[str, str], dict[int, tuple[int, ...]]] = defaultdict(dict)
    heard = set()  # every member tells the same list
    for trace in traces:
        for group in trace.groups:
            members = tuple(sorted(group.ranks))
            news = (group.name, group.description, members)
            if news in heard:
                continue
            heard.add(news)
            table = told[(group.name, group.description)]
            for rank in members:
                table[rank] = members if table.get(rank, members) == members else ()
    return told
