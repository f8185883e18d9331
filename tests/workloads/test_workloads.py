"""Each workload trains, in every combination that is offered, and leaves a whole run folder."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.profile.raw import RawRun, record
from tests.profile.spans import bubble_ratio, durations_ms, load
from tracekit.core.trace import Phase, RankTrace

TWO_RANKS = ["tp", "pp", "ep", "dp", "fsdp"]
FOUR_RANKS = [
    ("dp", {"tp": 2}),
    ("dp", {"fsdp": 2}),
    ("fsdp", {"tp": 2}),
    ("pp", {"tp": 2}),
    ("pp", {"ep": 2}),
    ("pp", {"dp": 2}),
    ("pp", {"fsdp": 2}),
    ("dp", {"ep": 2}),
]
INFERENCE = ["prefill", "decode"]
MULTI_STAGE = ["interleaved_1f1b", "zero_bubble", "zbv", "dualpipev"]


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


@pytest.mark.parametrize("workload", TWO_RANKS)
def test_two_ranks(tmp_path: Path, workload: str) -> None:
    check(record(tmp_path / "run", workload), {workload: 2})
    load(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "degrees"), FOUR_RANKS)
def test_four_ranks(tmp_path: Path, workload: str, degrees: dict[str, int]) -> None:
    check(record(tmp_path / "run", workload, degrees=degrees), {workload: 2, **degrees})
    load(tmp_path / "run")


@pytest.mark.slow
def test_eight_ranks_on_three_axes(tmp_path: Path) -> None:
    axes = {"fsdp": 2, "tp": 2}
    check(record(tmp_path / "run", "pp", degrees=axes), {"pp": 2, **axes})
    load(tmp_path / "run")


@pytest.mark.parametrize("workload", TWO_RANKS)
@pytest.mark.parametrize("mode", INFERENCE)
def test_inference(tmp_path: Path, workload: str, mode: str) -> None:
    check_inference(tmp_path / "run", workload, mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", *MULTI_STAGE])
@pytest.mark.parametrize("mode", INFERENCE)
def test_inference_through_every_pipeline(tmp_path: Path, mode: str, schedule: str) -> None:
    check_inference(tmp_path / "run", "pp", mode=mode, schedule=schedule)


@pytest.mark.slow
@pytest.mark.parametrize("mode", INFERENCE)
@pytest.mark.parametrize(("workload", "degrees"), FOUR_RANKS)
def test_inference_of_four_ranks(
    tmp_path: Path, workload: str, degrees: dict[str, int], mode: str
) -> None:
    check_inference(tmp_path / "run", workload, degrees=degrees, mode=mode)


def check_inference(folder: Path, workload: str, mode: str, **options: Any) -> None:
    raw = record(folder, workload, mode=mode, batch=4, **options)
    assert raw.manifest.losses == []
    conditions = raw.manifest.conditions
    assert conditions["workload"]["mode"] == mode
    assert conditions["cache"]["kv"] is True
    assert conditions["workload"]["context"] == (32 if mode == "decode" else None)
    run = load(folder)
    for trace in run.traces:
        assert len(trace.steps) == 3
        backward = {Phase.BACKWARD, Phase.INPUT, Phase.WEIGHT, Phase.LOSS}
        assert not backward & set(trace.spans.phase.tolist())


def test_every_step_of_decoding_adds_a_token_for_each_sequence_in_flight(tmp_path: Path) -> None:
    run = record(tmp_path / "run", "tp", mode="decode", batch=2, concurrency=6, context=16)
    assert run.manifest.conditions["batch"]["concurrency"] == 6
    shapes = [span.args["Input Dims"] for span in run.spans(0, "aten::scaled_dot_product")]
    # Three batches of two sequences, two layers, three steps; the context grows by one.
    keys = [shape[1] for shape in shapes if shape and len(shape[1]) == 4]
    assert {shape[0] for shape in keys} == {2}
    assert sorted({shape[2] for shape in keys}) == [18, 19, 20]


def test_replicas_do_not_talk_in_inference(tmp_path: Path) -> None:
    run = record(tmp_path / "run", "dp", mode="decode")
    for rank in (0, 1):
        names = {span.name for span in run.spans(rank, "c10d::")}
        assert names <= {"c10d::barrier"}  # the runner's own, around the steps


@pytest.mark.parametrize(
    "options",
    [
        {"sequence_parallel": True},
        {"loss_parallel": True},
        pytest.param({"sequence_parallel": True, "loss_parallel": True}, marks=pytest.mark.slow),
    ],
)
def test_tensor_parallel_forms_learn_alike(tmp_path: Path, options: dict[str, bool]) -> None:
    plain = record(tmp_path / "plain", "tp").manifest.losses
    run = record(tmp_path / "run", "tp", **options)
    assert run.manifest.losses == pytest.approx(plain, rel=1e-4)
    ops = {row["op"] for row in run.records(0)["collectives"]}
    assert ("reduce_scatter" in ops or "all_gather" in ops) == ("sequence_parallel" in options)


def test_split_models_learn_what_the_whole_one_learns(tmp_path: Path) -> None:
    split = record(tmp_path / "tp", "tp").manifest.losses
    for schedule in ("1f1b", "gpipe"):
        run = record(tmp_path / schedule, "pp", schedule=schedule)
        assert run.manifest.losses == pytest.approx(split, rel=1e-4)


@pytest.mark.parametrize(
    "schedule",
    ["interleaved_1f1b", *(pytest.param(s, marks=pytest.mark.slow)
                                  for s in ("zero_bubble", "zbv", "dualpipev"))],
)  # fmt: skip
def test_every_schedule_learns_alike(tmp_path: Path, schedule: str) -> None:
    same = {"layers": 4, "microbatches": 4}
    expected = record(tmp_path / "1f1b", "pp", **same).manifest.losses
    run = record(tmp_path / "run", "pp", schedule=schedule, **same)
    assert run.manifest.losses == pytest.approx(expected, rel=1e-4)
    assert run.manifest.conditions["parallel"]["chunks"] == 2
    for trace in load(tmp_path / "run").traces:
        check_markers(trace, 4, schedule in ("zero_bubble", "zbv", "dualpipev"))


@pytest.mark.slow
def test_every_schedule_over_four_ranks_learns_alike(tmp_path: Path) -> None:
    same = {"degrees": {"pp": 4}, "layers": 8, "microbatches": 8}
    expected = record(tmp_path / "1f1b", "pp", **same).manifest.losses
    for schedule in ("gpipe", *MULTI_STAGE):
        run = record(tmp_path / schedule, "pp", schedule=schedule, **same)
        assert run.manifest.losses == pytest.approx(expected, rel=1e-4)
        load(tmp_path / schedule)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", *INFERENCE])
@pytest.mark.parametrize("workload", TWO_RANKS)
def test_one_axis_of_four_ranks(tmp_path: Path, workload: str, mode: str) -> None:
    if mode == "train":
        check(record(tmp_path / "run", workload, degrees={workload: 4}), {workload: 4})
        load(tmp_path / "run")
    else:
        check_inference(tmp_path / "run", workload, degrees={workload: 4}, mode=mode)


def check_markers(trace: RankTrace, microbatches: int, splits: bool) -> None:
    """Each stage of a rank works on each microbatch once in every step."""
    spans = trace.spans
    assert set(spans.chunk[spans.stage >= 0].tolist()) == {0, 1}
    for step in range(len(trace.steps)):
        inside = (spans.start_ns >= trace.steps.start_ns[step]) & (
            spans.start_ns < trace.steps.end_ns[step]
        )
        for stage in np.unique(spans.stage[spans.stage >= 0]):
            here = inside & (spans.stage == stage)
            per_phase = {
                phase: sorted(spans.microbatch[here & (spans.phase == phase)].tolist())
                for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.INPUT, Phase.WEIGHT)
            }
            every = list(range(microbatches))
            assert per_phase[Phase.FORWARD] == every
            assert per_phase[Phase.INPUT] == per_phase[Phase.WEIGHT]
            assert sorted(per_phase[Phase.BACKWARD] + per_phase[Phase.INPUT]) == every
            assert bool(per_phase[Phase.INPUT]) == splits


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_markers_of_single_stage_schedules_leave_waiting_out(tmp_path: Path, schedule: str) -> None:
    record(tmp_path / "run", "pp", schedule=schedule, compute="sleep", layer_ms=20.0, steps=2)
    first, last = load(tmp_path / "run").traces
    for trace in (first, last):
        forward = durations_ms(trace, [Phase.FORWARD], 1)
        assert len(forward) == len(durations_ms(trace, [Phase.BACKWARD], 1)) == 4
        assert np.median(forward) == pytest.approx(20, abs=5)  # though the last one waits first
    assert len(durations_ms(last, [Phase.LOSS], 1)) == 4
    assert len(durations_ms(first, [Phase.LOSS], 1)) == 0
    assert durations_ms(last, [Phase.RECV], 1)[0] > 15


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("microbatches", [4, 8])
def test_bubbles_of_a_sleeping_pipeline(tmp_path: Path, ranks: int, microbatches: int) -> None:
    def measured(schedule: str) -> float:
        folder = tmp_path / schedule
        record(
            folder, "pp", degrees={"pp": ranks}, schedule=schedule, layers=2 * ranks,
            microbatches=microbatches, compute="sleep", layer_ms=20.0, hidden=16, heads=2, seq=8,
            steps=4,
        )  # fmt: skip
        return bubble_ratio(load(folder))

    theory = (ranks - 1) / (microbatches + ranks - 1)
    simple = measured("1f1b")
    assert simple == pytest.approx(theory, abs=0.03)
    assert measured("gpipe") == pytest.approx(theory, abs=0.03)
    interleaved = measured("interleaved_1f1b")
    assert interleaved < simple
    assert measured("zero_bubble") < interleaved


def test_tokens_of_each_expert_are_recorded(tmp_path: Path) -> None:
    run = record(tmp_path / "run", "ep", faults=("hot-expert:5:0.5",))
    counts = [run.records(rank)["experts"] for rank in (0, 1)]
    assert {row["first"] for row in counts[1]} == {4}
    assert {row["layer"] for row in counts[1]} == {0, 1}
    assert len(counts[0]) == len(counts[1]) == 3 * 2  # steps x layers
    for mine, other in zip(*counts, strict=True):
        assert len(mine["tokens"]) == 4
        assert sum(mine["tokens"]) + sum(other["tokens"]) == 2 * 8 * 32 * 2  # ranks x batch x k
        assert other["tokens"][1] == 2 * 8 * 32 * 2 // 2


@pytest.mark.slow
def test_a_single_rank(tmp_path: Path) -> None:
    for workload in ("tp", "pp", "ep"):
        run = record(tmp_path / workload, workload, degrees={workload: 1})
        assert all(map(math.isfinite, run.manifest.losses))
        load(tmp_path / workload)


@pytest.mark.slow
def test_a_split_replica_learns_what_a_whole_one_learns(tmp_path: Path) -> None:
    whole = record(tmp_path / "dp", "dp").manifest.losses
    split = record(tmp_path / "dp-tp", "dp", degrees={"tp": 2}).manifest.losses
    staged = record(tmp_path / "dp-pp", "dp", degrees={"pp": 2}).manifest.losses
    sharded = record(tmp_path / "fsdp", "fsdp").manifest.losses
    assert sharded == pytest.approx(whole, rel=1e-4)
    assert split == pytest.approx(whole, rel=1e-4)
    assert staged == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize(
    "workload", ["tp", *(pytest.param(w, marks=pytest.mark.slow) for w in ("ep", "dp", "fsdp"))]
)
def test_bfloat16(tmp_path: Path, workload: str) -> None:
    run = record(tmp_path / "run", workload, dtype="bfloat16")
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
