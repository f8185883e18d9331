"""Under which conditions a run was made: what two runs must share to be compared.

Every probe is guarded: what cannot be known is null, with the reason in
``probe_errors``. The environment is an allow-list and holds no secrets.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from tracekit.profile import hardware, network
from tracekit.profile import place as places
from tracekit.profile.plan import Plan
from tracekit.workloads.spec import BATCH_AXES, Compute, Mode

ENVIRONMENT_PREFIXES = ("NCCL_", "TORCH_", "CUDA_", "GLOO_", "OMP_")
SECRET_WORDS = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|KEY", re.IGNORECASE)

# What a probe may meet on an unusual machine; anything else is a bug and shows.
PROBE_ERRORS = (OSError, ImportError, ValueError, RuntimeError, subprocess.SubprocessError)


def collect(
    plan: Plan, load_before: Mapping[str, Any] | None = None, nodes: int | None = 1
) -> dict[str, Any]:
    """The ``conditions`` of a built-in workload, seen from this process.

    Args:
        plan: the job.
        load_before: what :func:`load` said before the first step.
        nodes: hosts of the job, None where that is not known.
    """
    place = places.from_environment(os.environ)
    found = machine(plan.device, place.init_method if place else None, load_before)
    return {
        **_job(plan, nodes),
        **found,
        "profiler": {
            "options": {"activities": activities(plan.device), "record_shapes": True},
            "warmup": plan.warmup,
            "active": plan.steps,
        },
        "seed": plan.spec.seed,
    }


def machine(
    device: str, init_method: str | None, load_before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What does not depend on the program that runs: each probe null where it fails."""
    errors: dict[str, str] = {}

    def guarded(name: str, probe: Callable[[], Any]) -> Any:
        try:
            return probe()
        except PROBE_ERRORS as error:
            errors[name] = f"{type(error).__name__}: {error}"
            return None

    net = guarded("network", lambda: network.describe(init_method))
    now = guarded("load", load)
    found = {
        "hardware": guarded("hardware", lambda: hardware.describe(device, net)),
        "software": guarded("software", _software),
        "load": None if now is None else {**now, "before": load_before},
        "command": guarded("command", lambda: command_line(sys.argv)),
        "git": guarded("git", _git),
        "environment": allowed(os.environ),
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    return {**found, "probe_errors": errors}


def _job(plan: Plan, nodes: int | None) -> dict[str, Any]:
    spec, degrees = plan.spec, plan.degrees
    training = spec.mode is Mode.TRAIN
    replicas = 1
    for axis in BATCH_AXES:
        replicas *= degrees.get(axis, 1)  # each has its own batch
    return {
        "workload": _workload(plan),
        "batch": {
            "global": (spec.batch if training else spec.concurrency) * replicas,
            "micro": spec.batch // spec.microbatches if training else spec.batch,
            "microbatches": spec.microbatches,
            "concurrency": None if training else spec.concurrency,
        },
        "precision": spec.dtype,
        "cache": {"kv": not training, "compile": False, "warm": True},
        "parallel": {
            "world_size": plan.world_size,
            "nodes": nodes,
            **{axis: degrees.get(axis, 1) for axis in ("dp", "fsdp", "tp", "pp", "ep", "cp")},
            "schedule": spec.schedule if "pp" in degrees else None,
            "chunks": spec.chunks if "pp" in degrees else None,
            "sequence_parallel": spec.sequence_parallel,
            "loss_parallel": spec.loss_parallel,
            "backend": plan.backend,
        },
    }


def _workload(plan: Plan) -> dict[str, Any]:
    # Late: a script's process needs what is above, and not the models.
    from tracekit.workloads import model

    spec = plan.spec
    sleeps = spec.compute is Compute.SLEEP
    return {
        "name": plan.workload,
        "mode": spec.mode.value,
        "model": "sleep" if sleeps else "moe-transformer" if spec.experts else "transformer",
        "layers": spec.layers,
        "hidden": spec.hidden,
        "heads": spec.heads,
        "seq": 1 if spec.mode is Mode.DECODE else spec.seq,
        "context": spec.context or None,
        "vocab": spec.vocab,
        "params": None if sleeps else model.parameters(spec),
        "experts": spec.experts or None,
        "top_k": spec.top_k or None,
        "routing": str(spec.routing) if spec.experts else None,
        "compute": spec.compute.value,
        "layer_ms": spec.layer_ms or None,
    }


def activities(device: str) -> list[str]:
    """What the profiler records on such a device."""
    return ["cpu", "cuda"] if device == "cuda" else ["cpu"]


def load() -> dict[str, Any] | None:
    """How busy the machine is with other things; null where that cannot be known."""
    return hardware.load()


def _software() -> dict[str, Any]:
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    return {
        "tracekit": importlib.metadata.version("torch-tracekit"),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
        "driver": hardware.driver(),
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()}",
    }


def command_line(argv: list[str]) -> str:
    """The command as typed, without the path of the program."""
    return shlex.join([Path(argv[0]).name, *argv[1:]])


def _git() -> dict[str, Any] | None:
    """The commit of the working directory, null outside a repository."""
    head = _run_git("rev-parse", "HEAD")
    if head is None:
        return None
    return {"commit": head, "dirty": bool(_run_git("status", "--porcelain", "-uno"))}


def _run_git(*arguments: str) -> str | None:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, timeout=5, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer libraries, by prefix; anything that looks like a secret is out."""
    return {
        key: value
        for key, value in sorted(environment.items())
        if key.startswith(ENVIRONMENT_PREFIXES) and not SECRET_WORDS.search(key)
    }
