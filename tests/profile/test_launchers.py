"""The same command as one rank of a job that a launcher started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.profile.raw import RawRun
from tracekit.core.errors import RankFailedError
from tracekit.profile import elastic, launch
from tracekit.profile.plan import Options

COMMAND = [sys.executable, "-c", "from tracekit.cli import main; main()", "profile", "tp"]
SMALL = ["--hidden", "64", "--heads", "4", "--seq", "32", "--steps", "2", "--warmup", "1"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def whole(out: Path) -> None:
    run = RawRun(out)
    topology = run.manifest.topology
    assert topology is not None
    assert topology.world_size == 2
    assert [len(run.spans(rank, "ProfilerStep#")) for rank in (0, 1)] == [2, 2]
    assert [path for path in out.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    out = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    where = ["--master-port", str(free_port()), "--no-python"]
    done = subprocess.run(
        [*launcher, *where, *COMMAND, "-o", str(out), *SMALL],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.count("wrote ") == 1  # one voice per job
    whole(out)


def elastic_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Path:
    """As on GPUs: every rank in a fresh process of torch's own launcher."""
    monkeypatch.setattr(launch.local, "run_ranks", elastic.run_ranks)
    out = tmp_path / "run"
    small = {"hidden": 64, "heads": 4, "seq": 32, "steps": 2, "warmup": 1}
    launch.run(Options(workload="tp", **small, **options), out, on_progress=lambda line: None)
    return out


@pytest.mark.slow
def test_elastic_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(elastic_run(tmp_path, monkeypatch))


@pytest.mark.slow
def test_a_failing_rank_of_elastic_launch_shows_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RankFailedError, match=r"end of its log:(.|\n)*Error"):
        elastic_run(tmp_path, monkeypatch, backend="gloo", device="cpu", timeout_s=1e-9)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_open_mpi(tmp_path: Path) -> None:
    port = free_port()
    started = []
    for rank in (0, 1):
        own = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2",
               "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
               "MASTER_PORT": str(port)}  # fmt: skip
        command = [*COMMAND, "-o", str(tmp_path / "run"), *SMALL]
        started.append(subprocess.Popen(command, env=os.environ | own))
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    whole(tmp_path / "run")


def slurm(rank: int, out: Path, port: int) -> subprocess.Popen[str]:
    environment = os.environ | {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_STEP_ID": "0",
        "SLURM_NNODES": "1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(
        [*COMMAND, "-o", str(out), *SMALL],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_slurm(tmp_path: Path) -> None:
    port = free_port()
    ranks = [slurm(rank, tmp_path / "run", port) for rank in (0, 1)]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    whole(tmp_path / "run")


@pytest.mark.slow
def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        rank = slurm(0, tmp_path / "run", port)
        _, said = rank.communicate(timeout=60)
    assert rank.returncode == 2
    assert f"tcp://127.0.0.1:{port} is already in use; set MASTER_PORT to a free port" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
