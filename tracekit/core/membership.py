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
    """

    groups: tuple[Group, ...]
    of: tuple[Int32, ...]


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
    return Membership(tuple(groups), tuple(of))


def _told(
    traces: Sequence[RankTrace],
) -> dict[tuple[str, str], dict[int, tuple[int, ...]]]:
    """Members of groups as other ranks tell them: by name and description, then by rank.

    Sibling groups share a name but no rank, so a rank tells which of them is meant; a
    rank that two lists claim is told by none.
    """
    told: dict[tuple[str, str], dict[int, tuple[int, ...]]] = defaultdict(dict)
    for trace in traces:
        for group in trace.groups:
            members = tuple(sorted(group.ranks))
            table = told[(group.name, group.description)]
            for rank in members:
                table[rank] = members if table.get(rank, members) == members else ()
    return told
