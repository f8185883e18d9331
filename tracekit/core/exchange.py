"""Exchanges of tokens between experts: dispatches, their layer, and who sends how much to whom.

An all_to_all whose reverse follows it in the same group is a dispatch, and the reverse its
combine. An even, much smaller one before a dispatch carries only the counts; where a
group has such, they mark the forward ones. Else a dispatch that repeats the newest open
forward one's splits is its backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.intervals import Intervals, covered_within
from tracekit.core.trace import Int64, Phase, RankTrace

Float = npt.NDArray[np.float64]

_COUNTS_ARE_SMALLER = 16  # times, in bytes, than the dispatch they announce


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """One rank's part in handing tokens to experts and getting them back.

    Attributes:
        group: index into Membership.groups.
        step: index into the rank's Steps.
        turn: place among the forward, or the backward, dispatches of this group and step.
        layer: of the model where stages are known, else of the rank; -1 of a backward one
            whose forward is not known.
        backward: whether gradients are handed on.
        sent, received: (members,) rows to and from each member.
        work_ns: compute between the end of the dispatch and the begin of its combine.
    """

    group: int
    step: int
    turn: int
    layer: int
    backward: bool
    sent: Int64
    received: Int64
    work_ns: int


class _Exchange(NamedTuple):
    """One all_to_all of one rank."""

    group: int
    step: int
    start_ns: int
    end_ns: int
    launch_ns: int
    bytes: int
    sent: Int64 | None
    received: Int64 | None


def dispatches(
    trace: RankTrace, groups: Sequence[int], compute: Intervals, microbatches: int | None = None
) -> list[Dispatch]:
    """The dispatches of one rank, in order of time.

    Args:
        trace: one rank.
        groups: what each of its groups is called over all ranks; see ``membership.resolve``.
        compute: the rank's compute.
        microbatches: per step, if known: a layer then occurs once in each.
    """
    out: list[Dispatch] = []
    by_group: dict[tuple[int, int], list[_Exchange]] = defaultdict(list)
    for item in _exchanges(trace, groups):
        by_group[item.group, item.step].append(item)
    for items in by_group.values():
        out += _dispatches(trace, items, compute, microbatches)
    return sorted(out, key=lambda item: (item.step, item.group, item.backward, item.turn))


def _exchanges(trace: RankTrace, groups: Sequence[int]) -> Iterable[_Exchange]:
    """All all_to_alls inside steps, in order of start."""
    calls, kernels = trace.calls, trace.kernels
    wanted = np.array([name == "all_to_all" for name in (*trace.names, "")], dtype=np.bool_)
    rows = np.flatnonzero(wanted[calls.op_id])
    rows = rows[np.argsort(kernels.start_ns[calls.kernel[rows]], kind="stable")]
    first = np.searchsorted(trace.splits.call, np.arange(len(calls) + 1))
    for row in rows.tolist():
        kernel = int(calls.kernel[row])
        step = int(kernels.step[kernel])
        if step < 0:
            continue
        at = slice(int(first[row]), int(first[row + 1]))
        known = at.stop > at.start
        group = int(calls.group[row])
        yield _Exchange(
            groups[group] if group >= 0 else -1,
            step,
            int(kernels.start_ns[kernel]),
            int(kernels.end_ns[kernel]),
            int(kernels.launch_ns[kernel]),
            int(calls.in_bytes[row]),
            trace.splits.sent[at] if known else None,
            trace.splits.received[at] if known else None,
        )


class _Pair(NamedTuple):
    dispatch: _Exchange
    combine: _Exchange
    announced: bool


def _pairs(items: Sequence[_Exchange]) -> list[_Pair]:
    """Each dispatch with its combine: the next exchange, with rows the other way."""
    out: list[_Pair] = []
    place = 0
    announced = False
    while place < len(items):
        here = items[place]
        after = items[place + 1] if place + 1 < len(items) else None
        if _is_count(here, after):
            announced = True
        elif after is not None and _reverses(here, after):
            out.append(_Pair(here, after, announced))
            announced = False
            place += 1
        place += 1
    return out


def _is_count(here: _Exchange, after: _Exchange | None) -> bool:
    if after is None or here.bytes < 0 or here.bytes * _COUNTS_ARE_SMALLER > after.bytes:
        return False
    return here.sent is None or bool((here.sent == here.sent[0]).all())


def _reverses(here: _Exchange, after: _Exchange) -> bool:
    return (
        here.sent is not None
        and after.sent is not None
        and here.received is not None
        and after.received is not None
        and np.array_equal(here.sent, after.received)
        and np.array_equal(here.received, after.sent)
    )


def _dispatches(
    trace: RankTrace,
    items: Sequence[_Exchange],
    compute: Intervals,
    microbatches: int | None,
) -> Iterable[Dispatch]:
    pairs = _pairs(items)
    partner = _partners(pairs)
    forwards = [place for place, other in enumerate(partner) if other is None]
    layers = _layers(trace, [pairs[place] for place in forwards], microbatches)
    layer_of = dict(zip(forwards, layers, strict=True))
    turns = {False: 0, True: 0}
    for place, (pair, other) in enumerate(zip(pairs, partner, strict=True)):
        backward = other is not None
        begin = np.array([pair.dispatch.end_ns], dtype=np.int64)
        end = np.array([max(pair.combine.start_ns, pair.dispatch.end_ns)], dtype=np.int64)
        assert pair.dispatch.sent is not None
        assert pair.dispatch.received is not None
        yield Dispatch(
            group=pair.dispatch.group,
            step=pair.dispatch.step,
            turn=turns[backward],
            layer=layer_of.get(place if other is None else other, -1),
            backward=backward,
            sent=pair.dispatch.sent,
            received=pair.dispatch.received,
            work_ns=int(covered_within(compute, begin, end)[0]),
        )
        turns[backward] += 1


def _partners(pairs: Sequence[_Pair]) -> list[int | None]:
    """For each pair the forward one it is the backward of; None for forward ones, -1 unknown."""
    marked = any(pair.announced for pair in pairs)
    opened: list[int] = []
    out: list[int | None] = []
    told = [_told(pair.dispatch) for pair in pairs]
    for place, pair in enumerate(pairs):
        newest_first = range(len(opened) - 1, -1, -1)
        found = next((i for i in newest_first if told[opened[i]] == told[place]), None)
        if pair.announced or (not marked and found is None):
            out.append(None)
            opened.append(place)
        elif found is None:
            out.append(-1)
        else:
            out.append(opened.pop(found))
    return out


def _told(item: _Exchange) -> tuple[bytes, bytes]:
    """What an exchange moves, in a form that can be compared."""
    assert item.sent is not None
    assert item.received is not None
    return item.sent.tobytes(), item.received.tobytes()


def _layers(trace: RankTrace, pairs: Sequence[_Pair], microbatches: int | None) -> list[int]:
    """Layer of each forward dispatch of one group and step, in order."""
    places = _in_stages(trace, pairs)
    if places is not None:
        return places
    count = len(pairs)
    per_microbatch = (
        count // microbatches if microbatches and count % microbatches == 0 else count
    ) or 1
    return [place % per_microbatch for place in range(count)]


def _in_stages(trace: RankTrace, pairs: Sequence[_Pair]) -> list[int] | None:
    """Layers by the forward spans around them; None where some lie in none."""
    spans = trace.spans
    rows = np.flatnonzero((spans.phase == Phase.FORWARD) & (spans.stage >= 0))
    if len(rows) == 0 or not pairs:
        return None
    at = np.array(
        [p.dispatch.launch_ns if p.dispatch.launch_ns >= 0 else p.dispatch.start_ns for p in pairs]
    )
    span = np.searchsorted(spans.start_ns[rows], at, side="right") - 1
    if (span < 0).any() or (spans.end_ns[rows][span] < at).any():
        return None
    stage = spans.stage[rows][span]
    counts = np.unique(span, return_counts=True)[1]
    if len(set(counts.tolist())) != 1:
        return None
    per_stage = int(counts[0])
    seen: dict[int, int] = defaultdict(int)
    out = []
    for number, its_stage in zip(span.tolist(), stage.tolist(), strict=True):
        out.append(int(its_stage) * per_stage + seen[number])
        seen[number] += 1
    return out


# -- across ranks ---------------------------------------------------------------------------


class Matrix(NamedTuple):
    """Rows from member to member in one exchange.

    Attributes:
        rows: (members, members) float64; NaN where neither end is known.
        inferred: (members,) whether a member's trace is missing, so that its column is
            put together from the others'.
        consistent: whether every row that two ranks tell of is the same in both.
    """

    rows: Float
    inferred: npt.NDArray[np.bool_]
    consistent: bool


def matrix(members: int, parts: Sequence[tuple[int, Dispatch]]) -> Matrix:
    """The matrix of one exchange from what its present members tell.

    What a missing rank sends itself follows if all others send equally much in total.

    Args:
        members: of the group.
        parts: place in the group and part of each rank that is here.
    """
    rows = np.full((members, members), np.nan)
    consistent = True
    for place, part in parts:
        for line, told in ((rows[place], part.sent), (rows[:, place], part.received)):
            known = ~np.isnan(line) & (told >= 0)
            consistent = consistent and bool((line[known] == told[known]).all())
            line[told >= 0] = told[told >= 0]
    here = {place for place, _ in parts}
    missing = np.array([place not in here for place in range(members)], dtype=np.bool_)
    totals = {int(part.sent.sum()) for _, part in parts}
    if missing.sum() == 1 and len(totals) == 1 and len(parts) > 1:
        lost = int(np.flatnonzero(missing)[0])
        left = totals.pop() - np.nansum(rows[lost])
        if left >= 0:
            rows[lost, lost] = left
    return Matrix(rows, missing, consistent)
