"""Overlap by hand, per axis and operation, its properties and refusals."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import synth
from tracekit.analysis import breakdown
from tracekit.analysis.overlap import analyze
from tracekit.core.errors import MissingDataError


def test_half_of_a_collective_is_hidden() -> None:
    run = synth.run(synth.rank(0, "K 0-100 s7 | C 50-150 s9", steps="0-200"))
    assert analyze(run).per_step.to_dict("records") == [
        {
            "rank": 0, "device": 0, "step": 0, "comm_ns": 100, "hidden_ns": 50, "exposed_ns": 50,
            "overlap_ratio": 0.5, "counted": True,
        }
    ]  # fmt: skip


def test_a_step_without_communication_has_no_ratio() -> None:
    run = synth.run(synth.rank(0, "K 0-100 | C 50-60", steps="0-100 100-200"))
    assert analyze(run).per_step.overlap_ratio.tolist() == [1.0, pd.NA]


def test_axes_are_measured_apart_over_all_ranks() -> None:
    one = synth.rank(0, "K 0-100 s1 | C 80-120 s2 @tp | C 90-150 s3 @dp", steps="0-200")
    other = synth.rank(1, "K 0-100 s1 | C 100-140 s2 @tp | C 100-110 s4", steps="0-200")
    frame = analyze(synth.run(one, other)).per_axis.set_index("axis")
    assert frame.comm_ns.to_dict() == {"tp": 80, "dp": 60, "unknown": 10}
    assert frame.hidden_ns.to_dict() == {"tp": 20, "dp": 10, "unknown": 0}
    assert frame.n.to_dict() == {"tp": 2, "dp": 1, "unknown": 1}


def test_whole_capture_counts_what_lies_outside_steps() -> None:
    run = synth.run(synth.rank(0, "K 0-10 | C 5-15 | C 300-310", steps="0-200"))
    result = analyze(run)
    assert result.per_rank.comm_ns.tolist() == [20]
    assert result.per_step.comm_ns.tolist() == [10]
    assert result.overlap_ratio == 0.5


def test_exposed_communication_is_a_finding_and_hidden_is_none() -> None:
    exposed = analyze(synth.run(synth.rank(0, "K 0-50 | C 50-80 @tp", steps="0-100")))
    assert [item.lost_ns_per_step for item in exposed.findings] == [30]
    assert "tp communication" in exposed.findings[0].title
    hidden = analyze(synth.run(synth.rank(0, "K 0-100 | C 50-80 @tp", steps="0-100")))
    assert hidden.findings == ()


def test_no_communication_is_refused() -> None:
    with pytest.raises(MissingDataError, match="--comm-pattern"):
        analyze(synth.run(synth.rank(0, "K 0-100", steps="0-100")))


pieces = st.lists(
    st.tuples(st.sampled_from("KCM"), st.integers(0, 90), st.integers(1, 40)), max_size=20
)


@given(pieces)
def test_agrees_with_the_breakdown_of_the_same_run(rows: list[tuple[str, int, int]]) -> None:
    text = " | ".join(f"{kind} {at}-{at + size}" for kind, at, size in [("C", 0, 5), *rows])
    run = synth.run(synth.rank(0, text, steps="0-60 60-130"))
    ours, theirs = analyze(run).per_step, breakdown.analyze(run).per_step
    assert ours.exposed_ns.tolist() == theirs.exposed_comm_ns.tolist()
    assert ours.hidden_ns.tolist() == theirs.hidden_comm_ns.tolist()
    assert (ours.hidden_ns + ours.exposed_ns == ours.comm_ns).all()
