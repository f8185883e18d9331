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

from tracekit.profile.plan import Plan
from tracekit.workloads import model

ENVIRONMENT_PREFIXES = ("NCCL_", "TORCH_", "CUDA_", "GLOO_", "OMP_")
SECRET_WORDS = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|KEY", re.IGNORECASE)

# What a probe may meet on an unusual machine; anything else is a bug and shows.
PROBE_ERRORS = (OSError, ImportError, ValueError, RuntimeError, subprocess.SubprocessError)


def collect(plan: Plan) -> dict[str, Any]:
    """The ``conditions`` of ``run.json``, seen from this process."""
    probes: dict[str, Callable[[], Any]] = {
        "hardware": lambda: _hardware(plan),
        "software": _software,
        "load": _load,
        "command": lambda: command_line(sys.argv),
        "git": _git,
    }
    errors: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, probe in probes.items():
        try:
            found[name] = probe()
        except PROBE_ERRORS as error:
            found[name] = None
            errors[name] = f"{type(error).__name__}: {error}"
    return {
        **_job(plan),
        **found,
        "environment": allowed(os.environ),
        "profiler": {
            "options": {"activities": _activities(plan), "record_shapes": True},
            "warmup": plan.warmup,
            "active": plan.steps,
        },
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": plan.spec.seed,
        "probe_errors": errors,
    }


def _job(plan: Plan) -> dict[str, Any]:
    spec, degrees = plan.spec, plan.degrees
    pipelined = "pp" in degrees
    replicas = degrees.get("dp", 1) * degrees.get("ep", 1)  # each has its own batch
    parallel: dict[str, Any] = {"world_size": plan.world_size, "nodes": _nodes()}
    parallel |= {axis: degrees.get(axis, 1) for axis in ("dp", "fsdp", "tp", "pp", "ep", "cp")}
    parallel |= {
        "schedule": spec.schedule if pipelined else None,
        "chunks": 1 if pipelined else None,
    }
    return {
        "workload": {
            "name": plan.workload,
            "mode": "train",
            "model": "moe-transformer" if spec.experts else "transformer",
            "layers": spec.layers,
            "hidden": spec.hidden,
            "heads": spec.heads,
            "seq": spec.seq,
            "context": None,
            "vocab": spec.vocab,
            "params": model.parameters(spec),
            "experts": spec.experts or None,
            "top_k": spec.top_k or None,
            "routing": str(spec.routing) if spec.experts else None,
        },
        "batch": {
            "global": spec.batch * replicas,
            "micro": spec.batch // spec.microbatches,
            "microbatches": spec.microbatches,
            "concurrency": None,
        },
        "precision": spec.dtype,
        "cache": {"kv": None, "compile": False, "warm": True},
        "parallel": parallel,
    }


def _nodes() -> int | None:
    """Hosts of the job: known only where the launcher tells, or without a launcher."""
    local, world = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if local and world:
        return -(-int(world) // int(local))
    slurm = os.environ.get("SLURM_NNODES")
    return int(slurm) if slurm else None if world else 1


def _activities(plan: Plan) -> list[str]:
    return ["cpu", "cuda"] if plan.device == "cuda" else ["cpu"]


def _hardware(plan: Plan) -> dict[str, Any]:
    on_gpu = plan.device == "cuda"
    gpu = torch.cuda.get_device_properties(0) if on_gpu else None
    return {
        "device": gpu.name if gpu else "cpu",
        "count": torch.cuda.device_count() if on_gpu else os.cpu_count(),
        "memory_bytes": gpu.total_memory if gpu else _memory_bytes(),
        "clocks_mhz": None,
        "power_w": None,
        "cpu": _cpu_model(),
        "links": None,
        "network": None,
    }


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_model() -> str | None:
    """The model string of the first core, as Linux gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or None
    match = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or None


def _software() -> dict[str, Any]:
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    return {
        "tracekit": importlib.metadata.version("torch-tracekit"),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
        "driver": None,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()}",
    }


def _load() -> dict[str, Any]:
    """How busy the machine is with other things."""
    import psutil

    here = psutil.Process()
    starter = here.parent() or here  # forked ranks are its children
    family = {starter.pid, *(process.pid for process in starter.children(recursive=True))}
    running = [
        process
        for process in psutil.process_iter(["status"])
        if process.info["status"] == psutil.STATUS_RUNNING and process.pid not in family
    ]
    return {
        "other_processes": len(running),
        "load_average": [round(value, 2) for value in os.getloadavg()],
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
