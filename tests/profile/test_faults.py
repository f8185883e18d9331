"""Each planted fault hits where and when it should, and nowhere else."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
import pytest

from tests.profile.raw import record
from tests.profile.spans import durations_ms, load
from tracekit.core.trace import Phase, RankTrace
from tracekit.profile import faults

SLEEPING = {"compute": "sleep", "layer_ms": 10.0, "microbatches": 4, "steps": 3}


def test_a_delayed_rank_makes_the_other_wait(tmp_path: Path) -> None:
    clean = record(tmp_path / "clean", "tp", steps=5)
    late = record(tmp_path / "late", "tp", steps=5, faults=("delay:1:100",))
    assert clean.manifest.truth == []
    assert late.manifest.truth == [{"kind": "delay", "rank": 1, "ms": 100.0, "every": 1}]
    # Rank 0 is in the all-reduce while rank 1 pauses; rank 1 then finds it waiting.
    assert statistics.median(late.longest_ms(0, "gloo:all_reduce")) == pytest.approx(100, abs=25)
    assert statistics.median(late.longest_ms(1, "gloo:all_reduce")) < 50
    assert statistics.median(clean.longest_ms(0, "gloo:all_reduce")) < 50


@pytest.mark.parametrize(("workload", "wait"), [("dp", "gloo:all_reduce"), ("pp", "gloo:recv")])
def test_the_delay_of_every_other_step(tmp_path: Path, workload: str, wait: str) -> None:
    run = record(tmp_path / "run", workload, steps=4, faults=("delay:0:150:every=2",))
    waited = run.longest_ms(1, wait)  # of steps 1 to 4
    # A busy machine may hold up one rank for a while; it takes more than that.
    assert min(waited[1], waited[3]) > 110
    assert max(waited[0], waited[2]) < 110


def longest_ms(trace: RankTrace, phase: Phase) -> list[float]:
    """The longest span of a phase in each step, 0 where there is none."""
    steps = range(len(trace.steps))
    return [max(durations_ms(trace, [phase], step), default=0.0) for step in steps]


def test_a_collection_shows_as_one(tmp_path: Path) -> None:
    record(tmp_path / "run", "tp", steps=4, faults=("gc:1:100:every=2",))
    run = load(tmp_path / "run")
    assert run.truth == ({"kind": "gc", "rank": 1, "ms": 100.0, "every": 2},)
    collected = longest_ms(run.traces[1], Phase.GC)  # of steps 1 to 4
    assert min(collected[1::2]) >= 100
    assert max(collected[::2]) < 90
    assert max(longest_ms(run.traces[0], Phase.GC)) < 90


def test_a_collection_takes_what_was_asked() -> None:
    before = time.perf_counter()
    faults.collect_slowly(0.05)
    assert 0.05 <= time.perf_counter() - before < 0.5


def test_a_slow_data_loader_shows_as_one(tmp_path: Path) -> None:
    record(tmp_path / "run", "dp", faults=("dataloader:1:120",))
    run = load(tmp_path / "run")
    assert run.truth == ({"kind": "dataloader", "rank": 1, "ms": 120.0},)
    assert min(longest_ms(run.traces[1], Phase.DATA)) >= 120
    assert statistics.median(longest_ms(run.traces[0], Phase.DATA)) < 90


@pytest.mark.parametrize("kind", ["slow-stage", pytest.param("slow-rank", marks=pytest.mark.slow)])
def test_a_slow_stage_of_sleeping_layers(tmp_path: Path, kind: str) -> None:
    record(tmp_path / "run", "pp", faults=(f"{kind}:1:2",), **SLEEPING)
    run = load(tmp_path / "run")
    (truth,) = run.truth
    assert truth["kind"] == kind
    assert truth["factor"] == 2.0
    for phase, expected in ((Phase.FORWARD, 10.0), (Phase.BACKWARD, 20.0)):
        normal, slow = (np.median(durations_ms(trace, [phase])) for trace in run.traces)
        assert normal == pytest.approx(expected, rel=0.3)
        assert slow == pytest.approx(2 * expected, rel=0.3)


@pytest.mark.slow
def test_truth_of_a_slow_stage_names_its_ranks(tmp_path: Path) -> None:
    run = record(tmp_path / "run", "pp", degrees={"dp": 2}, faults=("slow-stage:1:2",), **SLEEPING)
    assert run.manifest.truth[0]["ranks"] == [2, 3]


BIG = {"hidden": 256, "seq": 128, "steps": 4, "faults": ("slow-rank:1:8",)}


# Compared within one run: two runs may meet a machine that is differently busy.


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["tp", "dp"])
def test_the_others_wait_for_a_rank_that_computes_slowly(tmp_path: Path, workload: str) -> None:
    run = record(tmp_path / "run", workload, **BIG)
    waited, own = (sum(s.ms for s in run.spans(rank, "gloo:all_reduce")) for rank in (0, 1))
    assert waited > 2 * own


@pytest.mark.slow
def test_the_stage_of_a_rank_that_computes_slowly(tmp_path: Path) -> None:
    record(tmp_path / "run", "pp", **BIG)
    run = load(tmp_path / "run")
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        normal, slow = (np.median(durations_ms(trace, [phase])) for trace in run.traces)
        assert slow > 3 * normal


def test_a_slow_link_delays_what_arrives_over_it(tmp_path: Path) -> None:
    record(tmp_path / "run", "pp", faults=("slow-link:0-1:30",), **SLEEPING)
    run = load(tmp_path / "run")
    assert run.truth == ({"kind": "slow-link", "ranks": [0, 1], "ms": 30.0},)
    # The first activation of a step: one forward of 10 ms, then the link.
    raw = [durations_ms(run.traces[1], [Phase.RECV], step)[0] for step in (1, 2)]
    assert min(raw) > 35
    # The sender is not held up: it is not the one that is slow.
    assert np.median(durations_ms(run.traces[0], [Phase.FORWARD])) == pytest.approx(10, rel=0.3)
