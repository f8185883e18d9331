"""Clocks bounded by broadcasts and reduces: intervals, chains, contradictions, and no more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import synth
from tracekit.core.clock import ClockFit, fit
from tracekit.core.match import match
from tracekit.core.onesided import bounded
from tracekit.core.run import Diagnostic
from tracekit.core.trace import RankTrace

Call = tuple[str, dict[int, tuple[int, int]], int]  # operation, start and end per rank, root
SLACK_US = 9.0  # three standard errors of an end, which every bound is widened by


def ranks(offsets_us: list[int], *calls: Call, root: int | None = None) -> list[RankTrace]:
    """Traces of calls at these true times in µs, numbered; ``root`` is what rank 1 says instead."""
    text: dict[int, list[str]] = {rank: [] for rank in range(len(offsets_us))}
    for number, (op, times, place) in enumerate(calls):
        group = ",".join(map(str, sorted(times)))
        for rank, (start, end) in times.items():
            low, high = ((1_000_000 + at + offsets_us[rank]) * 1000 for at in (start, end))
            said = root if root is not None and rank == 1 else place
            text[rank].append(f"C {low}-{high} @g:{group} #{number} op:{op} root:{said}")
    return [synth.rank(rank, " | ".join(rows)) for rank, rows in text.items()]


def found(traces: list[RankTrace]) -> tuple[tuple[ClockFit, ...], tuple[Diagnostic, ...]]:
    matching = match(traces)
    return bounded(traces, matching, fit(traces, matching))


def down(start: int, end: int) -> Call:
    """A broadcast of rank 0 that begins at ``start`` and is over on rank 1 at ``end``."""
    return "broadcast", {0: (start, end - 5), 1: (start - 30, end)}, 0


def up(start: int, end: int) -> Call:
    """A reduce to rank 0 to which rank 1 comes at ``start``, over on rank 0 at ``end``."""
    return "reduce", {0: (start - 30, end), 1: (start, end - 5)}, 0


def test_bounds_from_both_sides_make_an_interval() -> None:
    # Rank 1 ends 40 µs after rank 0 began, and 60 the other way.
    (first, second), notes = found(ranks([0, 700], down(100, 140), up(500, 560)))
    assert notes == ()
    assert (first.component, second.component) == (0, 0)
    assert first.uncertainty_ns == 0
    # 700 - 60 - 9 ... 700 + 40 + 9 µs, apart from drift over the 200 µs to the middle.
    assert second.offset_ns == pytest.approx(690_000, abs=100)
    assert second.uncertainty_ns == pytest.approx((50 + SLACK_US) * 1000 / math.sqrt(3), rel=0.01)


def test_the_tightest_of_many_counts() -> None:
    calls = [down(1000 * k, 1000 * k + 40 + 10 * k) for k in range(1, 9)]
    calls += [up(1000 * k + 500, 1000 * k + 540 + 10 * k) for k in range(1, 9)]
    (_, second), _ = found(ranks([0, -300], *calls))
    assert abs(second.offset_ns + 300_000) < 1_000
    assert second.uncertainty_ns == pytest.approx((50 + SLACK_US) * 1000 / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("call", [down, up])
def test_bounds_from_one_side_determine_nothing(call: object) -> None:
    assert callable(call)
    fits, notes = found(ranks([0, 700], call(100, 140), call(500, 560)))
    assert [item.component for item in fits] == [0, 1]
    assert notes == ()


def test_a_chain_that_leads_back_bounds_all_of_it() -> None:
    calls = [
        ("broadcast", {one: (at, at + 20), other: (at, at + 30)}, min(one, other) != one)
        for at, one, other in ((100, 0, 1), (200, 1, 2), (300, 2, 0))
    ]
    fits, _ = found(
        ranks([0, 5_000, -8_000], *[(op, times, int(place)) for op, times, place in calls])
    )
    assert [item.component for item in fits] == [0, 0, 0]
    for item, true_us in zip(fits, (0, 5_000, -8_000), strict=True):
        # Three bounds of 30 µs lie around the chain.
        assert abs(item.offset_ns - true_us * 1000) <= 1.5 * (30 + SLACK_US) * 1000 + 500
        assert item.uncertainty_ns <= 1.5 * (30 + SLACK_US) * 1000 / math.sqrt(3) + 500
    halves, _ = found(
        ranks([0, 0, 0], *[(op, times, int(place)) for op, times, place in calls[:2]])
    )
    assert [item.component for item in halves] == [0, 1, 2]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 400), st.integers(0, 400)), min_size=1,
             max_size=20),
    st.integers(-50_000, 50_000),
)  # fmt: skip
def test_the_truth_is_in_the_interval(waits: list[tuple[bool, int, int]], off: int) -> None:
    calls = [
        (down if forth else up)(1000 * number + start, 1000 * number + start + took + 5)
        for number, (forth, start, took) in enumerate(waits)
    ]
    fits, notes = found(ranks([0, off], *calls))
    assert notes == ()
    assert (fits[1].component == 0) == (len({forth for forth, _, _ in waits}) == 2)
    if fits[1].component == 0:
        error = abs(fits[1].offset_ns - off * 1000)
        assert error <= math.sqrt(3) * fits[1].uncertainty_ns + 1


SHARED = [("all_reduce", {0: (at, at + 50), 1: (at, at + 50)}, -1) for at in range(1000, 9000, 500)]


def test_what_is_determined_is_not_moved() -> None:
    plain, _ = found(ranks([0, 700], *SHARED))
    more, notes = found(ranks([0, 700], *SHARED, down(100, 140), up(500, 560)))
    assert notes == ()
    assert more[1].offset_ns == plain[1].offset_ns
    assert more[1].uncertainty_ns == plain[1].uncertainty_ns


def test_a_fit_that_breaks_the_order_is_told() -> None:
    # Rank 1 is over 200 µs before the data can have left rank 0.
    fits, (note,) = found(
        ranks([0, 700], *SHARED, ("broadcast", {0: (400, 500), 1: (100, 200)}, 0))
    )
    assert (note.code, note.count) == ("clock-breaks-order", 1)
    assert "rank 1 left a broadcast 200 µs before rank 0 entered it" in note.message
    assert fits[1].component == 0
    within = ("broadcast", {0: (205, 500), 1: (100, 200)}, 0)
    assert found(ranks([0, 700], *SHARED, within))[1] == ()


def test_bounds_that_contradict_each_other_connect_nothing() -> None:
    # Each is over before the other began.
    impossible = ("broadcast", {0: (400, 500), 1: (100, 200)}, 0)
    fits, (note,) = found(ranks([0, 0], impossible, up(600, 650)))
    assert note.code == "bounds-contradict"
    assert [item.component for item in fits] == [0, 1]


@pytest.mark.parametrize(("place", "said"), [(0, 1), (7, 7)])
def test_roots_that_differ_or_are_no_member_are_not_used(place: int, said: int) -> None:
    calls = [("broadcast", times, place) for _, times, _ in (down(100, 140), up(500, 560))]
    fits, (note,) = found(ranks([0, 0], *calls, root=said))
    assert (note.code, note.count) == ("odd-root", 2)
    assert [item.component for item in fits] == [0, 1]


def test_without_a_root_nothing_is_known() -> None:
    calls = [(op, times, -1) for op, times, _ in (down(100, 140), up(500, 560))]
    fits, notes = found(ranks([0, 0], *calls))
    assert notes == ()
    assert [item.component for item in fits] == [0, 1]


def test_the_order_of_members_is_that_of_the_trace() -> None:
    # The root is the first in the list, rank 1: not the lowest.
    text = "C {}-{} @g:1,0 #{} op:{} root:0"
    one = synth.rank(0, text.format(70_000, 140_000, 0, "broadcast"))
    other = synth.rank(1, text.format(100_000, 130_000, 0, "broadcast"))
    matching = match((one, other))
    early = fit((one, other), matching)
    assert bounded((one, other), matching, early)[1] == ()
    # With rank 0 as the root, rank 1 would have ended before it began.
    late = synth.rank(0, text.format(135_000, 140_000, 0, "broadcast") + " | C 0-1 @g:1,0 #1")
    sure = synth.rank(1, text.format(100_000, 120_000, 0, "broadcast") + " | C 0-1 @g:1,0 #1")
    matching = match((late, sure))
    assert bounded((late, sure), matching, fit((late, sure), matching))[1] == ()


def test_far_from_where_offsets_hold_drift_widens_the_bounds() -> None:
    near, _ = found(ranks([0, 0], down(100, 140), up(500, 560)))
    far, _ = found(ranks([0, 0], down(100, 140), up(10_000_500, 10_000_560)))
    # Half of ten seconds, at 50 ppm, on both sides.
    assert far[1].uncertainty_ns - near[1].uncertainty_ns == pytest.approx(
        250_000 / np.sqrt(3), rel=0.01
    )
