"""Matching: joins the calls of different ranks that are one collective or one transfer.

Collectives of a group are joined by its sequence number; without one, by their
order inside a step that the ranks mark, where operation, dtype and size agree;
else by the clock offset that most pairs of equal calls vote for. Plain order
(the k-th with the k-th) is never used: windows cut at different places make it
wrong nearly always. The k-th send meets the k-th recv of each ordered pair of
ranks, inside a step. What stays ambiguous is refused, with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.core.callrows import CallRows, Found, by_key, from_first, joined, nothing
from tracekit.core.collective import (
    P2P,
    P2P_OP,
    SYNCHRONISING,
    Instances,
    Match,
    Matching,
    Refusal,
    Rows,
)
from tracekit.core.match_time import DEVICE_WIDTH_NS, agreeing, by_time, end_together
from tracekit.core.membership import Membership, resolve
from tracekit.core.topology import Group
from tracekit.core.trace import Int64, RankTrace

_MOST_ODD = 0.01  # share of a group's instances whose members may disagree in what they do
_UNEVEN = frozenset({"all_to_all", "gather", "scatter"})  # members move different sizes


class _Codes(dict[object, int]):
    """The next number for every new key."""

    def __missing__(self, key: object) -> int:
        code = self[key] = len(self)
        return code


def match(traces: Sequence[RankTrace]) -> Matching:
    """Join the calls of all loaded ranks."""
    membership = resolve(traces)
    names: _Codes = _Codes()
    kinds: _Codes = _Codes()
    calls = [_calls(trace, place, membership, names, kinds) for place, trace in enumerate(traces)]
    every = joined(calls)
    p2p_ops = np.array([code for text, code in names.items() if text in P2P], dtype=np.int64)
    is_p2p = np.isin(every.op, p2p_ops)
    groups = list(membership.groups)
    parts: list[tuple[int, CallRows, Found]] = []
    for number, rows in by_key(every.group, ~is_p2p & (every.group >= 0)):
        group = groups[number]
        found, groups[number] = _collectives(traces, group, every.take(rows))
        parts.append((number, every.take(rows), found))
    parts += _transfers(traces, groups, every.take(is_p2p), names)
    parts = agreeing(traces, parts)
    return _assembled(groups, tuple(str(text) for text in names), parts, names)


# -- calls as columns ----------------------------------------------------------------


def _calls(
    trace: RankTrace, place: int, membership: Membership, names: _Codes, kinds: _Codes
) -> CallRows:
    """Calls of one rank in order of time, with codes that hold over all ranks."""
    calls = trace.calls
    op = _recoded(calls.op_id, trace.names, names)
    dtype = _recoded(calls.dtype_id, trace.names, names)
    size = np.maximum(calls.in_bytes, calls.out_bytes)
    columns = np.stack((op, dtype, np.where(trace.calls_of(_UNEVEN), -1, size)), axis=1)
    unique, inverse = np.unique(columns, axis=0, return_inverse=True)
    kind = np.array([kinds[tuple(row)] for row in unique.tolist()], dtype=np.int64)
    own = np.concatenate((membership.of[place], [-1])).astype(np.int64)
    group = own[calls.group]
    lone = (group < 0) & trace.calls_of(SYNCHRONISING)
    group = np.where(lone, membership.unnamed[place], group)
    numbers = np.concatenate((trace.steps.number, [-1]))
    out = CallRows(
        trace=np.full(len(calls), place, dtype=np.int64),
        call=np.arange(len(calls), dtype=np.int64),
        start_ns=trace.kernels.start_ns[calls.kernel],
        end_ns=trace.kernels.end_ns[calls.kernel],
        group=group,
        op=op,
        dtype=dtype,
        size=size,
        kind=kind[inverse.reshape(-1)] if len(calls) else np.empty(0, dtype=np.int64),
        seq=calls.seq,
        step=numbers[trace.kernels.step[calls.kernel]],
        peer=calls.peer.astype(np.int64),
        carried=calls.carried(),
    )
    return out.take(np.lexsort((out.call, out.start_ns)))


def _recoded(ids: npt.NDArray[np.int32], texts: Sequence[str], codes: _Codes) -> Int64:
    table = np.full(len(texts) + 1, -1, dtype=np.int64)
    for code in np.unique(ids[ids >= 0]).tolist():
        table[code] = codes[texts[code]]
    return table[ids]


# -- collectives of one group --------------------------------------------------------


def _collectives(traces: Sequence[RankTrace], group: Group, calls: CallRows) -> tuple[Found, Group]:
    """Match one group's collectives; a group whose members are not known may gain them."""
    if len(np.unique(calls.trace)) < 2:
        return nothing(calls), group
    if group.inferred and not group.ranks:
        members = tuple(traces[place].rank for place in np.unique(calls.trace).tolist())
        group = replace(group, ranks=members)
    found = _by_seq(calls)
    if found is None:
        found = _by_step(traces, calls)
    left = found.instance < 0
    if left.any():
        found = by_time(traces, calls, found)
    if group.inferred and not end_together(traces, calls, found):
        reason = "their process groups are not recorded, and no guess fits their times"
        return nothing(calls)._replace(refusals=((len(calls), reason),)), group
    return found, group


