"""The breakdown by hand, its properties, a planted change and its clean twin."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import synth
from tracekit.analysis.breakdown import analyze
from tracekit.core.errors import MissingDataError
from tracekit.core.run import Diagnostic, Severity
from tracekit.core.trace import StepFlag


def test_parts_by_hand() -> None:
    run = synth.run(
        synth.rank(3, "K 0-100 s7 | C 50-150 s9 | M 140-170 s9 | K 190-250 s7", steps="0-200")
    )
    assert analyze(run).per_step.to_dict("records") == [
        {
            "rank": 3, "device": 0, "step": 0, "step_ns": 200, "compute_ns": 110,
            "exposed_comm_ns": 50, "hidden_comm_ns": 50, "exposed_memory_ns": 20, "idle_ns": 20,
            "counted": True,
        }
    ]  # fmt: skip


def test_two_devices_of_one_rank_are_two_rows() -> None:
    run = synth.run(synth.rank(0, "K 0-60 d0 | K 0-40 d1", steps="0-100"))
    frame = analyze(run).per_step
    assert frame.device.tolist() == [0, 1]
    assert frame.compute_ns.tolist() == [60, 40]


def test_flagged_steps_are_shown_but_not_counted() -> None:
    trace = synth.rank(0, "K 0-100 | K 110-150", steps="0-100 100-200")
    steps = dataclasses.replace(
        trace.steps, flag=np.array([StepFlag.FIRST, StepFlag.OK], dtype=np.uint8)
    )
    result = analyze(synth.run(dataclasses.replace(trace, steps=steps)))
    assert result.per_step.counted.tolist() == [False, True]
    assert result.compute_ratio == pytest.approx(0.4)
    assert result.step_p50_ns == 100


def test_idle_is_found_and_a_busy_twin_is_silent() -> None:
    idle = analyze(synth.run(synth.rank(0, "K 0-60", steps="0-100")))
    assert [item.lost_ns_per_step for item in idle.findings] == [40]
    assert idle.findings[0].lost_ratio == pytest.approx(0.4)
    assert analyze(synth.run(synth.rank(0, "K 0-100", steps="0-100"))).findings == ()


def test_no_device_work_is_refused_with_the_readers_reason() -> None:
    note = Diagnostic("no-device-work", Severity.WARNING, 0, 1, "record with X")
    with pytest.raises(MissingDataError, match="record with X"):
        analyze(synth.run(synth.rank(0, "", steps="0-100"), diagnostics=(note,)))


pieces = st.lists(
    st.tuples(st.sampled_from("KCM"), st.integers(0, 90), st.integers(0, 40)),
    min_size=1,
    max_size=20,
)


@given(pieces, st.integers(0, 10**18))
def test_parts_sum_to_the_step_and_do_not_move_with_time(
    rows: list[tuple[str, int, int]], shift: int
) -> None:
    def frame(by: int) -> list[list[int]]:
        text = " | ".join(f"{kind} {at + by}-{at + size + by}" for kind, at, size in rows)
        run = synth.run(synth.rank(0, text, steps=f"{by}-{by + 100} {by + 100}-{by + 140}"))
        result = analyze(run).per_step
        parts = result[["compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"]]
        assert (parts.sum(axis=1) == result.step_ns).all()
        assert (parts >= 0).all().all()
        assert (result.hidden_comm_ns <= result.compute_ns).all()
        return parts.to_numpy().tolist()  # type: ignore[no-any-return]

    assert frame(0) == frame(shift)
