"""Each workload trains, in every combination that is offered, and leaves a whole run folder."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from tests.profile.raw import RawRun, record

TWO_RANKS = [("tp", {}), ("pp", {}), ("ep", {}), ("dp", {})]
FOUR_RANKS = [
    ("dp", {"tp": 2}),
    ("pp", {"tp": 2}),
    ("pp", {"ep": 2}),
    ("pp", {"dp": 2}),
    ("dp", {"ep": 2}),
]


def check(run: RawRun, axes: dict[str, int]) -> None:
    world = math.prod(axes.values())
    topology = run.manifest.topology
    assert topology is not None
    assert topology.axes == axes
    assert topology.world_size == world == len(run.manifest.files)
    for axis, degree in axes.items():
        groups = [group.ranks for group in topology.groups if group.axis == axis]
        assert {len(ranks) for ranks in groups} == {degree}
        assert sorted(itertools.chain(*groups)) == list(range(world))
    losses = run.manifest.losses
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    for rank in range(world):
        steps = [span.name for span in run.spans(rank, "ProfilerStep#")]
        assert steps == ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"]
        assert run.records(rank)["rank"] == rank
    found = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*.*")}
    named = {file.path for file in run.manifest.files}
    named |= {file.records for file in run.manifest.files if file.records}
    assert found == named | {"run.json"}


@pytest.mark.parametrize(("workload", "degrees"), TWO_RANKS)
def test_two_ranks(tmp_path: Path, workload: str, degrees: dict[str, int]) -> None:
    check(record(tmp_path / "run", workload, degrees=degrees), {workload: 2})


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "degrees"), FOUR_RANKS)
def test_four_ranks(tmp_path: Path, workload: str, degrees: dict[str, int]) -> None:
    check(record(tmp_path / "run", workload, degrees=degrees), {workload: 2, **degrees})


def test_split_models_learn_what_the_whole_one_learns(tmp_path: Path) -> None:
    split = record(tmp_path / "tp", "tp").manifest.losses
    for schedule in ("1f1b", "gpipe"):
        run = record(tmp_path / schedule, "pp", schedule=schedule)
        assert run.manifest.losses == pytest.approx(split, rel=1e-4)


@pytest.mark.slow
def test_a_split_replica_learns_what_a_whole_one_learns(tmp_path: Path) -> None:
    whole = record(tmp_path / "dp", "dp").manifest.losses
    split = record(tmp_path / "dp-tp", "dp", degrees={"tp": 2}).manifest.losses
    staged = record(tmp_path / "dp-pp", "dp", degrees={"pp": 2}).manifest.losses
    assert split == pytest.approx(whole, rel=1e-4)
    assert staged == pytest.approx(whole, rel=1e-4)


def test_bfloat16(tmp_path: Path) -> None:
    run = record(tmp_path / "run", "tp", dtype="bfloat16")
    assert all(map(math.isfinite, run.manifest.losses))
    dtypes = {name for row in run.records(0)["collectives"] for name in row["in_dtypes"]}
    assert "BFloat16" in dtypes


def test_the_same_seed_gives_the_same_losses(tmp_path: Path) -> None:
    first, second, other = (
        record(tmp_path / name, "ep", seed=seed).manifest.losses
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == second != other


def sent_rows(run: RawRun, rank: int) -> list[int]:
    """Rows sent to each rank of the group, by the splits of the uneven all-to-alls."""
    total = [0, 0]
    for span in run.spans(rank, "c10d::alltoall_base_"):
        splits = json.loads(span.args["Concrete Inputs"][4])
        total = [old + new for old, new in zip(total, splits or [0, 0], strict=True)]
    return total


def test_balanced_routing_sends_alike_and_a_hot_expert_draws_more(tmp_path: Path) -> None:
    balanced = record(tmp_path / "balanced", "ep")
    assert sent_rows(balanced, 0) == sent_rows(balanced, 1)
    assert len(set(sent_rows(balanced, 0))) == 1

    hot = record(tmp_path / "hot", "ep", faults=("hot-expert:5:0.5",))
    assert hot.manifest.truth == [{"kind": "hot-expert", "expert": 5, "share": 0.5, "ranks": [1]}]
    rows = [
        json.loads(span.args["Concrete Inputs"][4]) for span in hot.spans(0, "c10d::alltoall_base_")
    ]
    to_self, to_holder = next(splits for splits in rows if splits)
    # Half of the assignments, and 3 of 7 of the rest, go to the rank that holds expert 5.
    assert to_holder / (to_self + to_holder) == pytest.approx(0.5 + 0.5 * 3 / 7, abs=0.05)
