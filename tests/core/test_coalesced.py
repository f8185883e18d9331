"""Transfers that share kernels: which end together, and what the others are good for."""

from __future__ import annotations

import numpy as np
import pytest

from tests import synth
from tracekit.core.clock import fit
from tracekit.core.coalesced import end_with_others
from tracekit.core.match import match
from tracekit.core.onesided import bounded
from tracekit.core.timing import timing
from tracekit.core.trace import RankTrace


def batch(start: int, end: int, *transfers: str) -> str:
    """One kernel at these µs with transfers like "send:1"."""
    pieces = []
    for number, text in enumerate(transfers):
        op, peer = text.split(":")
        at = "+" if number else f"{start * 1000}-{end * 1000}"
        pieces.append(f"C {at} op:{op} peer:{peer} bytes:8")
    return " | ".join(pieces)


def rank(number: int, *batches: str) -> RankTrace:
    return synth.rank(number, " | ".join(batches), "0-1000000000")


def ring(shift_us: list[int]) -> list[RankTrace]:
    """Ranks that each send to the next and receive from the one before, in one kernel."""
    size = len(shift_us)
    return [
        rank(
            number,
            *(
                batch(
                    10_000 + 500 * step + shift + 3 * number,
                    10_060 + 500 * step + shift + 3 * number,
                    f"send:{(number + 1) % size}", f"recv:{(number - 1) % size}",
                )
                for step in range(20)
            ),
        )
        for number, shift in enumerate(shift_us)
    ]  # fmt: skip


def test_neighbours_that_exchange_end_together() -> None:
    one = rank(0, *(batch(t, t + 50, "send:1", "recv:1") for t in range(1000, 9000, 500)))
    other = rank(1, *(batch(t + 720, t + 750, "recv:0", "send:0") for t in range(1000, 9000, 500)))
    matching = match((one, other))
    assert (matching.present() == 2).all()
    assert len(matching.instances) == 32
    assert not end_with_others((one, other), matching).any()
    fits = fit((one, other), matching)
    assert fits[1].offset_ns == pytest.approx(700_000, abs=1_000)


@pytest.mark.parametrize("more", ["send:2", "recv:2"])
def test_a_kernel_that_carries_more_may_end_apart(more: str) -> None:
    # Whether rank 2 is there to show it or not.
    one = rank(0, batch(0, 90, "send:1", more))
    other = rank(1, batch(0, 40, "recv:0"))
    matching = match((one, other))
    assert end_with_others((one, other), matching).tolist() == [True]
    # It connects no clocks by its ends, and one direction bounds nothing.
    fits, notes = bounded((one, other), matching, fit((one, other), matching))
    assert [item.component for item in fits] == [0, 1]
    assert notes == ()


def test_plain_transfers_are_as_ever() -> None:
    one, other = rank(0, batch(0, 50, "send:1")), rank(1, batch(0, 50, "recv:0"))
    matching = match((one, other))
    assert end_with_others((one, other), matching).tolist() == [False]
    assert [item.component for item in fit((one, other), matching)] == [0, 0]


def test_a_ring_bounds_its_own_clocks() -> None:
    shift = [0, 4_000, -3_000, 900]
    traces = ring(shift)
    matching = match(traces)
    assert end_with_others(traces, matching).all()
    before = fit(traces, matching)
    assert [item.component for item in before] == [0, 1, 2, 3]
    fits, notes = bounded(traces, matching, before)
    assert notes == ()
    assert {item.component for item in fits} == {0}
    for item, true_us in zip(fits, shift, strict=True):
        assert abs(item.offset_ns - true_us * 1000) <= 1.8 * item.uncertainty_ns + 1
        assert item.uncertainty_ns < 150_000


def test_of_two_ends_the_earlier_is_that_of_the_transfer() -> None:
    one = rank(0, batch(0, 90, "send:1", "send:2"))
    other = rank(1, batch(10, 40, "recv:0"))
    third = rank(2, batch(30, 90, "recv:0"))
    traces = (one, other, third)
    matching = match(traces)
    same = tuple(type(item)(item.rank, 0.0, 0.0, 0) for item in fit(traces, matching))
    times = timing(traces, matching, same)
    groups = [matching.groups[number].ranks for number in matching.instances.group.tolist()]
    assert dict(zip(groups, times.transfer.tolist(), strict=True)) == {
        (0, 1): 30_000, (0, 2): 60_000,
    }  # fmt: skip
    assert (times.transfer_ns == times.transfer[matching.rows.instance]).all()
    assert np.array_equal(times.wait_ns >= 0, np.ones(4, dtype=np.bool_))
