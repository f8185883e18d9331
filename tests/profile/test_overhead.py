"""What recording costs, measured by the runner itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.pipelining import schedules, stage

from tests.profile.raw import SMALL, RawRun
from tracekit.cli.app import run as command
from tracekit.profile import recorder


@pytest.mark.slow
def test_overhead_is_measured_printed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    small = [word for key, value in SMALL.items() for word in (f"--{key}", str(value))]
    assert command(["profile", "tp", "-o", str(out), "--measure-overhead", *small]) == 0
    found = RawRun(out).manifest.overhead
    assert found is not None
    steps = found["step_p50_ns"]
    assert set(steps) == {"bare", "torch_profiler", "tracekit"}
    assert min(steps.values()) > 0
    assert found["n"] == 3 * SMALL["steps"]
    assert found["tracekit_ratio"] == steps["tracekit"] / steps["torch_profiler"] - 1
    assert "more with tracekit's marks (medians of 9)" in capsys.readouterr().out


def test_nothing_stays_wrapped_outside_of_a_recording() -> None:
    owners = [
        (stage._PipelineStageBase, "forward_one_chunk"),
        (stage._PipelineStageBase, "backward_one_chunk"),
        (schedules, "_batch_p2p"),
        (schedules, "_wait_batch_p2p"),
    ]
    before = [getattr(owner, name) for owner, name in owners]
    with recorder.Recorder().watch():
        assert all(
            getattr(owner, name) is not original
            for (owner, name), original in zip(owners, before, strict=True)
        )
    assert [getattr(owner, name) for owner, name in owners] == before
    assert not dist.is_initialized()
