"""What recording costs, measured by the runner itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.pipelining import schedules, stage

from tests.profile.raw import SMALL, RawRun
from tracekit.cli.app import run as command
from tracekit.profile import overhead, recorder


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
    low, high = found["tracekit_ratio_interval"]
    assert low <= found["tracekit_ratio"] <= high
    assert "medians of 9)" in capsys.readouterr().out


def test_neighbours_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine whose pace triples halfway, and marks that cost exactly a tenth.
    now = 0
    marking = False
    taken = 0

    def step(line: str, marked: bool) -> None:
        nonlocal now, taken
        taken += 1
        now += (1000 if taken < 40 else 3000) * (11 if marking else 10)

    @contextlib.contextmanager
    def watch() -> Iterator[None]:
        nonlocal marking
        marking = True
        yield
        marking = False

    monkeypatch.setattr(overhead.time, "perf_counter_ns", lambda: now)
    found = overhead.measure(step, contextlib.nullcontext, watch, steps=10)
    assert found["n"] == 30
    assert found["tracekit_ratio"] == pytest.approx(0.1)
    assert found["tracekit_ratio_interval"] == pytest.approx([0.1, 0.1])


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
