"""Every planted fault costs time, its twin sees the same noise, and the culprit is named."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit import simulate
from tracekit.core.trace import Phase
from tracekit.simulate import Spec

SHAPES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 4},
    "dp": {"dp": 4},
    "fsdp": {"fsdp": 4},
    "pp": {"pp": 4, "norm": True},
    "ep": {"ep": 4},
    "all": {"pp": 2, "dp": 2, "ep": 2, "tp": 2, "norm": True},
}
FAULTS = ["slow-rank:3:1.5", "delay:3:15", "gc:3:30:every=2", "dataloader:3:15"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_rank_that_is_slow_or_late_costs_time(shape: str, fault: str) -> None:
    truth = simulate.truth(Spec(faults=(fault,), **SHAPES[shape]))
    assert truth["loss"]["slowdown"] > 1.02
    assert {"kind": "rank", "members": [3]} in truth["culprit"]["sets"]
    assert truth["culprit"]["ranks"] == [3]


def test_a_slow_stage() -> None:
    truth = simulate.truth(Spec(pp=4, tp=2, faults=("slow-stage:2:1.25",)))
    assert truth["culprit"]["sets"] == [
        {"kind": "stage", "members": [2]},
        {"kind": "tp_group", "members": [4, 5]},
    ]
    assert 1.1 < truth["loss"]["slowdown"] < 1.25
    # Shared out evenly, the same work would still be more than without the fault.
    assert 1 < truth["loss"]["rebalanced_slowdown"] < truth["loss"]["slowdown"]


@pytest.mark.parametrize("shape", [{"pp": 4}, {"tp": 4}, {"dp": 4}, {"ep": 4}])
def test_a_slow_link(shape: dict[str, int]) -> None:
    truth = simulate.truth(Spec(faults=("slow-link:2-1:2",), **shape))
    assert truth["loss"]["slowdown"] > 1.02
    assert (truth["culprit"]["kind"], truth["culprit"]["members"]) == ("link", [1, 2])


def test_a_hot_expert_slows_the_rank_that_holds_it() -> None:
    spec = Spec(ep=4, faults=("hot-expert:5:0.5",))
    truth = simulate.truth(spec)
    assert truth["loss"]["slowdown"] > 1.1
    assert (truth["culprit"]["kind"], truth["culprit"]["members"]) == ("rank", [2])
    tokens = {(r["layer"], r["step"], r["rank"]): r["tokens"] for r in truth["experts"]["tokens"]}
    rows = 4 * spec.batch * spec.seq * spec.top_k
    held = 0.5 + 0.5 / 7  # two experts on each rank
    for (_, _, rank), count in tokens.items():
        assert count == pytest.approx(rows * (held if rank == 2 else (1 - held) / 3), abs=8)
    sent = {(row["src"], row["dst"]): row["tokens"] for row in truth["experts"]["traffic"]}
    assert sum(sent.values()) == sum(tokens.values())


def test_two_culprits_at_once() -> None:
    faults = ("slow-rank:1:1.3", "delay:6:4")
    truth = simulate.truth(Spec(tp=2, dp=4, faults=faults))
    assert truth["culprit"]["sets"] == [{"kind": "rank", "members": [1, 6]}]
    assert truth["culprit"]["ranks"] == [1, 6]
    assert truth["culprit"]["cause"] == ["compute", "host"]
    alone = {item["fault"]: item["slowdown"] for item in truth["loss"]["each"]}
    assert all(slowdown > 1.02 for slowdown in alone.values())
    # They run side by side: the job is as slow as the slower one.
    assert truth["loss"]["slowdown"] == pytest.approx(max(alone.values()), rel=0.01)
    recovered = {item["fault"]: item["recovered_ns"] for item in truth["loss"]["each"]}
    assert recovered["delay:6:4"] > 5e6 > abs(recovered["slow-rank:1:1.3"])


def test_all_ranks_of_a_host() -> None:
    faults = tuple(f"slow-rank:{rank}:1.3" for rank in (4, 5, 6, 7))
    truth = simulate.truth(Spec(tp=2, dp=4, ranks_per_host=4, faults=faults))
    assert {"kind": "host", "members": [1]} in truth["culprit"]["sets"]


def test_the_clean_twin_is_the_same_job_with_the_same_noise() -> None:
    clean = simulate.truth(Spec(dp=2, tp=2, seed=3))
    late = simulate.truth(Spec(dp=2, tp=2, seed=3, faults=("delay:1:5:every=2",)))
    assert clean["loss"]["slowdown"] == 1
    assert clean["culprit"]["kind"] == "none"
    assert late["loss"]["clean_critical_ns"] == [s["critical_ns"] for s in clean["steps"]]
    assert [lost > 1e6 for lost in late["loss"]["lost_ns"]] == [True, False, True, False]


def test_causes_are_visible_in_the_trace() -> None:
    run = simulate.load(Spec(tp=2, faults=("gc:1:9", "dataloader:0:8"), steps=2))
    spans = [trace.spans for trace in run.traces]
    took = [(span.end_ns - span.start_ns) / 1e6 for span in spans]
    assert (took[1][spans[1].phase == Phase.GC]).tolist() == [9.0, 9.0]
    assert (took[0][spans[0].phase == Phase.DATA] > 8).all()
    assert not (spans[0].phase == Phase.GC).any()


def test_planted_faults_stand_in_the_manifest() -> None:
    run = simulate.load(Spec(tp=2, faults=("slow-rank:1:1.25",)))
    assert run.truth == (
        {"kind": "slow-rank", "rank": 1, "factor": 1.25, "ranks": [1], "cause": "compute"},
    )
