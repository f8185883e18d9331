"""Matching by number, by step and by vote; refusals; groups that look alike."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import synth
from tracekit.core.collective import Match, Matching
from tracekit.core.match import match
from tracekit.core.topology import Group
from tracekit.core.trace import RankTrace


def pairs(found: Matching) -> list[tuple[int, ...]]:
    """Calls of each instance, in order of instance and rank."""
    rows = found.rows
    return [
        tuple(rows.call[rows.instance == number].tolist()) for number in range(len(found.instances))
    ]


def test_sequence_numbers_join_calls_however_the_windows_lie() -> None:
    one = synth.rank(0, "C 0-5 @tp:0,1 #7 | C 10-15 @tp:0,1 #8")
    other = synth.rank(1, "C 900-905 @tp:0,1 #8 | C 990-995 @tp:0,1 #9")
    found = match((one, other))
    assert pairs(found) == [(1, 0), (0,), (1,)] or sorted(pairs(found)) == [(0,), (1,), (1, 0)]
    joined = [rows for rows in pairs(found) if len(rows) == 2]
    assert joined == [(1, 0)]
    assert (found.complete() == (found.present() == 2)).all()


def test_numbers_that_contradict_the_operations_are_not_believed() -> None:
    calls = " | ".join(f"C {10 * k}-{10 * k + 5} @tp:0,1 #{k} bytes:{k}" for k in range(6))
    other = " | ".join(f"C {10 * k}-{10 * k + 5} @tp:0,1 #{k + 1} bytes:{k}" for k in range(6))
    found = match((synth.rank(0, calls, "0-100"), synth.rank(1, other, "0-100")))
    assert pairs(found) == [(k, k) for k in range(6)]
    assert set(found.instances.match.tolist()) == {Match.STEP}


def test_order_counts_inside_a_marked_step_only() -> None:
    one = synth.rank(0, "C 0-5 @tp:0,1 | C 110-115 @tp:0,1 | C 120-125 @tp:0,1", "0-100 100-200")
    other = synth.rank(1, "C 10-15 @tp:0,1 | C 20-25 @tp:0,1", "0-100", first_step=1)
    found = match((one, other))
    assert pairs(found) == [(1, 0), (2, 1)]
    assert found.instances.step.tolist() == [1, 1]


def times(rng: np.random.Generator, count: int) -> list[int]:
    """Ends of calls in µs, with the irregular distances that real steps have."""
    return np.cumsum(rng.integers(800, 1200, count)).tolist()


def ranks_cut_apart(marked: bool, ends: list[int], offset_us: int, cut: int) -> list[RankTrace]:
    first = " | ".join(f"C {at - 100}-{at} @tp:0,1" for at in ends)
    second = " | ".join(f"C {at - 40 + offset_us}-{at + offset_us} @tp:0,1" for at in ends[cut:])
    last = ends[-1] + 1000
    return [
        synth.rank(0, first, f"0-{last}", unit_ns=1000, marked=marked),
        synth.rank(1, second, f"0-{last + offset_us}", unit_ns=1000, marked=marked),
    ]


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_a_vote_finds_the_offset_of_windows_cut_apart(offset: int, cut: int, seed: int) -> None:
    ends = times(np.random.default_rng(seed), 40)
    found = match(ranks_cut_apart(False, ends, offset, cut))
    assert pairs(found) == [(cut + k, k) for k in range(40 - cut)]
    assert set(found.instances.match.tolist()) == {Match.VOTE}
    assert found.margin is not None


def test_steps_too_regular_for_a_vote_are_refused_with_the_reason() -> None:
    found = match(ranks_cut_apart(False, list(range(1000, 41_000, 1000)), 123, 2))
    assert len(found.instances) == 0
    assert "ambiguous" in found.refusals[0].reason
    assert "ProfilerStep" in found.refusals[0].reason


def test_ranks_of_one_host_resolve_what_is_too_regular() -> None:
    ends = list(range(10_000, 410_000, 10_000))
    ranks = [
        dataclasses.replace(trace, host="node0") for trace in ranks_cut_apart(False, ends, 20, 2)
    ]
    assert pairs(match(ranks)) == [(2 + k, k) for k in range(38)]


def test_one_group_under_two_names_is_one_group() -> None:
    one = synth.rank(0, "C 0-5 @tp:0,1 #1 | C 10-15 @tp:0,1 #2")
    other = synth.rank(1, "C 0-5 @tp:0,1 #1 | C 10-15 @tp:0,1 #2")
    other = dataclasses.replace(other, groups=(Group("17", "tp", (0, 1), "tp"),))
    found = match((one, other))
    assert pairs(found) == [(0, 0), (1, 1)]
    assert len(found.groups) == 1


def test_groups_with_equal_members_stay_apart_by_description() -> None:
    text = "C 0-5 @tp:0,1 #1 | C 10-15 @ep:0,1 #1"
    found = match((synth.rank(0, text), synth.rank(1, text)))
    assert pairs(found) == [(0, 0), (1, 1)]
    assert sorted(group.axis or "" for group in found.groups) == ["ep", "tp"]


def test_a_list_cut_on_one_rank_is_known_from_another() -> None:
    text = "C 0-5 @dp #1"
    full = dataclasses.replace(synth.rank(0, text), groups=(Group("dp", "dp", (0, 1), "dp"),))
    found = match((full, synth.rank(1, text)))
    assert pairs(found) == [(0, 0)]
    assert found.groups[0].ranks == (0, 1)
    assert not found.groups[0].inferred


def test_members_that_nobody_recorded_are_marked_inferred() -> None:
    text = "C 0-5 @dp #1"
    found = match((synth.rank(0, text), synth.rank(1, text)))
    assert found.groups[0].ranks == (0, 1)
    assert found.groups[0].inferred


def test_sends_meet_receives_of_their_direction_in_order() -> None:
    one = synth.rank(
        0, "C 0-5 @pp:0,1 op:send peer:1 bytes:8 | C 6-9 @pp:0,1 op:recv peer:1 bytes:8", "0-50"
    )
    other = synth.rank(
        1, "C 2-5 @pp:0,1 op:recv peer:0 bytes:8 | C 7-9 @pp:0,1 op:send peer:0 bytes:8", "0-50"
    )
    found = match((one, other))
    assert pairs(found) == [(0, 0), (1, 1)]
    assert found.p2p().all()


def test_peers_written_as_places_in_the_group_are_understood() -> None:
    one = synth.rank(4, "C 0-5 @pp:4,6 op:send peer:1 bytes:8", "0-50")
    other = synth.rank(6, "C 2-5 @pp:4,6 op:recv peer:0 bytes:8", "0-50")
    assert pairs(match((one, other))) == [(0, 0)]


def test_transfers_without_a_peer_are_refused() -> None:
    text = "C 0-5 op:send_recv"
    found = match((synth.rank(0, text, "0-9"), synth.rank(1, text, "0-9")))
    assert len(found.rows) == 0
    assert [(item.count, item.reason) for item in found.refusals] == [
        (2, "their kernels do not tell which transfers they carry")
    ]
    found = match((synth.rank(0, "C 0-5 op:send"), synth.rank(1, "C 0-5 op:recv")))
    assert [(item.count, item.reason) for item in found.refusals] == [
        (2, "the other end of the transfer is not recorded")
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_names_of_ranks_do_not_matter(order: tuple[int, ...]) -> None:
    text = "C 0-5 @tp:0,1,2 #1 | C 10-15 @tp:0,1,2 #2"
    traces = tuple(synth.rank(place, text) for place in range(3))
    again = tuple(dataclasses.replace(traces[old], rank=new) for new, old in enumerate(order))
    assert pairs(match(again)) == pairs(match(traces)) == [(0, 0, 0), (1, 1, 1)]
