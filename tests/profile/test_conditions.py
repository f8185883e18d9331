# ruff: noqa: N802, N815  (the stand-in for NVML has its names)
"""The conditions of a run: complete, honest about what is not known, and free of secrets."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from tracekit.profile import conditions, hardware
from tracekit.profile.plan import Options, make

KEYS = {
    "workload": {
        "name",
        "mode",
        "model",
        "layers",
        "hidden",
        "heads",
        "seq",
        "context",
        "vocab",
        "params",
    },
    "batch": {"global", "micro", "microbatches", "concurrency"},
    "cache": {"kv", "compile", "warm"},
    "parallel": {"world_size", "nodes", "dp", "fsdp", "tp", "pp", "ep", "cp", "schedule", "chunks"},
    "hardware": {
        "device",
        "count",
        "memory_bytes",
        "clocks_mhz",
        "power_w",
        "cpu",
        "links",
        "network",
    },
    "software": {"tracekit", "torch", "cuda", "nccl", "driver", "python", "os"},
    "profiler": {"options", "warmup", "active"},
}


def test_every_field_is_there() -> None:
    found = conditions.collect(make(Options(workload="pp", degrees={"dp": 2}, seed=7)))
    for name, keys in KEYS.items():
        assert keys <= found[name].keys(), name
    assert {"precision", "environment", "load", "when", "command", "git"} <= found.keys()
    assert found["seed"] == 7
    assert found["batch"]["global"] == 16
    assert found["batch"]["micro"] == 2
    assert found["parallel"]["schedule"] == "1f1b"
    assert found["probe_errors"] == {}


def test_conditions_of_inference() -> None:
    options = Options(workload="tp", mode="decode", batch=2, concurrency=6, context=16)
    found = conditions.collect(make(options), nodes=3)
    assert found["workload"]["mode"] == "decode"
    assert (found["workload"]["seq"], found["workload"]["context"]) == (1, 16)
    assert found["batch"]["global"] == found["batch"]["concurrency"] == 6
    assert found["batch"]["micro"] == 2
    assert found["cache"]["kv"] is True
    assert found["parallel"]["nodes"] == 3


def test_conditions_of_a_pipeline_of_chunks() -> None:
    options = Options(workload="pp", degrees={"fsdp": 2, "dp": 2}, schedule="zbv")
    found = conditions.collect(make(options))
    assert (found["parallel"]["schedule"], found["parallel"]["chunks"]) == ("zbv", 2)
    assert (found["parallel"]["fsdp"], found["parallel"]["dp"]) == (2, 2)
    assert found["batch"]["global"] == 4 * 8


def test_what_the_machine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"other_processes": 1, "load_average": [0.5, 0.5, 0.5]}
    found = conditions.machine("cpu", None, before)
    assert found["load"]["before"] == before
    assert found["hardware"]["network"]["interface"] == "lo"
    assert found["hardware"]["network"]["mtu"] > 0
    assert found["hardware"]["memory_bytes"] > 1 << 28
    assert found["hardware"]["cpu"]
    assert found["probe_errors"] == {}


class Nvml:
    """Two GPUs joined by four NVLinks, as NVML would show them; the first shows no power."""

    NVML_CLOCK_SM = 1
    NVML_NVLINK_MAX_LINKS = 18
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid.removeprefix("GPU-")

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return 1980

    nvmlDeviceGetMaxClockInfo = nvmlDeviceGetClockInfo

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        if handle == "a":
            raise self.NVMLError
        return 350_500

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(busId=handle)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: str, link: int) -> SimpleNamespace:
        if link >= 4:
            raise self.NVMLError
        return SimpleNamespace(busId="b" if handle == "a" else "a")

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: str, link: int) -> int:
        return 0

    def nvmlDeviceGetTopologyCommonAncestor(self, one: str, other: str) -> int:
        return 30

    def nvmlShutdown(self) -> None:
        pass


def test_links_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_nvml", Nvml)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    properties = lambda n: SimpleNamespace(  # noqa: E731
        uuid="ab"[n], name="H100", total_memory=80 << 30
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    found = hardware.describe("cuda", None)
    assert found["links"] == [["X", "NV4"], ["NV4", "X"]]
    assert found["power_w"] == [None, 350.5]
    assert found["clocks_mhz"][0] == {"now": 1980, "max": 1980}
    assert (found["device"], found["count"]) == ("H100", 2)
    monkeypatch.setattr(Nvml, "NVML_NVLINK_MAX_LINKS", 0)
    assert hardware.describe("cuda", None)["links"][0] == ["X", "PCIe switches"]
    monkeypatch.setattr(hardware, "_nvml", lambda: None)
    with pytest.raises(RuntimeError, match="nvidia-ml-py"):
        hardware.describe("cuda", None)


def test_a_probe_that_fails_leaves_null_and_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no such thing here")

    monkeypatch.setattr(conditions, "load", broken)
    found = conditions.collect(make(Options(workload="tp")))
    assert found["load"] is None
    assert found["probe_errors"] == {"load": "OSError: no such thing here"}


def test_no_repository_is_null(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    monkeypatch.chdir(tmp_path)
    found = conditions.collect(make(Options(workload="tp")))
    assert found["git"] is None


def test_the_environment_is_an_allow_list_without_secrets() -> None:
    assert conditions.allowed(
        {
            "NCCL_DEBUG": "INFO",
            "OMP_NUM_THREADS": "1",
            "TORCH_ACCESS_TOKEN": "abc",
            "CUDA_LICENSE_KEY": "abc",
            "HOME": "/home/someone",
            "AWS_SECRET_ACCESS_KEY": "abc",
        }
    ) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}


def test_the_command_is_given_without_the_path_of_the_program() -> None:
    argv = ["/home/someone/bin/tracekit", "profile", "tp", "-o", "my run"]
    assert conditions.command_line(argv) == "tracekit profile tp -o 'my run'"
