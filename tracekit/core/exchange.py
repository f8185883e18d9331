"""Exchanges of tokens between experts: dispatches, their layer, and who sends how much to whom.

An all_to_all whose reverse follows it in the same group is a dispatch, and the reverse its
combine. An even, much smaller one before a dispatch carries only the counts; where a
group has such, they mark the forward ones. Else a dispatch that repeats the newest open
forward one's splits is its backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.grouped import mixed, turns
from tracekit.core.intervals import Intervals, covered_within, union
from tracekit.core.trace import Int64, Phase, RankTrace

Bool = npt.NDArray[np.bool_]
Float = npt.NDArray[np.float64]

_COUNTS_ARE_SMALLER = 16  # times, in bytes, than the dispatch they announce
_MOST_CELLS = 1 << 22  # of matrices that are held at once


@dataclass(frozen=True, slots=True, eq=False)
class Dispatches:
    """One rank's part in handing tokens to the experts of one group, in order of time.

    Attributes:
        group: index into Membership.groups, -1 when not known.
        step: (k,) index into the rank's Steps.
        turn: (k,) place among the forward, or the backward, dispatches of the step.
        layer: (k,) of the model where stages are known, else of the rank; -1 of a backward
            one whose forward is not known.
        backward: (k,) whether gradients are handed on.
        sent, received: (k, members) rows to and from each member.
        work_ns: (k,) compute between the end of the dispatch and the begin of its combine.
    """

    group: int
    step: Int64
    turn: Int64
    layer: Int64
    backward: Bool
    sent: Int64
    received: Int64
    work_ns: Int64


class _Exchanges(NamedTuple):
    """The all_to_alls of one rank and group inside steps, in order of start."""

    step: Int64
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    bytes: Int64
    known: Bool  # splits are recorded
    sent: Int64  # (n, members), -1 where not known
    received: Int64


def dispatches(
    trace: RankTrace, groups: Sequence[int], compute: Intervals, microbatches: int | None = None
) -> list[Dispatches]:
    """The dispatches of one rank, group by group.

    Args:
        trace: one rank.
        groups: what each of its groups is called over all ranks; see ``membership.resolve``.
        compute: the rank's compute.
        microbatches: per step, if known: a layer then occurs once in each.
    """
    found = []
    for group, items in _exchanges(trace, groups):
        first, announced = _pairs(items)
        if len(first):
            found.append(_dispatches(trace, group, items, first, announced, compute, microbatches))
    return found


def token_work(trace: RankTrace) -> Intervals:
    """Between each dispatch and its combine: there a rank works on the tokens it was handed."""
    begin: list[int] = []
    end: list[int] = []
    for _, items in _exchanges(trace, range(len(trace.groups))):
        first, _ = _pairs(items)
        begin += items.end_ns[first].tolist()
        end += items.start_ns[first + 1].tolist()
    low, high = np.array(begin, dtype=np.int64), np.array(end, dtype=np.int64)
    return union(low, np.maximum(low, high))


def _exchanges(trace: RankTrace, groups: Sequence[int]) -> Iterator[tuple[int, _Exchanges]]:
    """By group, those with the usual number of members."""
    calls, kernels, splits = trace.calls, trace.kernels, trace.splits
    rows = np.flatnonzero(trace.calls_of({"all_to_all"}) & (kernels.step[calls.kernel] >= 0))
    rows = rows[np.argsort(kernels.start_ns[calls.kernel[rows]], kind="stable")]
    first = np.searchsorted(splits.call, np.arange(len(calls) + 1))
    size = np.diff(first)[rows]
    group = np.array([*groups, -1], dtype=np.int64)[calls.group[rows]]
    for number in np.unique(group).tolist():
        members = size[(group == number) & (size > 0)]
        if len(members) == 0:
            continue
        usual = int(np.bincount(members).argmax())
        mine = np.flatnonzero((group == number) & ((size == usual) | (size == 0)))
        chosen, known = rows[mine], size[mine] > 0
        place = np.where(known, first[chosen], 0)[:, None] + np.arange(usual)
        kernel = calls.kernel[chosen]
        yield (
            number,
            _Exchanges(
                step=kernels.step[kernel].astype(np.int64),
                start_ns=kernels.start_ns[kernel],
                end_ns=kernels.end_ns[kernel],
                launch_ns=kernels.launch_ns[kernel],
                bytes=calls.in_bytes[chosen],
                known=known,
                sent=np.where(known[:, None], splits.sent[place], -1),
                received=np.where(known[:, None], splits.received[place], -1),
            ),
        )


def _pairs(items: _Exchanges) -> tuple[Int64, Bool]:
    """Places of dispatches, each followed by its combine, and whether a count went ahead."""
    same_step = items.step[1:] == items.step[:-1]
    known = items.known[1:] & items.known[:-1]
    reverses = (
        same_step
        & known
        & (items.sent[:-1] == items.received[1:]).all(axis=1)
        & (items.received[:-1] == items.sent[1:]).all(axis=1)
    )
    smaller = (items.bytes[:-1] >= 0) & (items.bytes[:-1] * _COUNTS_ARE_SMALLER <= items.bytes[1:])
    even = (items.sent == items.sent[:, :1]).all(axis=1)[:-1]
    counts = same_step & smaller & even
    first: list[int] = []
    announced: list[bool] = []
    place, told, step = 0, False, items.step.tolist()
    is_count, is_pair = counts.tolist(), reverses.tolist()
    while place < len(is_pair):
        if place and step[place] != step[place - 1]:
            told = False
        if is_count[place]:
            told = True
        elif is_pair[place]:
            first.append(place)
            announced.append(told)
            told = False
            place += 1
        place += 1
    return np.array(first, dtype=np.int64), np.array(announced, dtype=np.bool_)


def _dispatches(
    trace: RankTrace,
    group: int,
    items: _Exchanges,
    first: Int64,
    announced: Bool,
    compute: Intervals,
    microbatches: int | None,
) -> Dispatches:
    sent, received, step = items.sent[first], items.received[first], items.step[first]
    partner = _partners(step, mixed(*sent.T, *received.T), announced)
    backward = partner != _FORWARD
    layer = np.full(len(first), -1, dtype=np.int64)
    begun = np.where(items.launch_ns[first] >= 0, items.launch_ns[first], items.start_ns[first])
    layer[~backward] = _layers(trace, begun[~backward], step[~backward], microbatches)
    known = partner >= 0
    layer[known] = layer[partner[known]]
    begin = items.end_ns[first]
    end = np.maximum(items.start_ns[first + 1], begin)
    return Dispatches(
        group=group,
        step=step,
        turn=turns(step * 2 + backward),
        layer=layer,
        backward=backward,
        sent=sent,
        received=received,
        work_ns=covered_within(compute, begin, end),
    )


_FORWARD, _UNKNOWN = -2, -1


def _partners(step: Int64, told: Int64, announced: Bool) -> Int64:
    """For each dispatch the forward one it is the backward of, _FORWARD or _UNKNOWN."""
    marked = bool(announced.any())
    out = np.full(len(step), _UNKNOWN, dtype=np.int64)
    opened: dict[tuple[int, int], list[int]] = defaultdict(list)
    rows = zip(step.tolist(), told.tolist(), announced.tolist(), strict=True)
    for place, (number, what, is_forward) in enumerate(rows):
        waiting = opened[number, what]
        if is_forward or (not marked and not waiting):
            out[place] = _FORWARD
            waiting.append(place)
        elif waiting:
            out[place] = waiting.pop()
    return out


def _layers(trace: RankTrace, at: Int64, step: Int64, microbatches: int | None) -> Int64:
    """Layer of each forward dispatch: by the stage around it, else by its turn in the step."""
    places = _in_stages(trace, at)
    if places is not None:
        return places
    turn = turns(step)
    count = np.bincount(step)[step] if len(step) else step
    if not microbatches:
        return turn
    each = np.where(count % microbatches == 0, np.maximum(count // microbatches, 1), count)
    out: Int64 = turn % np.maximum(each, 1)
    return out


def _in_stages(trace: RankTrace, at: Int64) -> Int64 | None:
    """Layers by the forward spans around them; None where some lie in none."""
    spans = trace.spans
    rows = np.flatnonzero((spans.phase == Phase.FORWARD) & (spans.stage >= 0))
    if len(rows) == 0 or len(at) == 0:
        return None
    span = np.searchsorted(spans.start_ns[rows], at, side="right") - 1
    if (span < 0).any() or (spans.end_ns[rows][span] < at).any():
        return None
    counts = np.unique(span, return_counts=True)[1]
    if len(set(counts.tolist())) != 1:
        return None
    stage = spans.stage[rows][span].astype(np.int64)
    out: Int64 = stage * int(counts[0]) + turns(span.astype(np.int64))
    return out


# -- across ranks ---------------------------------------------------------------------------


class Part(NamedTuple):
    """What one member tells of forward dispatches, one row each."""

    place: int  # in the group
    number: Int64  # step number
    turn: Int64
    layer: Int64
    sent: Int64  # (k, members)
    received: Int64


class Matrices(NamedTuple):
    """Rows from member to member in some dispatches.

    Attributes:
        rows: (i, members, members) float64; NaN where neither end is known.
        number, layer: (i,) step number and layer.
        missing: (i, members) whether a member does not tell, so that its column is put
            together from the others'.
        consistent: (i,) whether all rows that two ranks tell of are the same in both.
    """

    rows: Float
    number: Int64
    layer: Int64
    missing: Bool
    consistent: Bool


def matrices(members: int, parts: Sequence[Part]) -> Iterator[Matrices]:
    """The matrices of all forward dispatches of a group, some at a time.

    What a single missing rank sends itself follows if all others send equally much.
    """
    most = max(int(part.turn.max(initial=0)) for part in parts) + 1
    low = min(int(part.number.min(initial=0)) for part in parts)
    keys = [(part.number - low) * most + part.turn for part in parts]
    every = np.unique(np.concatenate(keys))
    chunk = max(1, _MOST_CELLS // members**2)
    for begin in range(0, len(every), chunk):
        yield _some(members, parts, keys, every[begin : begin + chunk], low, most)


def _some(
    members: int,
    parts: Sequence[Part],
    keys: Sequence[Int64],
    chosen: Int64,
    low: int,
    most: int,
) -> Matrices:
    count = len(chosen)
    by_sender = np.full((count, members, members), np.nan)
    by_receiver = np.full((count, members, members), np.nan)
    missing = np.ones((count, members), dtype=np.bool_)
    layer = np.full(count, -1, dtype=np.int64)
    total = np.full((count, members), np.nan)
    for part, key in zip(parts, keys, strict=True):
        at = np.minimum(np.searchsorted(chosen, key), count - 1)
        here = chosen[at] == key
        at = at[here]
        by_sender[at, part.place] = part.sent[here]
        by_receiver[at, :, part.place] = part.received[here]
        missing[at, part.place] = False
        layer[at] = part.layer[here]
        total[at, part.place] = part.sent[here].sum(axis=1)
    unequal = (by_sender != by_receiver) & ~np.isnan(by_sender) & ~np.isnan(by_receiver)
    rows = np.where(np.isnan(by_sender), by_receiver, by_sender)
    _fill_diagonal(rows, missing, total)
    return Matrices(rows, chosen // most + low, layer, missing, ~unequal.any(axis=(1, 2)))


def _fill_diagonal(rows: Float, missing: Bool, total: Float) -> None:
    """What a missing rank keeps, where one is missing and all others send equally much."""
    alone = np.flatnonzero((missing.sum(axis=1) == 1) & (missing.shape[1] > 2))
    if len(alone) == 0:
        return
    low, high = np.nanmin(total[alone], axis=1), np.nanmax(total[alone], axis=1)
    lost = missing[alone].argmax(axis=1)
    kept = low - np.nansum(rows[alone, lost], axis=1)
    sure = (low == high) & (kept >= 0)
    rows[alone[sure], lost[sure], lost[sure]] = kept[sure]
