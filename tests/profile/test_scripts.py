"""A user's own script is recorded without a change to it, and behaves as if it were not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.profile.raw import RawRun
from tests.profile.spans import load
from tests.profile.test_launchers import free_port
from tracekit.core.errors import UsageError
from tracekit.core.trace import Phase
from tracekit.profile import script
from tracekit.profile.agreement import VARIABLE

PROGRAMS = Path(__file__).parent / "programs"
DDP = str(PROGRAMS / "ddp.py")
INFERENCE = str(PROGRAMS / "inference.py")
MAIN = [sys.executable, "-c", "from tracekit.cli import main; main()"]


def profile(out: Path, *arguments: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*before, *MAIN, "profile", "-o", str(out), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def whole(out: Path, ranks: int, steps: list[int]) -> None:
    raw = RawRun(out)
    topology = raw.manifest.topology
    assert topology is not None
    assert topology.world_size == ranks
    assert [file.rank for file in raw.manifest.files] == list(range(ranks))
    run = load(out)
    assert [trace.steps.number.tolist() for trace in run.traces] == [steps] * ranks
    left = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    files = {file.path for file in raw.manifest.files}
    assert left == files | {str(f.records) for f in raw.manifest.files} | {"run.json"}
    assert [path for path in out.parent.iterdir() if path.name.startswith(".")] == []


def test_two_ranks_of_a_plain_loop_keep_their_exit_code(tmp_path: Path) -> None:
    out = tmp_path / "run"
    timing = ("--ranks", "2", "--warmup", "2", "--active", "3")
    done = profile(out, *timing, "--", DDP, "--steps", "7", "--code", "3", "--workers", "1")
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("finished with loss") == 2
    assert f"wrote {out}" in done.stdout
    whole(out, 2, [2, 3, 4])
    conditions = RawRun(out).manifest.conditions
    assert conditions["workload"]["name"] == "ddp.py"
    assert conditions["parallel"]["world_size"] == 2
    assert conditions["software"]["torch"]
    assert conditions["profiler"]["warmup"] == 2
    assert VARIABLE not in conditions["environment"]
    for trace in load(out).traces:
        assert (trace.spans.phase == Phase.DATA).sum() == 3
        assert len(trace.calls) >= 3  # the reduction of every step


@pytest.mark.slow
def test_one_process_and_repeated_recordings(tmp_path: Path) -> None:
    out = tmp_path / "run"
    timing = ("--warmup", "1", "--active", "2", "--repeat", "2")
    done = profile(out, *timing, "--", DDP, "--steps", "9")
    assert done.returncode == 0, done.stderr
    names = [Path(file.path).name for file in RawRun(out).manifest.files]
    assert names == [f"rank-00000.{number}.pt.trace.json.gz" for number in (0, 1)]
    assert load(out).traces[0].steps.number.tolist() == [1, 2, 4, 5]


@pytest.mark.slow
def test_a_crash_keeps_what_was_recorded(tmp_path: Path) -> None:
    out = tmp_path / "run"
    timing = ("--warmup", "1", "--active", "5")
    done = profile(out, *timing, "--", DDP, "--steps", "9", "--crash", "4")
    assert done.returncode == 1
    assert "RuntimeError: a bug in the script" in done.stderr
    assert load(out).traces[0].steps.number.tolist()[:3] == [1, 2, 3]


@pytest.mark.slow
def test_the_scripts_own_profiler_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "run"
    timing = ("--warmup", "3", "--active", "9")
    done = profile(out, *timing, "--", DDP, "--steps", "9", "--own-profiler")
    assert done.returncode == 0, done.stderr
    assert "finished with loss" in done.stdout
    assert "the script has a profiler of its own; tracekit stepped aside" in done.stderr
    assert load(out).traces[0].steps.number.tolist()[:2] == [3, 4]


@pytest.mark.slow
def test_an_error_of_ours_is_not_the_scripts(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MAIN, "profile", "-o", str(tmp_path / "run"), "--warmup", "1", "--", DDP],
        env=os.environ | {"TORCH_FR_BUFFER_SIZE": "many"},  # no number: torch refuses it
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "finished with loss" in done.stdout
    assert "recording failed: RuntimeError: Invalid value" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_too_few_steps_say_so(tmp_path: Path) -> None:
    done = profile(tmp_path / "run", "--warmup", "9", "--", DDP, "--steps", "3")
    assert done.returncode == 4
    assert "it made 3 steps, and 15 are needed (--warmup 9 + --active 6)" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("step_of", ["Model", "torch.nn.functional:gelu"])
def test_inference_by_a_named_step(tmp_path: Path, step_of: str) -> None:
    out = tmp_path / "run"
    timing = ("--warmup", "2", "--active", "3", "--step-of", step_of)
    done = profile(out, *timing, "--", INFERENCE, "0.5")
    assert done.returncode == 0, done.stderr
    whole(out, 1, [2, 3, 4])


@pytest.mark.slow
def test_inference_without_a_step_says_how_to_name_one(tmp_path: Path) -> None:
    done = profile(tmp_path / "run", "--", INFERENCE, "0.1")
    assert done.returncode == 4
    assert "For inference name what a step is: --step-of" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_window_of_time(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = profile(out, "--window", "8:0.5", "--", INFERENCE, "12")
    assert done.returncode == 0, done.stderr
    (trace,) = load(out).traces
    assert len(trace.steps) == 1
    assert trace.steps.end_ns[0] - trace.steps.start_ns[0] == pytest.approx(0.5e9, rel=0.5)


@pytest.mark.slow
def test_torchrun_started_by_the_script_command(tmp_path: Path) -> None:
    out = tmp_path / "run"
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    timing = ("--warmup", "2", "--active", "3")
    done = profile(out, *timing, "--", *launcher, str(free_port()), DDP, "--steps", "7")
    assert done.returncode == 0, done.stderr
    whole(out, 2, [2, 3, 4])


@pytest.mark.slow
def test_under_torchrun_started_by_the_user(tmp_path: Path) -> None:
    out = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    before = [*launcher, "--master-port", str(free_port()), "--no-python"]
    timing = ("--warmup", "2", "--active", "3")
    done = profile(out, *timing, "--", DDP, "--steps", "7", before=before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote ") == 1
    whole(out, 2, [2, 3, 4])


def run_own_loop(out: Path, *more: str, ranks: int = 1) -> list[int]:
    started = []
    port = str(free_port())
    for rank in range(ranks):
        several = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": port} if ranks > 1 else {}  # fmt: skip
        command = [sys.executable, str(PROGRAMS / "own_loop.py"), str(out), *more]
        started.append(subprocess.Popen(command, env=os.environ | several))
    return [process.wait(timeout=120) for process in started]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_loop_records_itself(tmp_path: Path, ranks: int) -> None:
    out = tmp_path / "run"
    assert run_own_loop(out, ranks=ranks) == [0] * ranks
    run = load(out)
    assert [trace.steps.number.tolist() for trace in run.traces] == [[1, 2, 4, 5]] * ranks
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_a_loop_that_fails_keeps_its_error_and_its_recording(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run_own_loop(out, "4") == [1]
    assert load(out).traces[0].steps.number.tolist()[:2] == [1, 2]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("nowhere.py",), "nowhere.py: there is no such script"),
        (("no-such-program", "x"), "is neither a workload, a script"),
    ],
)
def test_what_cannot_be_started_is_one_line(command: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        script.argv(command)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ranks": 0}, "--ranks 0: must be at least 1"),
        ({"active": 0}, "--active 0: must be at least 1"),
        ({"window": (1.0, 0.0)}, "--window: give START:SECONDS"),
    ],
)
def test_bad_requests(tmp_path: Path, options: dict, says: str) -> None:
    request = script.Request(command=(DDP,), **options)
    with pytest.raises(UsageError, match=says):
        script.run(request, tmp_path / "run")
