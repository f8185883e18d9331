"""Clocks bounded by what must come before what, where ends prove nothing.

Definitions: no member can end a broadcast (or scatter) before its root has started it; the root
cannot end a reduce (or gather) before every member has; nor can a rank receive what its peer
has not started to send, which is all that is known of a coalesced transfer. Each such pair of
calls says that one clock is ahead of another by no more than some amount.

Between ranks that nothing else connects, bounds in one direction determine nothing. Where a
chain of them leads back, the offset lies in an interval: its middle is taken, with the standard
error of a value that is equally likely anywhere in it, half its width ÷ √3. Inside a component
bounds move nothing, since the interval is as wide as two transfers and what connects the
component knows better; they check it: a fit that breaks one by more than 3 sigma is told.

Limits: roots must be recorded, and alike on all members. Groups matched by a vote are left out,
since their offset is a guess already. More than ``MOST_PARTS`` components are not joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import END_SIGMA_NS, POSSIBLE_DRIFT, ClockFit, Float
from tracekit.core.coalesced import end_with_others
from tracekit.core.collective import FROM_ROOT, TO_ROOT, Match, Matching
from tracekit.core.run import Diagnostic, Severity
from tracekit.core.trace import Int64, RankTrace

MOST_PARTS = 1_000
_ERRORS = 3.0


class _Pairs(NamedTuple):
    """Rows of the matching: ``late`` cannot end before ``early`` has started."""

    late: Int64
    early: Int64


def bounded(
    traces: Sequence[RankTrace], matching: Matching, fits: Sequence[ClockFit]
) -> tuple[tuple[ClockFit, ...], tuple[Diagnostic, ...]]:
    """The fits with what one-sided operations add, and notes where the two contradict.

    Args:
        traces: of all ranks.
        matching: their calls.
        fits: one per trace.
    """
    root, notes = _roots(traces, matching)
    pairs = _pairs(traces, matching, root)
    if len(pairs.late) == 0:
        return tuple(fits), tuple(notes)
    rows = matching.rows
    late, early = rows.trace[pairs.late], rows.trace[pairs.early]
    end, start = rows.end_ns.copy(), rows.start_ns.copy()
    for place, fit in enumerate(fits):
        mine = rows.trace == place
        end[mine], start[mine] = fit.aligned(end[mine]), fit.aligned(start[mine])
    slack = (end[pairs.late] - start[pairs.early]).astype(np.float64)
    error = np.array([fit.uncertainty_ns for fit in fits])
    sigma = np.hypot(END_SIGMA_NS, np.hypot(error[late], error[early]))
    part = np.array([fit.component for fit in fits], dtype=np.int64)
    same = part[late] == part[early]
    broken = np.flatnonzero(same & (slack < -_ERRORS * sigma))
    if len(broken):
        worst = broken[np.argmin(slack[broken])]
        notes.append(_broken(traces, matching, pairs, broken, int(worst), -slack[worst]))
    # Clocks of two components may drift apart between a bound and the middle of the capture.
    drift = POSSIBLE_DRIFT * np.abs(rows.end_ns[pairs.late] - _middles(matching, len(fits))[late])
    most = slack + _ERRORS * sigma + drift
    joined, contradicting = _joined(fits, part[late][~same], part[early][~same], most[~same])
    if contradicting:
        notes.append(
            Diagnostic(
                "bounds-contradict", Severity.WARNING, None, contradicting,
                "what must come before what contradicts itself between sets of ranks; "
                "their clocks stay unconnected",
            )
        )  # fmt: skip
    return joined, tuple(notes)


# -- what must come before what ------------------------------------------------------


def _roots(traces: Sequence[RankTrace], matching: Matching) -> tuple[Int64, list[Diagnostic]]:
    """(instances,) row of the root of each rooted collective, -1 where it is not known or here."""
    rows, instances = matching.rows, matching.instances
    out = np.full(len(instances), -1, dtype=np.int64)
    rooted = np.isin(matching.ops().astype(str), list(FROM_ROOT | TO_ROOT))
    told: dict[int, set[int | None]] = {}
    rank = np.array([trace.rank for trace in traces], dtype=np.int64)
    chosen = np.flatnonzero(rooted[rows.instance]) if len(rows) else np.empty(0, dtype=np.int64)
    for row in chosen.tolist():
        trace, instance = traces[rows.trace[row]], int(rows.instance[row])
        place = int(trace.calls.root[rows.call[row]])
        if place < 0:
            continue
        own = trace.calls.group[rows.call[row]]
        # A trace lists the members of its groups in their order, if it does.
        members = trace.groups[own].ranks if own >= 0 else ()
        members = members or matching.groups[instances.group[instance]].ranks
        found = members[place] if place < len(members) else None
        told.setdefault(instance, set()).add(found)
    odd = 0
    for instance, ranks in told.items():
        (first, *others) = ranks
        if others or first is None:
            odd += 1
            continue
        mine = chosen[rows.instance[chosen] == instance]
        at = mine[rank[rows.trace[mine]] == first]
        out[instance] = at[0] if len(at) else -1
    notes = []
    if odd:
        message = "members name different roots, or one that is no member; their order is not used"
        notes.append(Diagnostic("odd-root", Severity.WARNING, None, odd, message))
    return out, notes


def _pairs(traces: Sequence[RankTrace], matching: Matching, root: Int64) -> _Pairs:
    rows, instances = matching.rows, matching.instances
    if len(rows) == 0:
        return _Pairs(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    sure = instances.match != Match.VOTE
    ops = matching.ops().astype(str)
    numbers = np.arange(len(rows))
    other = root[rows.instance]
    use = sure[rows.instance] & (other >= 0) & (other != numbers)
    spreads = use & np.isin(ops, list(FROM_ROOT))[rows.instance]
    gathers = use & np.isin(ops, list(TO_ROOT))[rows.instance]
    got, given = _coalesced(traces, matching, sure)
    return _Pairs(
        np.concatenate((numbers[spreads], other[gathers], got)),
        np.concatenate((other[spreads], numbers[gathers], given)),
    )


def _coalesced(
    traces: Sequence[RankTrace], matching: Matching, sure: npt.NDArray[np.bool_]
) -> tuple[Int64, Int64]:
    """Rows of the receive and of the send of each transfer whose ends say nothing."""
    rows = matching.rows
    apart = end_with_others(traces, matching) & sure & (matching.present() == 2)
    chosen = np.flatnonzero(apart[rows.instance])
    sends = matching.per_row([trace.calls_of({"send"}) for trace in traces])
    # Rows lie in order of instance: the two of a pair are neighbours.
    first, second = chosen[0::2], chosen[1::2]
    given = np.where(sends[first], first, second)
    got = np.where(sends[first], second, first)
    return got, given


def _middles(matching: Matching, count: int) -> Int64:
    """(traces,) the middle of what each recorded, on its own clock."""
    rows = matching.rows
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, rows.trace, rows.end_ns)
    np.maximum.at(last, rows.trace, rows.end_ns)
    out: Int64 = first // 2 + last // 2
    return out


def _broken(
    traces: Sequence[RankTrace], matching: Matching, pairs: _Pairs,
    broken: npt.NDArray[np.intp], worst: int, by_ns: float,
) -> Diagnostic:  # fmt: skip
    rows = matching.rows
    late, early = int(pairs.late[worst]), int(pairs.early[worst])
    op = matching.ops()[rows.instance[late]]
    one, other = (traces[rows.trace[row]].rank for row in (late, early))
    message = (
        f"by their clocks, calls end before what they need has begun: rank {one} left a {op} "
        f"{by_ns / 1e3:,.0f} µs before rank {other} entered it; one of the two clocks is off by "
        "more than its uncertainty, or the calls are matched wrongly"
    )
    return Diagnostic("clock-breaks-order", Severity.WARNING, None, len(broken), message)


# -- components ----------------------------------------------------------------------


def _joined(
    fits: Sequence[ClockFit], late: Int64, early: Int64, most: Float
) -> tuple[tuple[ClockFit, ...], int]:
    """The fits with components joined that bound each other, and how many contradict."""
    # Only what is bounded from both sides can be joined.
    parts = np.intersect1d(late, early)
    use = np.isin(late, parts) & np.isin(early, parts)
    if not use.any() or len(parts) > MOST_PARTS:
        return tuple(fits), 0
    # How far, at most, a component's clock is ahead of another's beyond the fits.
    ahead = np.full((len(parts), len(parts)), np.inf)
    np.fill_diagonal(ahead, 0.0)
    ends = (np.searchsorted(parts, late[use]), np.searchsorted(parts, early[use]))
    np.minimum.at(ahead, ends, most[use])
    for middle in range(len(parts)):  # Floyd and Warshall: bounds along chains
        np.minimum(ahead, ahead[:, middle, None] + ahead[None, middle], out=ahead)
    wrong = np.diag(ahead) < 0
    both = np.isfinite(ahead) & np.isfinite(ahead.T) & ~wrong[:, None] & ~wrong[None]
    # Being bounded by each other is transitive: the lowest of each set is its reference.
    reference = np.argmax(both | np.eye(len(parts), dtype=np.bool_), axis=1)
    moves = {
        int(part): (
            int(parts[to]),
            (ahead[at, to] - ahead[to, at]) / 2,
            (ahead[at, to] + ahead[to, at]) / 2 / np.sqrt(3),
        )
        for at, (part, to) in enumerate(zip(parts, reference, strict=True))
        if at != to
    }
    out = []
    for fit in fits:
        if fit.component in moves:
            to, shift, spread = moves[fit.component]
            fit = dataclasses.replace(
                fit,
                offset_ns=float(fit.offset_ns + shift),
                uncertainty_ns=float(np.hypot(fit.uncertainty_ns, spread)),
                component=to,
            )
        out.append(fit)
    return tuple(out), int(wrong.sum())
