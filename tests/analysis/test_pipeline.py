"""Bubbles against the exact truth of simulated pipelines, by hand, and where they are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests import synth
from tracekit import simulate
from tracekit.analysis.pipeline import PipelineResult, analyze
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence
from tracekit.core.trace import Phase, RankTrace, Spans
from tracekit.io.load import load

SAMPLES = Path(__file__).parents[2] / "sample_traces"
PARTS = ["schedule_ns", "imbalance_ns", "p2p_ns", "jitter_ns"]


def spans(text: str) -> Spans:
    """ "F0.1 10-20": forward of stage 0 on microbatch 1."""
    letters = {"F": Phase.FORWARD, "B": Phase.BACKWARD, "I": Phase.INPUT, "W": Phase.WEIGHT}
    rows = []
    for piece in text.split("|"):
        name, times = piece.split()
        stage, microbatch = name[1:].split(".")
        low, high = times.split("-")
        rows.append((int(low), int(high), letters[name[0]], int(stage), int(microbatch)))
    column = [np.array(values) for values in zip(*sorted(rows), strict=True)]
    return Spans(
        column[0].astype(np.int64), column[1].astype(np.int64), column[2].astype(np.uint8),
        column[3].astype(np.int32), np.zeros(len(rows), np.int32), column[4].astype(np.int32),
    )  # fmt: skip


def staged(rank: int, text: str, steps: str) -> RankTrace:
    """A CPU rank that only has these actions."""
    made = synth.rank(rank, f"K 0-1 x d{rank}", steps=steps, device_type="cpu")
    return dataclasses.replace(made, spans=spans(text), host="here")


def test_two_stages_by_hand() -> None:
    """1F1B of two microbatches: F takes 10, B 20, a transfer nothing."""
    run = synth.run(
        staged(0, "F0.0 0-10 | F0.1 10-20 | B0.0 40-60 | B0.1 70-90", "0-100"),
        staged(1, "F1.0 10-20 | B1.0 20-40 | F1.1 40-50 | B1.1 50-70", "0-100"),
    )
    result = analyze(run)
    assert (result.schedule, result.recognised, result.microbatches) == ("1f1b", True, 2)
    rows = result.per_stage[
        ["stage", "step_ns", "busy_ns", "bubble_ns", *PARTS, "warmup_ns", "steady_ns",
         "cooldown_ns"]
    ].to_numpy().tolist()  # fmt: skip
    # (p - 1)(F + B) = 30 on each; nothing is unequal, late or left over.
    assert rows == [
        [0, 90, 60, 30, 30, 0, 0, 0, 20, 0, 10],
        [1, 90, 60, 30, 30, 0, 0, 0, 10, 0, 20],
    ]
    assert result.expected_bubble_ratio == pytest.approx(1 / 3)
    assert result.closed_form_ratio == pytest.approx(1 / 3)
    assert result.bubble_ratio == pytest.approx(1 / 3)


def test_waits_inside_a_span_are_bubble() -> None:
    late = staged(1, "F1.0 5-20 | B1.0 20-40 | F1.1 40-50 | B1.1 50-70", "0-100")
    wait = spans("F1.0 5-10")
    wait = dataclasses.replace(
        wait, phase=np.array([Phase.RECV], np.uint8), stage=np.array([-1], np.int32),
        microbatch=np.array([-1], np.int32),
    )  # fmt: skip
    joined = Spans(
        *(
            np.concatenate((getattr(late.spans, name), getattr(wait, name)))
            for name in Spans.__slots__
        )
    )
    run = synth.run(
        staged(0, "F0.0 0-10 | F0.1 10-20 | B0.0 40-60 | B0.1 70-90", "0-100"),
        dataclasses.replace(late, spans=joined),
    )
    assert analyze(run).per_stage.busy_ns.tolist() == [60, 60]


def compared(result: PipelineResult, spec: simulate.Spec) -> pd.DataFrame:
    """The result beside the truth."""
    truth = pd.DataFrame(simulate.truth(spec)["bubbles"])
    return result.per_stage.merge(truth, on=["rank", "step"], suffixes=("", "_true"))


def check(spec: simulate.Spec) -> PipelineResult:
    """All parts within 1 % of the step, and sums exact."""
    result = analyze(simulate.load(spec))
    frame = compared(result, spec)
    assert len(frame) == spec.world_size * spec.steps
    for name in ("busy_ns", "bubble_ns", *PARTS):
        off = (frame[name] - frame[f"{name}_true"]).abs() / frame.window_ns
        assert off.max() < 0.01, f"{name} is off by {off.max():.2%}"
    assert (frame[PARTS].sum(axis=1) == frame.bubble_ns).all()
    assert (frame.busy_ns + frame.bubble_ns == frame.step_ns).all()
    assert (frame.warmup_ns + frame.steady_ns + frame.cooldown_ns == frame.bubble_ns).all()
    assert (frame.schedule_ns + frame.imbalance_ns == frame.expected_bubble_ns).all()
    return result


CHUNKS = {"interleaved_1f1b": 2, "zbv": 2, "dualpipev": 2}
SHAPES = [
    (schedule, ranks, times)
    for schedule in ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv", "dualpipev")
    for ranks, times in ((2, 4), (4, 1), (4, 2), (8, 1))
]


@pytest.mark.parametrize(("schedule", "ranks", "times"), SHAPES)
def test_parts_equal_the_truth(schedule: str, ranks: int, times: int) -> None:
    """Unequal stages, slow transfers, noise, two hosts."""
    stages = ranks * CHUNKS.get(schedule, 1)
    count = ranks * times * (2 if schedule == "dualpipev" and times == 1 else 1)
    spec = simulate.made(
        {"pp": ranks, "schedule": schedule, "microbatches": count, "steps": 3, "layers": stages,
         "fused": True, "forward_us": 2000.0, "inter_latency_us": 150.0,
         "ranks_per_host": max(2, ranks // 2),
         "stage_factors": [1.3 if stage == 1 else 1.0 for stage in range(stages)]}
    )  # fmt: skip
    result = check(spec)
    assert (result.schedule, result.recognised) == (schedule, True)


@pytest.mark.parametrize(("schedule", "ranks", "times"), SHAPES)
def test_expected_ratio_equals_the_closed_form(schedule: str, ranks: int, times: int) -> None:
    stages = ranks * CHUNKS.get(schedule, 1)
    count = ranks * times * (2 if schedule == "dualpipev" and times == 1 else 1)
    spec = simulate.made(
        {"pp": ranks, "schedule": schedule, "microbatches": count, "steps": 2, "layers": stages,
         "fused": True, "noise_ratio": 0.0}
    )  # fmt: skip
    result = analyze(simulate.load(spec))
    assert result.closed_form_ratio is not None
    if schedule in ("gpipe", "1f1b", "interleaved_1f1b"):
        per_rank = CHUNKS.get(schedule, 1) * count
        assert result.closed_form_ratio == pytest.approx((ranks - 1) / (per_rank + ranks - 1))
    if schedule not in ("zbv", "dualpipev", "zero_bubble") or times > 1:
        # The formulas of the split schedules leave out what few microbatches cannot fill.
        assert result.expected_bubble_ratio == pytest.approx(result.closed_form_ratio, rel=0.02)


@pytest.mark.parametrize(
    "change",
    [
        {"stage_markers": "torch"}, {"tp": 2}, {"dp": 2, "groups": "megatron"}, {"fsdp": 2},
        {"graph": True}, {"coalesced": True}, {"comm_args": "none"}, {"ep": 2},
        {"offset_ms": 5.0, "ranks_per_host": 1, "seq_numbers": False},
    ],
    ids=str,
)  # fmt: skip
def test_other_traces_of_the_same_job_say_the_same(change: dict[str, Any]) -> None:
    base = {"pp": 4, "microbatches": 8, "steps": 3, "layers": 4}
    check(simulate.made({**base, **change}))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    "change", [{}, {"manifest": False}, {"dp": 2, "groups": "megatron"}, {"fused": True}], ids=str
)
def test_actions_are_inferred_from_transfers(schedule: str, change: dict[str, Any]) -> None:
    base = {
        "pp": 4, "microbatches": 8, "steps": 3, "layers": 8, "stage_markers": "none",
        "stage_factors": [1.3, 1.0, 1.0, 1.0],
    }  # fmt: skip
    result = check(simulate.made({**base, "schedule": schedule, **change}))
    assert (result.source, result.schedule) == ("inferred", schedule)
    assert {item.confidence for item in result.findings} == {Confidence.LOW}


@pytest.mark.parametrize(
    "change",
    [{"schedule": "zero_bubble"}, {"schedule": "zero_bubble", "manifest": False},
     {"schedule": "interleaved_1f1b", "chunks": 2}, {"coalesced": True}],
    ids=str,
)  # fmt: skip
def test_what_transfers_do_not_tell_is_refused(change: dict[str, Any]) -> None:
    base = {"pp": 4, "microbatches": 8, "steps": 3, "layers": 8, "stage_markers": "none"}
    with pytest.raises(MissingDataError, match="no marker tells"):
        analyze(simulate.load(simulate.made({**base, **change})))


@pytest.mark.parametrize(
    ("name", "schedule", "ratio"),
    [("pp4_1f1b_sleep", "1f1b", 3 / 11), ("pp4_zbv_sleep", "zbv", 0.0594),
     ("pp2_slow_link", "1f1b", 1 / 5)],
)  # fmt: skip
def test_recorded_pipelines_have_the_bubble_of_theory(
    name: str, schedule: str, ratio: float
) -> None:
    result = analyze(load(SAMPLES / name))
    assert (result.schedule, result.recognised, result.source) == (schedule, True, "markers")
    assert result.expected_bubble_ratio == pytest.approx(ratio, abs=0.01)
    assert result.closed_form_ratio == pytest.approx(ratio, abs=0.01)
    frame = result.per_stage
    assert (frame[PARTS].sum(axis=1) == frame.bubble_ns).all()


def test_the_recorded_slow_stage_and_slow_link_are_found() -> None:
    stage = analyze(load(SAMPLES / "pp4_slow_stage"))
    (found,) = (item for item in stage.findings if "stages differ" in item.title)
    assert "stage 2" in found.title
    link = analyze(load(SAMPLES / "pp2_slow_link"))
    assert link.p2p_latency_ns == pytest.approx(25e6, rel=0.1)
    assert max(link.findings, key=lambda item: item.lost_ns_per_step).title.endswith(
        "transfers between stages"
    )


def test_an_imbalance_is_found_and_its_twin_is_silent() -> None:
    base = {"pp": 4, "microbatches": 8, "steps": 3, "layers": 4, "fused": True}
    slow = check(simulate.made({**base, "stage_factors": [1.0, 1.0, 1.5, 1.0]}))
    (found,) = (item for item in slow.findings if "stages differ" in item.title)
    assert "stage 2" in found.title
    clean = check(simulate.made(base))
    assert not [item for item in clean.findings if "stages differ" in item.title]
    assert [item for item in clean.findings if "schedule itself" in item.title]


def test_waiting_and_transfer_are_told_apart() -> None:
    base = {"pp": 2, "microbatches": 4, "steps": 3, "layers": 2, "fused": True}
    spec = simulate.made({**base, "ranks_per_host": 1, "inter_latency_us": 200.0})
    frame = check(spec).per_stage
    assert (frame.recv_wait_ns + frame.transfer_ns <= frame.bubble_ns).all()
    assert (frame.transfer_ns > 4 * 200_000).all()
    assert (frame.recv_wait_ns > 0).all()


def test_a_missing_rank_leaves_the_bubble_and_no_reasons() -> None:
    spec = simulate.made({"pp": 4, "microbatches": 8, "steps": 3, "layers": 4, "missing": [1]})
    result = analyze(simulate.load(spec))
    frame = compared(result, spec)
    assert (frame.bubble_ns == frame.bubble_ns_true).all()
    assert frame.schedule_ns.isna().all()
    assert result.expected_bubble_ratio is None


def test_no_pipeline_is_refused() -> None:
    with pytest.raises(MissingDataError, match="no pipeline"):
        analyze(synth.run(synth.rank(0, "K 0-90", steps="0-100")))
