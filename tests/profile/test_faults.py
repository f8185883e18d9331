"""Faults: their form on the command line, and that they hit where and when they should."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.profile.raw import record
from tracekit.core.errors import UsageError
from tracekit.profile import faults


def test_forms() -> None:
    assert faults.parse("delay:2:40") == faults.Delay(2, 40.0, 1)
    assert faults.parse("delay:0:1.5:every=3") == faults.Delay(0, 1.5, 3)
    assert faults.parse("hot-expert:3:0.25") == faults.HotExpert(3, 0.25)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slow-rank:1:2",
        "delay",
        "delay:1",
        "delay:one:40",
        "delay:-1:40",
        "delay:1:0",
        "delay:1:inf",
        "delay:1:nan",
        "delay:1:40:3",
        "delay:1:40:every=0",
        "delay:1:40:each=2",
        "delay:1:40:every=2:more",
        "hot-expert:1",
        "hot-expert:1:0",
        "hot-expert:1:1.5",
        "hot-expert:-1:0.5",
        "hot-expert:1:nan",
    ],
)
def test_anything_else_lists_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match=r"known faults: delay:RANK:MS\[:every=N\], hot-expert"):
        faults.parse(text)


def test_every_nth_step() -> None:
    assert [step for step in range(7) if faults.Delay(0, 1.0, 3).hits(step)] == [0, 3, 6]


def test_a_delayed_rank_makes_the_other_wait(tmp_path: Path) -> None:
    clean = record(tmp_path / "clean", "tp", steps=5)
    late = record(tmp_path / "late", "tp", steps=5, faults=("delay:1:40",))
    assert clean.manifest.truth == []
    assert late.manifest.truth == [{"kind": "delay", "rank": 1, "ms": 40.0, "every": 1}]
    # Rank 0 is in the all-reduce while rank 1 pauses; rank 1 then finds it waiting.
    assert statistics.median(late.longest_ms(0, "gloo:all_reduce")) == pytest.approx(40, abs=10)
    assert statistics.median(late.longest_ms(1, "gloo:all_reduce")) < 20
    assert statistics.median(clean.longest_ms(0, "gloo:all_reduce")) < 20


@pytest.mark.parametrize(("workload", "wait"), [("dp", "gloo:all_reduce"), ("pp", "gloo:recv")])
def test_the_delay_of_every_other_step(tmp_path: Path, workload: str, wait: str) -> None:
    run = record(tmp_path / "run", workload, steps=4, faults=("delay:0:60:every=2",))
    waited = run.longest_ms(1, wait)  # of steps 1 to 4
    assert min(waited[1], waited[3]) > 45
    assert max(waited[0], waited[2]) < 40


def test_experts_wait_for_a_delayed_rank(tmp_path: Path) -> None:
    run = record(tmp_path / "run", "ep", steps=4, faults=("delay:0:60",))
    assert statistics.median(run.longest_ms(1, "gloo:all_to_all")) > 45
    assert statistics.median(run.longest_ms(0, "gloo:all_to_all")) < 30
