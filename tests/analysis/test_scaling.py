"""One job at several sizes: efficiencies by hand, and conditions that are held."""

from __future__ import annotations

import pytest

from tests.report import made
from tracekit.analysis._contract import analyzers, apply
from tracekit.analysis._scaling import Member, ScalingResult, scaling
from tracekit.core.errors import MissingDataError
from tracekit.core.run import Run


def job(ranks: int, by_ms: float, batch: int | None = 8, **about: object) -> Run:
    conditions = {
        **made.CONDITIONS,
        "batch": {"global": batch},
        "workload": {**made.CONDITIONS["workload"], "seq": 128},
        "parallel": {"world_size": ranks, "tp": ranks},
        **about,
    }
    traces = (made.longer(made.trace(rank, 9), by_ms) for rank in range(ranks))
    return made.run(*traces, name=f"{ranks} ranks", conditions=conditions)


def series(*runs: Run, **options: object) -> ScalingResult:
    members = [Member(run, [apply(item, run) for item in analyzers().values()]) for run in runs]
    return scaling(members, **options)  # type: ignore[arg-type]


def test_strong_scaling_by_hand() -> None:
    # 20 ms on 2 ranks and 12.5 ms on 4: 1.6 times as fast on twice the ranks.
    found = series(job(4, 2.5), job(2, 10.0))
    assert found.kind == "strong"
    assert found.comparable
    assert found.per_run["world_size"].tolist() == [2, 4]
    assert found.per_run["speedup"].tolist() == pytest.approx([1.0, 1.6])
    assert found.per_run["efficiency_ratio"].tolist() == pytest.approx([1.0, 0.8])
    last = found.per_run.iloc[-1]
    assert last["low_ratio"] <= 0.8 <= last["high_ratio"]
    assert last["tokens_per_second_per_rank"] == pytest.approx(8 * 128 / 0.0125 / 4)
    assert found.per_run["exposed_comm_ratio"].notna().all()
    assert found.per_run["bubble_ratio"].isna().all()


def test_weak_scaling_counts_the_work() -> None:
    found = series(job(2, 10.0, 8), job(4, 10.0, 16))
    assert found.kind == "weak"
    assert found.per_run["efficiency_ratio"].tolist() == pytest.approx([1.0, 1.0])


def test_an_unknown_batch_is_said() -> None:
    assert series(job(2, 10.0, None), job(4, 2.5, None)).kind == "assumed strong"


def test_another_model_forbids() -> None:
    other = job(4, 2.5, workload=made.changed("workload", layers=8)["workload"])
    found = series(job(2, 10.0), other)
    assert not found.comparable
    assert {item.field for _, item in found.obstacles} >= {"workload.layers"}
    assert series(job(2, 10.0), other, force=True).forced


def test_one_size_is_no_series() -> None:
    with pytest.raises(MissingDataError, match="two world sizes"):
        series(job(2, 10.0), job(2, 9.0))
