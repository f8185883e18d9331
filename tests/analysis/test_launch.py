"""Idle time by cause: by hand, sums, planted pauses, what real traces leave open."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import synth
from tracekit import simulate
from tracekit.analysis.launch import analyze
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence
from tracekit.core.trace import Phase, RankTrace, Spans
from tracekit.io.load import load

PARTS = ["host_bound_ns", "dependency_ns", "dataloader_ns", "gc_ns", "sync_ns", "other_ns"]


def launched(trace: RankTrace, at: str, host: str = "") -> RankTrace:
    """The trace with launch times ("-" for none) and host spans like "data 10-20 | sync 5-8"."""
    launch = np.array([-1 if word == "-" else int(word) for word in at.split()], dtype=np.int64)
    kernels = dataclasses.replace(trace.kernels, launch_ns=launch)
    rows = []
    for piece in host.split("|") if host else ():
        name, times = piece.split()
        low, high = map(int, times.split("-"))
        rows.append((low, high, Phase[name.upper()]))
    rows.sort()
    count = len(rows)
    unknown = np.full(count, -1, dtype=np.int32)
    spans = Spans(
        np.array([low for low, _, _ in rows], dtype=np.int64),
        np.array([high for _, high, _ in rows], dtype=np.int64),
        np.array([phase for _, _, phase in rows], dtype=np.uint8), unknown, unknown, unknown,
    )  # fmt: skip
    return dataclasses.replace(trace, kernels=kernels, spans=spans)


def parts(trace: RankTrace) -> list[int]:
    frame = analyze(synth.run(trace)).per_step
    assert (frame[PARTS].sum(axis=1) == frame.idle_ns).all()
    return [int(value) for value in frame[PARTS].iloc[0]]


@pytest.mark.parametrize(
    ("launches", "host", "expected"),
    [
        ("0 25", "", [20, 0, 0, 0, 0, 0]),  # launched after the device ran dry at 10
        ("0 5", "", [0, 20, 0, 0, 0, 0]),  # in time; another stream was busy until 10
        ("0 -", "", [0, 0, 0, 0, 0, 20]),  # not recorded
        ("0 25", "data 5-20", [10, 0, 10, 0, 0, 0]),
        ("0 25", "data 5-20 | gc 18-22", [8, 0, 10, 2, 0, 0]),
        ("0 25", "sync 5-12", [5, 0, 0, 0, 15, 0]),  # from 25 on it is the launch itself
        ("0 25", "sync 5-8", [20, 0, 0, 0, 0, 0]),  # over before the device ran dry
        ("0 5", "data 5-20", [0, 20, 0, 0, 0, 0]),  # the host had launched before
    ],
)
def test_one_gap_by_hand(launches: str, host: str, expected: list[int]) -> None:
    trace = synth.rank(0, "K 0-10 s1 | K 30-100 s2", steps="0-100")
    assert parts(launched(trace, launches, host)) == expected


def test_turnaround_on_one_stream_is_other() -> None:
    trace = synth.rank(0, "K 0-10 s1 | K 12-100 s1", steps="0-100")
    assert parts(launched(trace, "0 5")) == [0, 0, 0, 0, 0, 2]


def test_a_kernel_that_begins_long_after_its_launch_is_not_the_hosts_fault() -> None:
    trace = synth.rank(0, "K 0-1000 s1 | K 900000-1000000 s2", steps="0-1000000")
    assert parts(launched(trace, "0 101000")) == [150_000, 0, 0, 0, 0, 749_000]


def test_a_gap_over_two_steps_counts_in_each() -> None:
    trace = synth.rank(0, "K 0-90 | K 120-200", steps="0-100 100-200")
    frame = analyze(synth.run(launched(trace, "0 118"))).per_step
    assert frame.host_bound_ns.tolist() == [10, 20]


def test_the_gap_is_named_by_what_ends_it() -> None:
    trace = synth.rank(0, "K 0-10 first | K 30-100 second", steps="0-100")
    (row,) = analyze(synth.run(launched(trace, "0 25"))).longest_gaps.to_dict("records")
    assert (row["gap_ns"], row["cause"], row["late_ns"]) == (20, "host-bound", 15)
    assert (row["kernel"], row["before"], row["op"]) == ("second", "first", "(not linked)")


@given(
    st.lists(
        st.tuples(st.integers(0, 190), st.integers(1, 20), st.integers(0, 2), st.integers(-1, 200)),
        min_size=1, max_size=12,
    ),
    st.lists(
        st.tuples(st.sampled_from(["data", "gc", "sync"]), st.integers(0, 190), st.integers(1, 40)),
        max_size=5,
    ),
)  # fmt: skip
def test_parts_sum_to_idle(
    rows: list[tuple[int, int, int, int]], host: list[tuple[str, int, int]]
) -> None:
    text = " | ".join(f"K {start}-{start + ns} s{stream}" for start, ns, stream, _ in rows)
    at = " ".join("-" if launch < 0 else str(min(launch, start)) for start, _, _, launch in rows)
    told = " | ".join(f"{name} {low}-{low + ns}" for name, low, ns in host)
    trace = launched(synth.rank(0, text, steps="0-100 100-200"), at, told)
    frame = analyze(synth.run(trace)).per_step
    assert (frame[PARTS].sum(axis=1) == frame.idle_ns).all()
    assert (frame[PARTS] >= 0).all().all()


def test_on_a_cpu_launches_are_not_measurable() -> None:
    trace = synth.rank(0, "K 0-10 | K 40-100", steps="0-100", device_type="cpu")
    frame = analyze(synth.run(launched(trace, "- -", "data 10-25 | recv 30-40"))).per_step
    assert frame.host_bound_ns.isna().all()
    assert frame.sync_ns.isna().all()
    columns = ["idle_ns", "dataloader_ns", "dependency_ns", "other_ns"]
    assert frame[columns].to_numpy().tolist() == [[30, 15, 10, 5]]


def test_a_planted_pause_for_data_is_found_and_its_twin_is_silent() -> None:
    base = {"dp": 2, "layers": 4, "steps": 4, "markers": True}
    slow = analyze(simulate.load(simulate.made({**base, "faults": ["dataloader:1:5"]})))
    found = [item for item in slow.findings if "next batch" in item.title]
    assert [item.ranks for item in found] == [(1,)]
    mine = slow.per_step[slow.per_step["rank"].eq(1) & slow.per_step.counted]
    assert mine.dataloader_ns.mean() == pytest.approx(5e6, rel=0.1)
    clean = analyze(simulate.load(simulate.made(base)))
    assert not [item for item in clean.findings if "next batch" in item.title and item.ranks]


def test_garbage_collection_is_told_from_the_rest() -> None:
    spec = simulate.made({"dp": 2, "layers": 4, "steps": 4, "faults": ["gc:1:5:every=1"]})
    frame = analyze(simulate.load(spec)).per_step
    mine = frame[frame["rank"].eq(1) & frame.counted]
    assert mine.gc_ns.mean() == pytest.approx(5e6, rel=0.3)
    assert (frame[frame["rank"].eq(0)].gc_ns == 0).all()


def test_unlinked_kernels_are_stated(real_traces: Path) -> None:
    result = analyze(load(real_traces / "mi300_resnet_8rank"))
    assert (result.per_step[PARTS].sum(axis=1) == result.per_step.idle_ns).all()
    assert result.no_op_count > 0
    assert result.by_name_ratio is not None
    graph = analyze(load(real_traces / "vllm_decode_graph"))
    assert graph.no_op_count > 0.5 * graph.kernel_count
    assert all(item.confidence is not Confidence.EXACT for item in graph.findings)


def test_no_device_work_is_refused() -> None:
    with pytest.raises(MissingDataError, match="record with"):
        analyze(synth.run(synth.rank(0, "", steps="0-100")))
