"""Matching by time: clock offsets by vote, and calls that end together once they are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tracekit.core.callrows import CallRows, Found, by_key, from_first
from tracekit.core.collective import Match
from tracekit.core.trace import Int64, RankTrace
from tracekit.core.vote import LEAST_BLIND_VOTES, LEAST_MARGIN, LEAST_VOTES, Vote, vote

# Calls of one collective end this close on devices and on a CPU's threads (busy cores: ms).
DEVICE_WIDTH_NS = 50_000
CPU_WIDTH_NS = 3_000_000
# Ranks of one host share its clock; more than this is no offset but another collective.
SAME_HOST_NS = 2_000_000


def end_together(traces: Sequence[RankTrace], calls: CallRows, found: Found) -> bool:
    """Whether the members of a guessed group end together as those of a real one do.

    All of them: where only some do, those are the group.
    """
    known = np.flatnonzero(found.instance >= 0)
    members = np.unique(calls.trace)
    if len(known) < 0.5 * len(calls):
        return False
    present = np.bincount(found.instance[known])
    if np.mean(present[present > 0] == len(members)) < 0.5:
        return False
    difference = from_first(found.instance[known], calls.end_ns[known]).astype(np.float64)
    duration = (calls.end_ns - calls.start_ns)[known]
    limit = max(width_of(traces, members.tolist()) / 5, 0.1 * float(np.median(duration)))
    for _, rows in by_key(calls.trace[known], np.ones(len(known), dtype=np.bool_)):
        centre = np.median(difference[rows])
        if float(np.median(np.abs(difference[rows] - centre))) > limit:
            return False
    return True


def by_time(traces: Sequence[RankTrace], calls: CallRows, found: Found) -> Found:
    """Join what is left by its end times, once every member's offset is known or voted."""
    members = np.unique(calls.trace).tolist()
    width = width_of(traces, members)
    offsets: dict[int, int] = {}
    if (found.instance >= 0).any():
        offsets = _known_offsets(calls, found.instance)
    first = max(members, key=lambda place: (place in offsets, (calls.trace == place).sum()))
    base = offsets.get(first, 0)
    offsets[first] = base
    refusals = list(found.refusals)
    margin = found.margin
    one = calls.take(calls.trace == first)
    for place in members:
        if place in offsets:
            continue
        other = calls.take(calls.trace == place)
        won = _voted(traces[first], traces[place], one, other, width)
        if isinstance(won, str):
            refusals.append((len(other), won))
            continue
        offsets[place] = base + won.offset_ns
        margin = won.margin if margin is None else min(margin, won.margin)
    rows = np.flatnonzero((found.instance < 0) & np.isin(calls.trace, list(offsets)))
    instance = found.instance.copy()
    if len(offsets) > 1 and len(rows):
        instance[rows] = _clustered(calls.take(rows), offsets, width, int(instance.max()) + 1)
    any_before = bool((found.instance >= 0).any())
    return Found(instance, found.match if any_before else Match.VOTE, tuple(refusals), margin)


def width_of(traces: Sequence[RankTrace], members: Iterable[int]) -> int:
    """How far apart the ends of one collective of these members may lie, in ns."""
    on_cpu = any(traces[place].device_type == "cpu" for place in members)
    return CPU_WIDTH_NS if on_cpu else DEVICE_WIDTH_NS


def _known_offsets(calls: CallRows, instance: Int64) -> dict[int, int]:
    """Median end difference of each member from the instances already matched."""
    known = np.flatnonzero(instance >= 0)
    difference = from_first(instance[known], calls.end_ns[known])
    return {
        place: int(np.median(difference[rows]))
        for place, rows in by_key(calls.trace[known], np.ones(len(known), dtype=np.bool_))
    }