def _by_seq(calls: CallRows) -> Found | None:
    """By the group's sequence number; None when it is missing or contradicts the operations."""
    if len(calls) == 0 or (calls.seq < 0).any():
        return None
    order = np.lexsort((calls.start_ns, calls.trace, calls.seq))
    ordinal = np.empty(len(calls), dtype=np.int64)
    ordinal[order] = _ordinals(calls.seq[order], calls.trace[order])
    _, instance = np.unique(np.stack((calls.seq, ordinal), axis=1), axis=0, return_inverse=True)
    instance = instance.reshape(-1).astype(np.int64)
    odd = _disagree(instance, calls.kind)
    count = len(odd)
    if odd.sum() > max(_MOST_ODD * count, 1):
        return None
    refusals: tuple[tuple[int, str], ...] = ()
    if odd.any():
        dropped = odd[instance]
        instance[dropped] = -1
        refusals = ((int(dropped.sum()), "members of one sequence number do different things"),)
    return Found(instance, Match.SEQ, refusals)


def _ordinals(*keys: Int64) -> Int64:
    """Place of each row among the rows of equal keys; equal rows lie together."""
    size = len(keys[0])
    if size == 0:
        return np.empty(0, dtype=np.int64)
    new = np.zeros(size, dtype=np.bool_)
    new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    first = np.flatnonzero(new)
    out: Int64 = np.arange(size) - np.repeat(first, np.diff(np.append(first, size)))
    return out


def _disagree(instance: Int64, kind: Int64) -> npt.NDArray[np.bool_]:
    """(instances,) whether the members' fingerprints differ."""
    size = int(instance.max(initial=-1)) + 1
    low = np.full(size, np.iinfo(np.int64).max)
    high = np.full(size, -1, dtype=np.int64)
    known = instance >= 0
    np.minimum.at(low, instance[known], kind[known])
    np.maximum.at(high, instance[known], kind[known])
    odd: npt.NDArray[np.bool_] = (low != high) & (high >= 0)
    return odd


def _by_step(traces: Sequence[RankTrace], calls: CallRows) -> Found:
    """By order inside each marked step in which all members that have it do the same things."""
    instance = np.full(len(calls), -1, dtype=np.int64)
    if not all(traces[place].steps_marked for place in np.unique(calls.trace).tolist()):
        return Found(instance, Match.STEP)
    next_free = 0
    for number, rows in by_key(calls.step, calls.step >= 0):
        part = calls.take(rows)
        order = np.lexsort((part.start_ns, part.trace))
        ordinal = _ordinals(part.trace[order])
        count = np.bincount(part.trace)
        members = np.flatnonzero(count)
        if len(members) < 2 or len(set(count[members].tolist())) > 1:
            continue
        kind = part.kind[order].reshape(len(members), -1)
        if (kind != kind[0]).any():
            continue
        instance[rows[order]] = next_free + ordinal
        next_free += kind.shape[1]
        del number
    return Found(_coherent(calls, instance), Match.STEP)


def _coherent(calls: CallRows, instance: Int64) -> Int64:
    """Without the steps in which the members' ends do not fit the other steps.

    Cut windows can hold equally many equal calls by accident. Members of one collective
    end together, so the difference of their ends is the clock offset in every right step.
    """
    known = np.flatnonzero(instance >= 0)
    if len(known) == 0:
        return instance
    step, member = calls.step[known], calls.trace[known]
    difference = from_first(instance[known], calls.end_ns[known])
    keep = np.ones(len(known), dtype=np.bool_)
    for _, rows in by_key(member, np.ones(len(known), dtype=np.bool_)):
        medians = {
            number: float(np.median(difference[rows][step[rows] == number]))
            for number in np.unique(step[rows]).tolist()
        }
        if len(medians) < 3:
            continue
        centre = float(np.median(list(medians.values())))
        off = np.abs(np.array(list(medians.values())) - centre)
        limit = max(10 * float(np.median(off)), 4 * DEVICE_WIDTH_NS)
        wrong = [number for number, value in medians.items() if abs(value - centre) > limit]
        keep[rows] &= ~np.isin(step[rows], wrong)
    bad = np.unique(step[~keep])
    out: Int64 = instance.copy()
    out[known[np.isin(step, bad)]] = -1
    return out


