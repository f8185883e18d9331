"""Whatever goes wrong: one clear error, no rank left, no folder left."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.profile.raw import record
from tracekit import workloads
from tracekit.core.errors import RankFailedError, UsageError
from tracekit.io import records
from tracekit.profile import launch, local
from tracekit.profile.plan import Options

MAIN = "from tracekit.cli import main; main()"


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    # Other tests of this process may have started helpers, such as a resource tracker.
    before = set(psutil.Process().children(recursive=True))
    yield
    after = set(psutil.Process().children(recursive=True))
    assert after - before == set()  # zombies would show here too
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def in_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[int], None]) -> None:
    """Let every rank call ``act(rank)`` at the beginning of one step."""
    build = workloads.build

    def disturbed(*arguments: Any) -> workloads.Workload:
        import torch.distributed as dist

        built = build(*arguments)

        def step(at: int) -> Any:
            if at == number:
                act(dist.get_rank())
            return built.step(at)

        return dataclasses.replace(built, step=step)

    monkeypatch.setattr(workloads, "build", disturbed)


def test_a_rank_that_raises_is_named_with_its_last_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def act(rank: int) -> None:
        if rank == 1:
            raise ZeroDivisionError("a planted bug")

    in_step(monkeypatch, 2, act)
    with pytest.raises(RankFailedError) as caught:
        record(tmp_path / "run", "tp")
    first, *tail = str(caught.value).splitlines()
    assert first == "rank 1 of 2 failed (exit code 1); the end of its log:"
    assert tail[-1] == "ZeroDivisionError: a planted bug"
    assert caught.value.exit_code == 5
    assert not (tmp_path / "run").exists()


def test_a_killed_rank_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def act(rank: int) -> None:
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    in_step(monkeypatch, 2, act)
    with pytest.raises(RankFailedError, match=r"rank 0 of 2 failed \(killed by SIGKILL\)"):
        record(tmp_path / "run", "dp")
    assert not (tmp_path / "run").exists()


def test_a_rank_that_hangs_ends_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def act(rank: int) -> None:
        if rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a rank stuck in C++ does
            time.sleep(600)

    in_step(monkeypatch, 2, act)
    before = time.monotonic()
    with pytest.raises(RankFailedError, match=r"rank 0 of 2 failed(.|\n)*[Tt]imed out"):
        record(tmp_path / "run", "tp", timeout_s=2.0)
    assert time.monotonic() - before < 30


def test_a_job_in_which_nothing_moves_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local, "PATIENCE_S", 1.0)
    in_step(monkeypatch, 2, lambda rank: time.sleep(600))
    with pytest.raises(RankFailedError, match=r"further in 3 s; last: rank 0: recording step 2"):
        record(tmp_path / "run", "tp", timeout_s=2.0)


def test_an_existing_folder_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="exists; choose another folder with -o"):
        record(out, "tp")
    with pytest.raises(UsageError, match="is not a run folder"):
        launch.run(Options(workload="tp"), out, force=True, on_progress=lambda line: None)
    assert (out / "mine.txt").read_text() == "precious"


def test_force_replaces_a_run_only_when_the_new_one_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    before = record(out, "tp").manifest.conditions["seed"]
    again = Options(workload="dp", hidden=64, heads=4, seed=before + 1, steps=2, warmup=1)
    with monkeypatch.context() as patched:
        in_step(patched, 1, lambda rank: sys.exit(3))
        with pytest.raises(RankFailedError):
            launch.run(again, out, force=True, on_progress=lambda line: None)
    assert '"seed": 0' in (out / "run.json").read_text()
    launch.run(again, out, force=True, on_progress=lambda line: None)
    assert '"seed": 1' in (out / "run.json").read_text()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        record(tmp_path / "file" / "run", "tp")


def test_a_full_disk_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UsageError, match=r"no space left at .* \(1 MiB free\)"):
        record(tmp_path / "run", "tp")


def test_a_disk_that_fills_up_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(records, "write", full)
    with pytest.raises(RankFailedError) as caught:
        record(tmp_path / "run", "tp")
    _, *log = str(caught.value).splitlines()
    assert len(log) == 1
    assert re.match(r"no space left for .*rank-0000\d.json; free some, or choose -o", log[0])


def test_missing_torch_tells_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r'needs torch: pip install "torch-tracekit\[profile\]"'):
        record(tmp_path / "run", "tp")


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys, tracekit.cli.profile; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="--device cuda: 2 ranks, but 1 GPUs here"):
        record(tmp_path / "run", "tp", device="cuda")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    arguments = ["profile", "tp", "-o", str(out), "--steps", "100000", "--hidden", "64"]
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what it puts in the background, these tests perhaps, deaf to it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        ranks = wait_for(lambda: psutil.Process(process.pid).children(), 2)
        time.sleep(1.0)  # into the steps
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert not any(rank.is_running() for rank in ranks)
    assert not out.exists()


@pytest.mark.slow
def test_ranks_do_not_outlive_a_killed_command(tmp_path: Path) -> None:
    arguments = ["profile", "tp", "-o", str(tmp_path / "run"), "--steps", "100000"]
    here = os.environ | {"TMPDIR": str(tmp_path)}  # what is left behind is left here
    with subprocess.Popen([sys.executable, "-c", MAIN, *arguments], env=here) as process:
        ranks = wait_for(lambda: psutil.Process(process.pid).children(), 2)
        time.sleep(1.0)
        process.kill()
    gone, alive = psutil.wait_procs(ranks, timeout=10)
    assert (len(gone), alive) == (2, [])
    for partial in tmp_path.glob(".run.*"):  # nobody was left to remove it
        partial.rename(tmp_path / "partial")


def wait_for(look: Callable[[], list[psutil.Process]], count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = look()
        if len(found) == count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {count} ranks in 30 s")
