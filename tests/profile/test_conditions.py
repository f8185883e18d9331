"""The conditions of a run: complete, honest about what is not known, and free of secrets."""

from __future__ import annotations

import os

import pytest

from tracekit.profile import conditions
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