# -- point-to-point ------------------------------------------------------------------


def _transfers(
    traces: Sequence[RankTrace], groups: list[Group], calls: CallRows, names: _Codes
) -> list[tuple[int, CallRows, Found]]:
    """Sends with their recvs; adds a group per pair of ranks, with the axis of their group."""
    if len(calls) == 0:
        return []
    send, recv = names["send"], names["recv"]
    place_of = {trace.rank: place for place, trace in enumerate(traces)}
    rank_of = np.array([trace.rank for trace in traces], dtype=np.int64)
    peer = _global_peers(groups, calls, rank_of)
    sends = calls.op == send
    source = np.where(sends, rank_of[calls.trace], peer)
    target = np.where(sends, peer, rank_of[calls.trace])
    usable = (peer >= 0) & (sends | (calls.op == recv))
    parts: list[tuple[int, CallRows, Found]] = []
    lost: dict[str, int] = defaultdict(int)
    untold = ~sends & (calls.op != recv)
    if untold.any():
        lost["their kernels do not tell which transfers they carry"] = int(untold.sum())
    if (~usable & ~untold).any():
        lost["the other end of the transfer is not recorded"] = int((~usable & ~untold).sum())
    key = np.minimum(source, target) * (1 << 24) + np.maximum(source, target)
    for number, rows in by_key(key, usable):
        ends = (number >> 24, number & ((1 << 24) - 1))
        if not all(rank in place_of for rank in ends):
            continue  # its partner is a missing rank
        part = calls.take(rows)
        found = _pairs(traces, part, source[rows] > target[rows])
        groups.append(_pair_group(groups, part, ends))
        parts.append((len(groups) - 1, part, found))
    if lost:
        empty = calls.take(np.zeros(len(calls), dtype=np.bool_))
        groups.append(Group("p2p", "", (), None))
        refusals = tuple((count, reason) for reason, count in lost.items())
        parts.append((len(groups) - 1, empty, nothing(empty)._replace(refusals=refusals)))
    return parts


def _global_peers(groups: Sequence[Group], calls: CallRows, rank_of: Int64) -> Int64:
    """Global ranks of the peers: some backends write the place in the group instead."""
    peer: Int64 = calls.peer.copy()
    for number, rows in by_key(calls.group, calls.group >= 0):
        members = np.array(groups[number].ranks, dtype=np.int64)
        told = peer[rows]
        known = told[told >= 0]
        if len(members) == 0 or len(known) == 0 or np.isin(known, members).all():
            continue
        if known.max() < len(members):
            peer[rows] = np.where(told >= 0, members[np.maximum(told, 0)], -1)
    # The only other member is the peer, recorded or not.
    for number, rows in by_key(calls.group, (peer < 0) & (calls.group >= 0)):
        members = np.array(groups[number].ranks, dtype=np.int64)
        if len(members) == 2:
            own = rank_of[calls.trace[rows]]
            peer[rows] = members.sum() - own
    return peer


def _pair_group(groups: Sequence[Group], part: CallRows, ends: tuple[int, int]) -> Group:
    known = part.group[part.group >= 0]
    axis = groups[int(known[0])].axis if len(known) else None
    return Group(f"{ends[0]}-{ends[1]}", "p2p", tuple(sorted(ends)), axis)


def _pairs(traces: Sequence[RankTrace], calls: CallRows, back: npt.NDArray[np.bool_]) -> Found:
    """The k-th send with the k-th recv of each direction, inside each common step.

    Args:
        traces: of all ranks.
        calls: of one pair of ranks.
        back: (calls,) whether the transfer goes from the higher rank to the lower one.
    """
    if len(np.unique(calls.trace)) < 2:
        return nothing(calls)
    kind = (calls.size * (1 << 10) + (calls.dtype & 1023)) * 2 + back
    like = replace(calls, kind=kind)
    instance = np.full(len(calls), -1, dtype=np.int64)
    for direction in (back, ~back):
        rows = np.flatnonzero(direction)
        if len(rows):
            found = _by_step(traces, like.take(rows)).instance
            instance[rows] = np.where(found >= 0, found + int(instance.max()) + 1, -1)
    found_all = Found(instance, Match.STEP)
    return by_time(traces, like, found_all) if (instance < 0).any() else found_all


# -- the result ----------------------------------------------------------------------