def _voted(
    first: RankTrace, second: RankTrace, one: CallRows, other: CallRows, width: int
) -> Vote | str:
    """The offset between two ranks, or why there is none."""
    marked = first.steps_marked and second.steps_marked
    limit = None
    if first.host is not None and first.host == second.host:
        limit = SAME_HOST_NS
    kinds = (_within_step(one, marked), _within_step(other, marked))
    least = LEAST_VOTES if marked else LEAST_BLIND_VOTES
    won = None
    # Narrow first: the members of one call agree to microseconds, its neighbours do not.
    for narrow in (width // 8, width):
        won = vote((kinds[0], one.end_ns), (kinds[1], other.end_ns), narrow, limit, least)
        if won is not None and won.margin >= LEAST_MARGIN:
            break
    pair = f"rank {first.rank} and rank {second.rank}"
    if won is None:
        return f"{pair} share too few equal calls"
    if won.margin < LEAST_MARGIN:
        return (
            f"the offset between {pair} is ambiguous (best ÷ next = {won.margin:.2f}): "
            "steps too regular; record ProfilerStep markers or Seq"
        )
    return won


def _within_step(calls: CallRows, marked: bool) -> Int64:
    """Fingerprints that only agree inside one step, where both ranks mark steps.

    What lies outside all steps is in a cut one, which another rank may have whole: it has no vote.
    """
    if not marked:
        return calls.kind
    out: Int64 = calls.kind * (1 << 32) + (calls.step + 1)
    outside = np.flatnonzero(calls.step < 0)
    out[outside] = -1 - (calls.trace[outside] << 32) - outside
    return out


def _clustered(calls: CallRows, offsets: dict[int, int], width: int, first_free: int) -> Int64:
    """Instances of calls whose aligned ends lie within ``width``, one call per member."""
    shift = np.array([offsets[place] for place in calls.trace.tolist()], dtype=np.int64)
    end = calls.end_ns - shift
    order = np.lexsort((end, calls.kind))
    kind, end = calls.kind[order], end[order]
    opens = np.concatenate(([True], (np.diff(end) > width) | (np.diff(kind) != 0)))
    cluster = np.cumsum(opens) - 1
    member = calls.trace[order]
    size = int(cluster[-1]) + 1
    pairs = np.unique(np.stack((cluster, member), axis=1), axis=0)
    distinct = np.bincount(pairs[:, 0], minlength=size)
    total = np.bincount(cluster, minlength=size)
    good = (distinct == total) & (total > 1)
    number = np.where(good, first_free + np.cumsum(good) - 1, -1)
    out = np.empty(len(calls), dtype=np.int64)
    out[order] = number[cluster]
    return out


def agreeing(
    traces: Sequence[RankTrace], parts: list[tuple[int, CallRows, Found]]
) -> list[tuple[int, CallRows, Found]]:
    """Groups whose vote contradicts the other groups are matched again by their offsets.

    A group with few calls can vote for a wrong offset. The offsets of all groups must agree
    around every circle of ranks; the links with most instances are believed first.
    """
    if not any(found.match == Match.VOTE for _, _, found in parts):
        return parts
    offsets = [
        _known_offsets(calls, found.instance) if (found.instance >= 0).any() else {}
        for _, calls, found in parts
    ]
    edges = []
    for (_, calls, found), own in zip(parts, offsets, strict=True):
        count = int(found.instance.max(initial=-1)) + 1
        first = min(own, default=-1)
        # A number or a step proves more than any count of votes, and coalesced transfers
        # prove least: they may end apart.
        sure = 0 if found.match == Match.VOTE else 1 << 32
        sure = -1 << 32 if (calls.carried > 1).any() else sure
        edges += [(sure + count, first, place, own[place] - own[first]) for place in own]
    told = _spanning(len(traces), sorted(edges, key=lambda edge: -edge[0]))
    out = []
    for (number, calls, found), own in zip(parts, offsets, strict=True):
        members = np.unique(calls.trace).tolist()
        width = width_of(traces, members)
        base = min(own, default=-1)
        off = any(
            told[place][0] == told[base][0]
            and abs(told[place][1] - told[base][1] - own[place] + own[base]) > 2 * width
            for place in own
        )
        lone = found.match == Match.VOTE and len({told[place][0] for place in members}) == 1
        if found.match == Match.VOTE and (off or (lone and len(own) < len(members))):
            known = {
                place: told[place][1] for place in members if told[place][0] == told[members[0]][0]
            }
            chosen = np.isin(calls.trace, list(known))
            instance = np.full(len(calls), -1, dtype=np.int64)
            if len(known) > 1:
                instance[chosen] = _clustered(calls.take(chosen), known, width, 0)
            found = found._replace(instance=instance, refusals=())
        out.append((number, calls, found))
    return out


def _spanning(count: int, edges: Sequence[tuple[int, int, int, int]]) -> dict[int, tuple[int, int]]:
    """Per trace: its connected part and its offset in it, by the edges given first."""
    told = {place: (place, 0) for place in range(count)}
    members = {place: [place] for place in range(count)}
    for _, one, other, difference in edges:
        (part, low), (target, high) = told[one], told[other]
        if part == target:
            continue
        shift = low + difference - high
        for place in members.pop(target):
            told[place] = (part, told[place][1] + shift)
            members[part].append(place)
    return told
