"""Two hosts, as two network namespaces joined by a cable: the multi-node path, for real."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.profile.raw import RawRun
from tests.profile.spans import load
from tracekit.profile import network

MAIN = [sys.executable, "-c", "from tracekit.cli import main; main()"]
HOSTS = {"tka": "10.77.31.1", "tkb": "10.77.31.2"}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def two_hosts() -> Iterator[None]:
    """Namespaces with an interface each, and a loopback that reaches only themselves."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    try:
        with contextlib.ExitStack() as made:
            for name in HOSTS:
                ip("netns", "add", name)
                made.callback(ip, "netns", "delete", name)
            ip("link", "add", "tkveth0", "netns", "tka", "type", "veth",
               "peer", "name", "tkveth1", "netns", "tkb")  # fmt: skip
            for (name, address), link in zip(HOSTS.items(), ("tkveth0", "tkveth1"), strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
                ip("-n", name, "link", "set", "lo", "up")
            yield
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


def on_host(name: str, command: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["ip", "netns", "exec", name, *command],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(started: list[subprocess.Popen[str]]) -> list[str]:
    said = [process.communicate(timeout=150) for process in started]
    assert [process.returncode for process in started] == [0] * len(started), said
    return [out for out, _ in said]


def check(out: Path, ranks: int) -> None:
    raw = RawRun(out)
    conditions = raw.manifest.conditions
    assert conditions["parallel"]["nodes"] == 2
    assert conditions["hardware"]["network"]["interface"] == "tkveth0"
    assert len(load(out).traces) == ranks
    # The clock of a second host on the same machine is the same clock.
    first_there = ranks // 2
    samples = raw.records(first_there)["clock"]
    assert [sample["peer"] for sample in samples] == [0, 0]
    for sample in samples:
        assert abs(sample["offset_ns"]) <= sample["round_trip_ns"] < 20e6
    assert samples[1]["at_ns"] > samples[0]["at_ns"]
    assert raw.records(0)["clock"] == []


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.usefixtures("two_hosts")
def test_slurm_over_two_hosts(tmp_path: Path) -> None:
    command = [
        *MAIN,
        "profile",
        "tp",
        "-o",
        str(tmp_path / "run"),
        "--hidden",
        "64",
        "--steps",
        "2",
    ]
    started = [
        on_host(
            name, command, SLURM_PROCID=str(rank), SLURM_LOCALID="0", SLURM_NTASKS="2",
            SLURM_STEP_ID="0", SLURM_NNODES="2", MASTER_ADDR=HOSTS["tka"], MASTER_PORT="29511",
        )
        for rank, name in enumerate(HOSTS)
    ]  # fmt: skip
    ended(started)
    check(tmp_path / "run", 2)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.usefixtures("two_hosts")
def test_torchrun_over_two_hosts(tmp_path: Path) -> None:
    started = []
    for number, name in enumerate(HOSTS):
        launcher = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank",
            str(number), "--nproc-per-node", "2", "--master-addr", HOSTS["tka"],
            "--master-port", "29512", "--no-python",
        ]  # fmt: skip
        out = ["-o", str(tmp_path / "run"), "--hidden", "64", "--steps", "2"]
        started.append(on_host(name, [*launcher, *MAIN, "profile", "dp", "--tp", "2", *out]))
    said = ended(started)
    assert "".join(said).count("wrote ") == 1
    check(tmp_path / "run", 4)


def test_the_interface_is_that_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "interface_to", lambda host: "eth7")
    environment = {"NCCL_SOCKET_IFNAME": "ib0"}
    assert network.choose_interface("tcp://192.0.2.7:1234", environment) == "eth7"
    assert environment == {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": "ib0"}


@pytest.mark.parametrize("method", ["tcp://127.0.0.1:1234", "tcp://localhost:1", "file:///tmp/x"])
def test_ranks_on_one_host_need_no_interface(method: str) -> None:
    environment: dict[str, str] = {}
    assert network.choose_interface(method, environment) is None
    assert environment == {}


def test_rdma_ports_and_their_rates(tmp_path: Path) -> None:
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    assert network.rdma(tmp_path / "infiniband") == {"mlx5_0/1": "400 Gb/sec (4X NDR)"}
    assert network.rdma(tmp_path / "nowhere") == {}


def test_an_unknown_host_has_no_interface() -> None:
    assert network.interface_to("no-such-host.invalid") is None
