"""Clocks recovered within their uncertainty; parts that nothing connects; shared clocks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import synth
from tracekit.core.clock import ClockFit, fit
from tracekit.core.match import match
from tracekit.core.trace import RankTrace


def job(
    groups: list[tuple[int, ...]],
    offsets_us: list[float],
    *,
    calls: int = 60,
    noise_us: float = 2.0,
    drift_ppm: list[float] | None = None,
    seed: int = 0,
    ops: str = "all_reduce",
) -> list[RankTrace]:
    """Ranks whose collectives end together, seen through clocks that are off."""
    rng = np.random.default_rng(seed)
    text: dict[int, list[str]] = {rank: [] for rank in range(len(offsets_us))}
    for number, members in enumerate(groups):
        name = f"@g{number}:" + ",".join(map(str, members))
        for call in range(calls):
            true_us = 1e6 + call * 5000 + number * 300
            for rank in members:
                drift = 0.0 if drift_ppm is None else drift_ppm[rank] * 1e-6 * (true_us - 1e6)
                end = round((true_us + offsets_us[rank] + drift + rng.normal(0, noise_us)) * 1000)
                start = end - 50_000 - int(rng.integers(0, 50_000))
                text[rank].append(f"C {start}-{end} {name} #{call} op:{ops}")
    return [synth.rank(rank, " | ".join(rows)) for rank, rows in text.items()]


def clocks(traces: list[RankTrace]) -> tuple[ClockFit, ...]:
    return fit(traces, match(traces))


MESH = [(0, 1), (2, 3), (0, 2), (1, 3)]


@given(st.lists(st.floats(-50_000, 50_000), min_size=4, max_size=4), st.integers(0, 1000))
def test_offsets_are_within_three_times_their_uncertainty(off: list[float], seed: int) -> None:
    for item, true_us in zip(clocks(job(MESH, off, seed=seed)), off, strict=True):
        error = item.offset_ns - (true_us - off[0]) * 1000
        assert abs(error) <= max(3 * item.uncertainty_ns, 1)
        assert abs(error) < 5_000
        assert item.component == 0


def test_a_few_wrong_ends_move_nothing() -> None:
    traces = job(MESH, [0.0, 2000.0, -2000.0, 0.0])
    end = traces[1].kernels.end_ns.copy()
    end[::10] += 7_000_000
    kernels = dataclasses.replace(traces[1].kernels, end_ns=end)
    traces[1] = dataclasses.replace(traces[1], kernels=kernels)
    assert clocks(traces)[1].offset_ns == pytest.approx(2_000_000, abs=3_000)


def test_ranks_that_nothing_connects_are_not_compared() -> None:
    found = clocks(job([(0, 1), (2, 3)], [0.0, 10.0, 0.0, 500.0]))
    assert [item.component for item in found] == [0, 0, 1, 1]
    assert found[3].offset_ns == pytest.approx(500_000, abs=3_000)


def test_broadcasts_alone_connect_no_clocks() -> None:
    found = clocks(job([(0, 1)], [0.0, 10.0], ops="broadcast"))
    assert [item.component for item in found] == [0, 1]


def test_drift_is_fitted_where_it_is_seen_and_only_there() -> None:
    drifting = clocks(job(MESH, [0.0] * 4, drift_ppm=[0.0, 30.0, 0.0, 0.0], calls=200))
    assert drifting[1].drift_ppb == pytest.approx(30_000, rel=0.05)
    assert all(item.drift_ppb == 0 for item in clocks(job(MESH, [0.0] * 4, calls=200)))
    # What was recorded together is again together, at both ends of the capture.
    assert abs(drifting[1].aligned(np.array([drifting[1].at_ns]))[0] - drifting[1].at_ns) < 20_000


def test_uncertainty_shrinks_with_more_calls() -> None:
    few, many = (clocks(job(MESH, [0.0] * 4, noise_us=20, calls=n)) for n in (10, 200))
    assert many[3].uncertainty_ns < few[3].uncertainty_ns


def test_relabelling_ranks_relabels_offsets() -> None:
    traces = job([(0, 1, 2)], [0.0, 300.0, -700.0])
    order = [2, 0, 1]
    again = [dataclasses.replace(traces[old], rank=new) for new, old in enumerate(order)]
    plain, moved = clocks(traces), clocks(again)
    for new, old in enumerate(order):
        expected = plain[old].offset_ns - plain[order[0]].offset_ns
        assert moved[new].offset_ns == pytest.approx(expected, abs=2)


def on_cpu(traces: list[RankTrace], hosts: list[str]) -> list[RankTrace]:
    return [
        dataclasses.replace(trace, device_type="cpu", host=host)
        for trace, host in zip(traces, hosts, strict=True)
    ]


def test_ranks_of_one_host_share_the_clock_of_a_cpu_trace() -> None:
    # Half a millisecond late at every end is a busy core, not a clock.
    found = clocks(on_cpu(job([(0, 1)], [0.0, 45.0]), ["a", "a"]))
    assert [item.offset_ns for item in found] == [0, 0]
    assert [item.component for item in found] == [0, 0]
    two = clocks(on_cpu(job([(0, 1)], [0.0, 30_000.0]), ["a", "b"]))
    assert two[1].offset_ns == pytest.approx(30e6, abs=1e6)


def test_an_impossible_shared_clock_is_not_assumed() -> None:
    found = clocks(on_cpu(job([(0, 1)], [0.0, 30_000.0]), ["a", "a"]))
    assert found[1].offset_ns == pytest.approx(30e6, abs=1e6)
