"""Thousands of ranks: time grows with the ranks, and a thousand take minutes at most."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tracekit import simulate
from tracekit.io.load import load
from tracekit.simulate import Spec, engine

SHAPE: dict[str, Any] = {"tp": 8, "pp": 8, "layers": 16, "microbatches": 16, "steps": 2}


@pytest.mark.slow
def test_a_thousand_ranks_are_written_in_minutes(tmp_path: Path) -> None:
    spec = Spec(**SHAPE, dp=16, norm=True, faults=("slow-rank:77:1.25",), missing=(3,))
    begin = time.perf_counter()
    folder = simulate.simulate(spec, tmp_path / "run")
    assert time.perf_counter() - begin < 180
    assert len(list((folder / "traces").iterdir())) == 1023
    # Any rank alone is a good trace.
    run = load(folder / "traces/rank-01000.0.pt.trace.json.gz")
    assert run.ranks == (1000,)
    assert len(run.traces[0].steps) == 2


@pytest.mark.slow
def test_the_engine_takes_thousands_of_ranks() -> None:
    begin = time.perf_counter()
    timeline = engine.run(Spec(**SHAPE, dp=64))
    assert time.perf_counter() - begin < 60
    assert timeline.job.spec.world_size == 4096
    assert (timeline.step_ends() > timeline.step_starts()).all()


def test_ranks_of_the_same_role_run_the_same_program() -> None:
    small, large = (engine.run(Spec(tp=2, pp=2, dp=dp, noise_ratio=0.0)) for dp in (2, 8))
    assert [lane.ops for lane in small.lanes] == [lane.ops for lane in large.lanes]
