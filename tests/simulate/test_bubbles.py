"""Bubbles of simulated pipelines: the closed forms, and parts that sum to wholes."""

from __future__ import annotations

import pytest

from tests.simulate.jobs import ideal
from tracekit import simulate
from tracekit.core import bubble, schedule
from tracekit.simulate import Spec

CASES = [
    (name, ranks, microbatches, chunks)
    for name, chunks in (
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved_1f1b", 2),
        ("zero_bubble", 1),
        ("zero_bubble", 2),
        ("zbv", 2),
        ("dualpipev", 2),
    )
    for ranks in (2, 4, 8)
    for microbatches in ((2 * ranks, 4 * ranks))
]


@pytest.mark.parametrize(("name", "ranks", "microbatches", "chunks"), CASES)
def test_without_latency_and_noise_they_are_the_closed_forms(
    name: str, ranks: int, microbatches: int, chunks: int
) -> None:
    spec = ideal(
        pp=ranks, schedule=name, chunks=chunks, microbatches=microbatches,
        layers=ranks * chunks, steps=2,
    )  # fmt: skip
    ns = 100_000 * chunks  # of a rank's chunks together
    expected = bubble.closed_form_bubble(spec.pipeline(), ns, ns, ns)
    for row in simulate.truth(spec)["bubbles"]:
        assert row["bubble_ns"] == row["schedule_ns"] == expected
        assert row["busy_ns"] == 3 * ns * microbatches
        assert (row["imbalance_ns"], row["p2p_ns"], row["jitter_ns"]) == (0, 0, 0)


@pytest.mark.parametrize("name", schedule.SCHEDULES)
def test_parts_are_told_apart_and_sum(name: str) -> None:
    chunks = 1 if name in ("gpipe", "1f1b", "zero_bubble") else 2
    plan = schedule.pipeline(name, 4, 16, chunks)
    factors = tuple(1.5 if stage == 1 else 1.0 for stage in range(plan.placement.stages))
    fields = {"pp": 4, "schedule": name, "chunks": chunks, "microbatches": 16, "steps": 2}
    clean = simulate.truth(ideal(**fields))["bubbles"]
    uneven = simulate.truth(ideal(**fields, stage_factors=factors))["bubbles"]
    far = simulate.truth(ideal(**fields, intra_latency_us=20))["bubbles"]
    assert sum(row["imbalance_ns"] for row in uneven) > 0
    assert all(row["p2p_ns"] == 0 for row in uneven)
    assert all(row["p2p_ns"] > 0 and row["imbalance_ns"] == 0 for row in far)
    for row in (*clean, *uneven, *far):
        parts = ("schedule_ns", "imbalance_ns", "p2p_ns", "jitter_ns")
        assert sum(row[part] for part in parts) == row["bubble_ns"]
        assert row["bubble_ns"] + row["busy_ns"] == row["window_ns"]
        assert abs(row["jitter_ns"]) <= 0.01 * row["window_ns"]


def test_noise_is_jitter() -> None:
    spec = Spec(pp=4, tp=2, microbatches=8, steps=3)
    for row in simulate.truth(spec)["bubbles"]:
        parts = ("schedule_ns", "imbalance_ns", "p2p_ns", "jitter_ns")
        assert sum(row[part] for part in parts) == row["bubble_ns"]
        assert row["jitter_ns"] != 0


def test_a_slow_stage_is_imbalance() -> None:
    spec = ideal(pp=2, layers=2, microbatches=4, steps=1, faults=("slow-stage:1:2",))
    first, second = simulate.truth(spec)["bubbles"]
    # 300 us of mean bubble beside; stage 0 waits for four times 300 us more.
    assert (first["busy_ns"], second["busy_ns"]) == (1_200_000, 2_400_000)
    assert first["imbalance_ns"] > second["imbalance_ns"]
