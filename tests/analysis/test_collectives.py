"""Wait and transfer by hand, tails and their thresholds, bandwidths, refusals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import synth
from tracekit.analysis.collectives import analyze
from tracekit.core.clock import ClockFit
from tracekit.core.errors import MissingDataError
from tracekit.core.run import LinkLatency, Run

EXACT = tuple(ClockFit(rank, 0.0, 0.0, 0) for rank in range(4))


def two(first: str, second: str, **changes: object) -> Run:
    """Two ranks with exact clocks; times in µs."""
    ranks = (synth.rank(n, t, "0-100000", unit_ns=1000) for n, t in enumerate((first, second)))
    return synth.run(*ranks, **{"clock": EXACT[:2], **changes})


def test_wait_and_transfer_of_one_collective() -> None:
    run = two("C 0-100 @tp:0,1 #1 bytes:4000", "C 70-100 @tp:0,1 #1 bytes:4000")
    row = analyze(run).slowest.iloc[0]
    assert (row.wait_ns, row.transfer_ns, row.duration_ns) == (70_000, 30_000, 100_000)
    assert (row.late_rank, row.status, row.excess) == (1, "ok", "wait")
    latency = analyze(run).latency.iloc[0]
    assert latency.algbw_p50_gbps == pytest.approx(4000 / 30_000)
    assert latency.busbw_p50_gbps == pytest.approx(4000 / 30_000)  # 2 (n - 1) / n is 1 for two


def test_arrivals_closer_than_the_uncertainty_are_a_tie() -> None:
    row = analyze(two("C 0-100 @tp:0,1 #1", "C 5-100 @tp:0,1 #1")).slowest.iloc[0]
    assert row.status == "tie"
    assert row.late_rank is pd.NA


def test_a_missing_member_leaves_the_duration_only() -> None:
    text = "C 0-100 @tp:0,1,2 #1"
    result = analyze(two(text, text, topology=synth.Topology(world_size=3)))
    row = result.slowest.iloc[0]
    assert row.status == "partial"
    assert row.wait_ns is pd.NA
    assert row.duration_ns == 100_000
    assert result.latency.n_complete.tolist() == [0]
    assert result.latency.transfer_p50_ns.isna().all()


def test_clocks_that_nothing_connects_are_not_compared() -> None:
    apart = (EXACT[0], ClockFit(1, 0.0, 0.0, 1))
    row = analyze(two("C 0-9 @tp:0,1 #1", "C 5-9 @tp:0,1 #1", clock=apart)).slowest.iloc[0]
    assert row.status == "not_comparable"


def test_transfer_is_held_against_the_benchmark_of_the_same_operation() -> None:
    text = "C 0-30 @tp:0,1 #1 bytes:4000"
    measured = (
        LinkLatency("all_reduce", 2, 1000, 5_000),
        LinkLatency("all_reduce", 2, 16_000, 20_000),
        LinkLatency("all_reduce", 4, 4000, 1),
        LinkLatency("all_gather", 2, 4000, 1),
    )
    row = analyze(two(text, text, baseline=measured)).latency.iloc[0]
    assert row.transfer_p50_ns == 30_000
    # Half way between 1000 and 16000 bytes on logarithmic scales.
    assert row.alone_p50_ns == pytest.approx(10_000)
    assert row.contention_factor == pytest.approx(3)
    assert row.alone_refused == ""


@pytest.mark.parametrize(
    ("baseline", "reason"),
    [
        ((), "no tracekit bench"),
        ((LinkLatency("all_gather", 2, 4000, 1),), "all_reduce over 2 ranks was not"),
        ((LinkLatency("all_reduce", 2, 8000, 1),), "from 8000 to 8000 bytes only"),
    ],
)
def test_without_a_benchmark_of_it_there_is_no_contention_factor(
    baseline: tuple[LinkLatency, ...], reason: str
) -> None:
    text = "C 0-30 @tp:0,1 #1 bytes:4000"
    row = analyze(two(text, text, baseline=baseline)).latency.iloc[0]
    assert row.alone_p50_ns is pd.NA
    assert row.contention_factor is pd.NA
    assert reason in row.alone_refused


def many(count: int) -> Run:
    calls = [
        " | ".join(f"C {k * 100 + late}-{k * 100 + 50} @tp:0,1 #{k} bytes:64" for k in range(count))
        for late in (0, 10)
    ]
    return two(*calls)


@pytest.mark.parametrize(("count", "p95", "p99"), [(19, 0, 0), (20, 1, 0), (99, 1, 0), (100, 1, 1)])
def test_tails_are_null_where_instances_are_few(count: int, p95: int, p99: int) -> None:
    row = analyze(many(count)).latency.iloc[0]
    assert row.n == count
    assert row.transfer_p50_ns == 40_000
    assert row.wait_p50_ns == 10_000
    assert (row.transfer_p95_ns is not pd.NA) == bool(p95)
    assert (row.wait_p99_ns is not pd.NA) == bool(p99)


def test_sizes_are_kept_apart_by_powers_of_two() -> None:
    text = " | ".join(
        f"C {100 * k}-{100 * k + 9} @tp:0,1 #{k} bytes:{size}"
        for k, size in enumerate((1024, 2047, 2048, 5000))
    )
    frame = analyze(two(text, text)).latency
    assert sorted(zip(frame.bytes, frame.n, strict=True)) == [(1535, 2), (2048, 1), (5000, 1)]


def sized(latency_us: int, gbps: float, sizes: tuple[int, ...]) -> Run:
    rows, at = [], 0
    for number, size in enumerate(sizes * 3):
        took = latency_us + round(size / gbps / 1000)
        rows.append(f"C {at}-{at + took} @tp:0,1 #{number} bytes:{size}")
        at += took + 100
    return two(" | ".join(rows), " | ".join(rows))


def test_latency_and_bandwidth_are_fitted() -> None:
    row = analyze(sized(20, 50.0, (1 << 20, 1 << 22, 1 << 24, 1 << 26))).fits.iloc[0]
    assert row.latency_ns == pytest.approx(20_000, rel=0.05)
    assert row.bandwidth_gbps == pytest.approx(50, rel=0.02)
    assert row.refused == ""


def test_a_fit_of_few_or_alike_sizes_is_refused() -> None:
    assert "2 message sizes" in analyze(sized(20, 50.0, (1 << 20, 1 << 26))).fits.refused[0]
    alike = sized(20, 50.0, (1 << 20, 1 << 21, 3 << 20))
    assert "span" in analyze(alike).fits.refused[0]


def test_waiting_is_a_finding_and_its_punctual_twin_is_silent() -> None:
    late = two("K 0-50 | C 50-1000 @tp:0,1 #1", "K 0-900 | C 900-1000 @tp:0,1 #1")
    run = synth.run(
        *(synth.rank(t.rank, text, "0-1000", unit_ns=1000) for t, text in zip(
            late.traces,
            ("K 0-50 | C 50-1000 @tp:0,1 #1", "K 0-900 | C 900-1000 @tp:0,1 #1"),
            strict=True,
        )),
        clock=EXACT[:2],
    )  # fmt: skip
    assert "waiting" in analyze(run).findings[0].title
    assert analyze(many(30)).findings == ()


def test_no_communication_is_refused() -> None:
    with pytest.raises(MissingDataError, match="no communication"):
        analyze(synth.run(synth.rank(0, "K 0-100", "0-100")))


@given(st.integers(0, 10**15), st.lists(st.integers(0, 900), min_size=2, max_size=30))
def test_moving_all_clocks_changes_nothing(shift: int, late: list[int]) -> None:
    def frame(by: int) -> pd.DataFrame:
        rows = [
            " | ".join(
                f"C {by + k * 2000 + (value if rank else 0)}-{by + k * 2000 + 1000} @tp:0,1 #{k}"
                for k, value in enumerate(late)
            )
            for rank in range(2)
        ]
        end = by + 2000 * len(late)
        run = synth.run(*(synth.rank(n, t, f"{by}-{end}") for n, t in enumerate(rows)))
        return analyze(run).latency

    pd.testing.assert_frame_equal(frame(0), frame(shift))


@given(st.lists(st.integers(0, 90), min_size=2, max_size=6))
def test_wait_and_transfer_sum_to_the_longest_call(arrivals: list[int]) -> None:
    members = ",".join(str(rank) for rank in range(len(arrivals)))
    run = synth.run(
        *(
            synth.rank(rank, f"C {at}-100 @tp:{members} #1", "0-200", unit_ns=1000)
            for rank, at in enumerate(arrivals)
        ),
        clock=tuple(ClockFit(rank, 0.0, 0.0, 0) for rank in range(len(arrivals))),
    )
    row = analyze(run).slowest.iloc[0]
    assert row.wait_ns + row.transfer_ns == row.duration_ns
    assert row.wait_ns == 1000 * np.ptp(arrivals)
