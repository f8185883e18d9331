"""The same command as one rank of a job that a launcher started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profile.raw import RawRun

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