def _assembled(
    groups: Sequence[Group],
    texts: tuple[str, ...],
    parts: Sequence[tuple[int, CallRows, Found]],
    names: _Codes,
) -> Matching:
    """One table over all groups: instances by group and time, rows by instance and rank."""
    tables = []
    refusals: list[Refusal] = []
    margins = []
    p2p = names[P2P_OP]
    send_codes = {code for text, code in names.items() if text in P2P}
    for number, calls, found in parts:
        label = groups[number].description or groups[number].name
        refusals += [Refusal(label, count, reason) for count, reason in found.refusals]
        if found.margin is not None:
            margins.append(found.margin)
        rows = np.flatnonzero(found.instance >= 0)
        if len(rows):
            tables.append(_table(number, calls.take(rows), found, rows, send_codes, p2p))
    texts = tuple(str(text) for text in names)
    merged = _merged(tables)
    order = np.lexsort((merged["trace"], merged["instance"]))
    first = np.concatenate(([True], np.diff(merged["instance"][order]) != 0))[: len(order)]
    head = order[first]
    low, high = _extremes(merged["instance"], merged["size"])
    members = np.array([len(group.ranks) for group in groups] or [0], dtype=np.int64)
    columns = {name: values[head] for name, values in merged.items()}
    present = np.bincount(merged["instance"], minlength=len(head))
    group = columns["group"].astype(np.int64)
    instances = Instances(
        group=columns["group"].astype(np.int32),
        op=columns["op"].astype(np.int32),
        dtype=columns["dtype"].astype(np.int32),
        bytes=high,
        seq=columns["seq"],
        step=columns["step"],
        match=columns["match"].astype(np.uint8),
        members=np.maximum(members[group], present).astype(np.int32),
        least_bytes=low,
    )
    rows_table = Rows(
        instance=merged["instance"][order].astype(np.int32),
        trace=merged["trace"][order].astype(np.int32),
        call=merged["call"][order].astype(np.int32),
        start_ns=merged["start_ns"][order],
        end_ns=merged["end_ns"][order],
    )
    return Matching(
        tuple(groups), texts, instances, rows_table, tuple(refusals),
        min(margins) if margins else None,
    )  # fmt: skip


def _table(
    number: int, calls: CallRows, found: Found, rows: npt.NDArray[np.intp],
    send_codes: set[int], p2p: int,
) -> dict[str, Int64]:  # fmt: skip
    """Columns of one group's matched calls, its instances numbered in order of time."""
    _, instance = np.unique(found.instance[rows], return_inverse=True)
    instance = instance.reshape(-1)
    size = int(instance.max()) + 1
    # Order by the first member's own clock: monotonic, whatever the offsets are.
    at = np.full(size, np.iinfo(np.int64).max)
    lowest = int(calls.trace.min())
    np.minimum.at(at, instance, np.where(calls.trace == lowest, calls.start_ns, calls.start_ns))
    rank = np.empty(size, dtype=np.int64)
    rank[np.argsort(at, kind="stable")] = np.arange(size)
    instance = rank[instance]
    has_seq = found.match == Match.SEQ
    op = np.where(np.isin(calls.op, list(send_codes)), p2p, calls.op)
    return {
        "instance": instance,
        "group": np.full(len(rows), number, dtype=np.int64),
        "trace": calls.trace,
        "call": calls.call,
        "start_ns": calls.start_ns,
        "end_ns": calls.end_ns,
        "op": op,
        "dtype": calls.dtype,
        "size": calls.size,
        "seq": calls.seq if has_seq else instance,
        "step": calls.step,
        "match": np.full(len(rows), int(found.match), dtype=np.int64),
    }


def _merged(tables: Sequence[dict[str, Int64]]) -> dict[str, Int64]:
    names = ("instance", "group", "trace", "call", "start_ns", "end_ns", "op", "dtype", "size",
             "seq", "step", "match")  # fmt: skip
    base = 0
    for table in tables:
        table["instance"] = table["instance"] + base
        base = int(table["instance"].max()) + 1
    empty = np.empty(0, dtype=np.int64)
    return {
        name: np.concatenate([table[name] for table in tables]) if tables else empty
        for name in names
    }


def _extremes(instance: Int64, values: Int64) -> tuple[Int64, Int64]:
    """Least and greatest value of each instance."""
    size = int(instance.max(initial=-1)) + 1
    low = np.full(size, np.iinfo(np.int64).max)
    high = np.full(size, -1, dtype=np.int64)
    np.minimum.at(low, instance, values)
    np.maximum.at(high, instance, values)
    return low, high
