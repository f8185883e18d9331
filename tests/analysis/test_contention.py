"""Contention: benefit by hand, planted slowdowns in simulated traces, public figures, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests import synth
from tracekit import simulate
from tracekit.analysis.contention import NO_BASELINE, ContentionResult, analyze
from tracekit.core.errors import MissingDataError
from tracekit.core.run import LinkLatency, Run

BASE: dict[str, Any] = {
    "dp": 4, "layers": 8, "steps": 8, "microbatches": 4, "trend_ratio": 0.03, "tail_ratio": 0.03,
    "intra_gbps": 20.0,
}  # fmt: skip


def simulated(**changes: Any) -> ContentionResult:
    return analyze(simulate.load(simulate.made({**BASE, **changes})))


def by_kernel(result: ContentionResult, part: str) -> dict[str, Any]:
    rows = [row for row in result.per_class.to_dict("records") if part in row["kernel"]]
    assert len(rows) == 1, result.per_class.kernel.tolist()
    return rows[0]


def overlapping(steps: int) -> Run:
    """A kernel that takes 100 alone in even steps, and 150 under communication in odd ones."""
    pieces, windows = [], []
    for step in range(steps):
        at = step * 1000
        long = step % 2
        pieces.append(f"K {at + 100}-{at + (250 if long else 200)} gemm s7")
        low = at + (50 if long else 300)
        pieces.append(f"C {low}-{low + 300} s9 @dp")
        windows.append(f"{at}-{at + 1000}")
    return synth.run(synth.rank(0, " | ".join(pieces), steps=" ".join(windows)))


def test_benefit_by_hand() -> None:
    result = analyze(overlapping(12))
    (row,) = result.per_class.to_dict("records")
    assert (row["n_alone"], row["n_overlapped"], row["total_ns"]) == (6, 6, 1500)
    assert row["slowdown"] == pytest.approx(1.5)
    assert row["lost_ns"] == pytest.approx(300)
    frame = result.per_step[["hidden_ns", "compute_lost_ns", "net_benefit_ns"]]
    assert frame.iloc[:2].to_numpy().tolist() == [[0, 0, 0], [150, 50, 100]]
    assert (result.hidden_ns, result.net_benefit_ns) == (900, 600)
    assert not result.waits_known  # a single rank does not tell


def test_five_of_each_are_needed() -> None:
    (row,) = analyze(overlapping(8)).per_class.to_dict("records")
    assert row["baseline"] == NO_BASELINE
    assert analyze(overlapping(8)).unmeasured_ratio == 1.0


@pytest.mark.parametrize("markers", ["tracekit", "none"])
@pytest.mark.parametrize("seed", [0, 1])
def test_planted_slowdowns_are_recovered(markers: str, seed: int) -> None:
    planted = {"up": 1.25, "down": 1.08, "*": 1.0}
    result = simulated(contention=planted, seed=seed, stage_markers=markers)
    for part, factor in (("128x256x64", 1.25), ("256x128x64", 1.08), ("128x128x64", 1.0)):
        row = by_kernel(result, part)
        assert row["slowdown"] == pytest.approx(factor, abs=0.01)
        assert row["slowdown_low"] <= factor <= row["slowdown_high"]
    truth = simulate.truth(
        simulate.made({**BASE, "contention": planted, "seed": seed, "stage_markers": markers})
    )["contention"]
    lost = {row["kernel"]: row["lost_ns"] for row in truth}
    row = by_kernel(result, "128x256x64")
    # The truth has the first step, too, which is not counted.
    assert row["lost_ns"] == pytest.approx(lost["up"] * 7 / 8, rel=0.06)
    assert result.net_benefit_ns > 0


def test_no_slowdown_is_no_finding() -> None:
    assert simulated(contention={"*": 1.0}).findings == ()
    (finding,) = simulated(contention={"*": 1.25}).findings
    assert "slows compute" in finding.title


def test_the_public_figures_of_nccl_1428() -> None:
    """Attention 0.18 -> 0.33 ms, GEMM 1.18 -> 2.08 ms when NCCL runs beside them."""
    planted = {"attention_backward": 0.33 / 0.18, "up": 2.08 / 1.18}
    result = simulated(contention=planted)
    attention = by_kernel(result, "flash_bwd")
    gemm = by_kernel(result, "128x256x64")
    assert attention["slowdown"] * 0.18 == pytest.approx(0.33, rel=0.01)
    assert gemm["slowdown"] * 1.18 == pytest.approx(2.08, rel=0.01)


def test_overlap_that_hurts_is_told() -> None:
    result = simulated(contention={"*": 3.0})
    assert result.compute_lost_ns > 0.6 * result.hidden_ns
    assert result.net_benefit_ns < result.hidden_ns - result.compute_lost_ns + 1


def test_hidden_waiting_is_no_win() -> None:
    late = simulated(faults=["slow-rank:1:1.3"])
    assert late.waits_known
    waiting = late.per_step.groupby("rank").hidden_wait_ns.sum()
    assert waiting[1] < 0.5 * waiting.drop(1).mean()
    parts = late.per_step[["hidden_wait_ns", "compute_lost_ns", "transfer_lost_ns"]].sum(axis=1)
    assert (late.per_step.net_benefit_ns == late.per_step.hidden_ns - parts).all()


def test_transfers_slowed_by_compute_are_measured_too() -> None:
    run = simulate.load(simulate.made({**BASE, "transfer_contention": 1.4, "norm": False}))
    frame = analyze(run).per_transfer
    assert set(frame.op) == {"all_reduce"}
    assert (frame.n_overlapped > 0).all()


def test_transfers_are_held_against_the_benchmark() -> None:
    run = simulate.load(simulate.made(BASE))
    (size,) = set(analyze(run).per_transfer.bytes)
    points = ((size // 2, 1_000_000), (size * 2, 4_000_000))
    baseline = (
        *(LinkLatency("all_reduce", 4, bytes_, ns) for bytes_, ns in points),
        LinkLatency("all_reduce", 2, size, 7),
        LinkLatency("all_gather", 4, size, 7),
    )
    (row,) = analyze(dataclasses.replace(run, baseline=baseline)).per_transfer.to_dict("records")
    assert row["bench_p50_ns"] == pytest.approx(2_000_000)
    assert row["bench_slowdown"] == pytest.approx(row["overlapped_p50_ns"] / 2_000_000)
    beyond = (LinkLatency("all_reduce", 4, size // 2, 1_000_000),)
    assert analyze(dataclasses.replace(run, baseline=beyond)).per_transfer.bench_p50_ns.isna().all()


def test_without_overlap_the_question_is_refused() -> None:
    apart = synth.run(synth.rank(0, "K 0-50 s7 | C 50-90 s9", steps="0-100"))
    with pytest.raises(MissingDataError, match="never run at the same time"):
        analyze(apart)
    with pytest.raises(MissingDataError, match="no communication"):
        analyze(synth.run(synth.rank(0, "K 0-50 s7", steps="0-100")))
