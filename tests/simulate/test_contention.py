"""Planted contention: kernels lose exactly what their overlap costs, and only then."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tests.simulate.jobs import ideal
from tracekit import simulate
from tracekit.core.intervals import covered_within, union
from tracekit.core.trace import Int64
from tracekit.simulate import Spec, engine
from tracekit.simulate.engine import Do, Lane

KAPPA = {"attention": 0.33 / 0.18, "*": 2.08 / 1.18, "optimizer": 1.0}  # of nccl#1428


def _rows(lane: Lane, *kinds: Do) -> list[int]:
    return [row for row in range(len(lane.start)) if lane.ops[row % len(lane.ops)].do in kinds]


def _overlap(lane: Lane, place: int, rows: list[int]) -> Int64:
    """Time of each kernel with communication beside it on this rank."""
    calls = _rows(lane, Do.COLLECTIVE, Do.SEND, Do.RECV)
    spans = union(lane.start[calls, place], lane.end[calls, place])
    return covered_within(spans, lane.start[rows, place], lane.end[rows, place])


@pytest.mark.parametrize(
    "shape",
    [
        {"dp": 4, "layers": 6},
        {"fsdp": 4, "layers": 6},
        {"pp": 4, "microbatches": 8},
        {"pp": 4, "schedule": "zbv", "microbatches": 8},
        {"pp": 4, "schedule": "dualpipev"},
        {"pp": 2, "dp": 2, "tp": 2, "schedule": "interleaved_1f1b"},
    ],
    ids=str,
)
def test_overlap_times_slowdown_is_what_a_kernel_loses(shape: dict[str, Any]) -> None:
    timeline = engine.run(Spec(contention=KAPPA, intra_gbps=20.0, steps=2, **shape))
    hits = 0
    for lane in timeline.lanes:
        rows = _rows(lane, Do.COMPUTE)
        names = [lane.ops[row % len(lane.ops)].name for row in rows]
        kappa = np.array([KAPPA.get(name, KAPPA["*"]) for name in names])
        for place in range(timeline.job.width):
            took = (lane.end - lane.start)[rows, place]
            overlap = _overlap(lane, place, rows)
            alone = took - overlap + overlap / kappa
            assert np.abs(alone - lane.costs.work_ns[rows, place]).max() <= 1
            hits += int((overlap > 0).sum())
    assert hits > 10


def test_the_truth_names_slowdown_and_loss() -> None:
    spec = Spec(dp=4, layers=6, contention=KAPPA, intra_gbps=20.0)
    truth = {row["kernel"]: row for row in simulate.truth(spec)["contention"]}
    assert truth["attention_backward"]["slowdown"] == KAPPA["*"]
    assert truth["optimizer"]["lost_ns"] == 0
    assert 0 < truth["up"]["n_slowed"] < truth["up"]["n"]
    assert truth["up"]["lost_ns"] > 0


def test_without_any_nothing_is_lost() -> None:
    assert simulate.truth(Spec(dp=2))["contention"] == []


def test_transfers_meant_to_be_hidden_are_slowed_as_a_whole() -> None:
    fields = {"dp": 2, "tp": 2, "layers": 1, "steps": 1, "intra_latency_us": 50}
    plain, slowed = (
        simulate.truth(ideal(**fields, transfer_contention=factor))["collectives"]
        for factor in (1.0, 1.5)
    )
    times: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for axis, one, other in zip(
        plain["axis"], plain["transfer_ns"], slowed["transfer_ns"], strict=True
    ):
        times[axis].add((one, other))
    assert times == {"tp": {(50_000, 50_000)}, "dp": {(50_000, 75_000)}}


def test_positions_and_tails() -> None:
    even = engine.run(ideal(layers=8, steps=1))
    leaning = engine.run(ideal(layers=8, steps=1, trend_ratio=0.03))
    tailed = engine.run(ideal(layers=8, steps=40, tail_ratio=0.05, tail_factor=4.0))
    took = [
        (lane.end - lane.start)[_rows(lane, Do.COMPUTE), 0]
        for lane in (even.lanes[0], leaning.lanes[0], tailed.lanes[0])
    ]
    assert set(took[0].tolist()) == {100_000}
    assert (took[1][0], took[1][-1]) == (100_000, 103_000)
    assert set(took[2].tolist()) == {100_000, 400_000}
    assert (took[2] == 400_000).mean() == pytest.approx(0.05, abs=0.02)
