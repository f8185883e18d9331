"""The way into the runner: one call makes one run folder, or none.

Without a launcher it forks the ranks itself. Under torchrun, srun or mpirun
every process makes the same call and becomes one rank. Importing this module
needs no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TypeVar

from tracekit.core.errors import RankFailedError, UsageError
from tracekit.io import baseline as baselines
from tracekit.io.baseline import Baseline
from tracekit.io.output import umask
from tracekit.profile import elastic, local
from tracekit.profile import place as places
from tracekit.profile import plan as plans
from tracekit.profile.local import TAIL_LINES
from tracekit.profile.place import Job, Place
from tracekit.profile.plan import Options, Plan

Progress = Callable[[str], None]

# Imported before forking, so that the ranks need not: the last one alone takes a profiler a second.
PRELOAD = (
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch._inductor.config",
    "tracekit.profile.worker",
)


# Less than the smallest run with its temporary files.
LEAST_FREE = 16 << 20


def run(
    options: Options,
    out: Path | None = None,
    *,
    force: bool = False,
    baseline: Path | None = None,
    on_progress: Progress,
) -> Path:
    """Profile a built-in workload and write its run folder.

    Args:
        options: what to run.
        out: the run folder; by default ``tracekit-NAME`` in the working directory.
        force: replace the folder if it is there.
        baseline: a file of ``tracekit bench`` to keep in the run folder.
        on_progress: takes one line at a time on how far the job is.

    Returns:
        The run folder. Under a launcher all ranks return it, once it is whole.

    Raises:
        UsageError: the options contradict each other, the folder exists, or torch is missing.
        RankFailedError: a rank crashed, hung or was killed; nothing is left behind.
    """
    place = places.from_environment(os.environ)
    plan = plans.make(options, place.world_size if place else None)
    out = Path(f"tracekit-{plan.name}") if out is None else out
    check_output(out, force)
    known = None if baseline is None else baselines.read(baseline)
    plan = decided(plan)
    if place:
        with _terminated_as_interrupt():
            _run_as_rank(plan, place, out, known, on_progress)
    else:
        with partial_folder(out) as folder:
            start(plan, functools.partial(_profile, plan, str(folder)), on_progress)
            _keep(known, folder)
            publish(folder, out)
    return out


def _keep(known: Baseline | None, folder: Path) -> None:
    if known is not None:
        baselines.write(folder / baselines.FILE_NAME, known)


def _profile(plan: Plan, folder: str, place: Place, report: Progress) -> None:
    from tracekit.profile import worker

    worker.run_rank(plan, folder, place, report)


AnyJob = TypeVar("AnyJob", bound=Job)


def decided(job: AnyJob) -> AnyJob:
    """The same job with its device and backend decided by what is here.

    Raises:
        UsageError: torch or a device that was asked for is missing.
    """
    # Or the profiler writes to the terminal when it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    _require_torch()
    device = _device(job)
    backend = job.backend
    if backend == "auto":
        backend = "nccl" if device == "cuda" else "gloo"
    return dataclasses.replace(job, device=device, backend=backend)  # type: ignore[type-var]


def start(job: Job, work: local.Work, on_progress: Progress) -> None:
    """Start all ranks of a job on this machine and wait for them.

    Raises:
        RankFailedError: a rank crashed, hung or was killed; none is left.
    """
    with _terminated_as_interrupt():
        on_progress("loading torch")
        for name in PRELOAD:
            importlib.import_module(name)
        # A process that uses a GPU cannot be forked.
        run_ranks = elastic.run_ranks if job.device == "cuda" else local.run_ranks
        run_ranks(job, work, on_progress)


def check_output(out: Path, force: bool) -> None:
    """Refuse an output that exists, unless it may be replaced.

    Raises:
        UsageError: it exists and ``force`` is not given, or is no run folder.
    """
    if not out.exists():
        return
    if not force:
        raise UsageError(f"{out} exists; choose another folder with -o, or replace it with --force")
    if not out.is_dir() or (any(out.iterdir()) and not (out / "run.json").exists()):
        raise UsageError(
            f"{out} exists and is not a run folder; --force would delete it, remove it"
        )


@contextlib.contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside ``out`` that is gone afterwards, unless it was published."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror}); choose -o") from error
    try:
        _require_space(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_space(folder: Path) -> None:
    """Refuse a disk that is as good as full, before minutes of work are lost on it."""
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        raise UsageError(
            f"no space left at {folder.parent} ({free >> 20} MiB free); free some, or choose -o"
        )


def publish(folder: Path, out: Path) -> None:
    """Give a finished folder its name."""
    folder.chmod(0o777 & ~umask())  # mkdtemp makes it private
    if not out.exists():
        folder.rename(out)
        return
    # Aside first: deleting takes a while, and an interrupt must not cost both.
    replaced = folder.with_name(f"{folder.name}.replaced")
    out.rename(replaced)
    folder.rename(out)
    shutil.rmtree(replaced, ignore_errors=True)


def _require_torch() -> None:
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise UsageError('profiling needs torch: pip install "torch-tracekit[profile]"') from error


def _device(plan: Job) -> str:
    """The device to use: GPUs where every local rank has one, else the CPU."""
    if plan.device == "cpu":
        return "cpu"
    # Counting through NVML: a process that has opened CUDA can no longer fork ranks that use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    gpus = torch.cuda.device_count()
    needed = int(os.environ.get("LOCAL_WORLD_SIZE", plan.world_size))
    if gpus >= needed or (gpus and plan.device == "cuda" and plan.backend == "gloo"):
        return "cuda"
    if plan.device == "cuda" or plan.backend == "nccl":
        asked = "--device cuda" if plan.device == "cuda" else "--backend nccl"
        shared = "; ranks can share a GPU with --backend gloo" if gpus else ""
        raise UsageError(f"{asked}: {needed} ranks, but {gpus} GPUs here; use --device cpu{shared}")
    return "cpu"


def _run_as_rank(
    plan: Plan, place: Place, out: Path, known: Baseline | None, on_progress: Progress
) -> None:
    """Be one rank of a launched job."""
    import torch.distributed as dist

    from tracekit.profile import worker

    on_progress(f"meeting {place.world_size - 1} other ranks at {place.init_method}")
    _join(plan, place)
    with partial_folder(out) if place.rank == 0 else contextlib.nullcontext() as folder:
        shared = [str(folder.absolute()) if folder else None]
        with failing_as(place):
            dist.broadcast_object_list(shared, src=0)
            assert shared[0] is not None
            worker.profile(plan, place, Path(shared[0]), on_progress)
            if folder is not None:
                _keep(known, folder)
                publish(folder, out)
            dist.barrier()
    worker.leave()


@contextlib.contextmanager
def failing_as(place: Place) -> Iterator[None]:
    """Let what goes wrong be the failure of this rank.

    Raises:
        RankFailedError: with the end of the traceback.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        # Torch reports lost peers and timeouts as RuntimeError.
        tail = traceback.format_exc().splitlines()[-TAIL_LINES:]
        raise RankFailedError(
            "\n".join([f"rank {place.rank} of {place.world_size} failed:", *tail])
        ) from error


def _join(plan: Plan, place: Place) -> None:
    import torch.distributed as dist

    from tracekit.profile import worker

    try:
        worker.join(plan, place)
    except dist.DistNetworkError as error:
        if "EADDRINUSE" in str(error):
            raise UsageError(
                f"{place.init_method} is already in use; set MASTER_PORT to a free port"
            ) from error
        raise RankFailedError(
            f"rank {place.rank} cannot reach {place.init_method}: {_first_line(error)}"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise RankFailedError(
            f"rank {place.rank} did not meet the others at {place.init_method}: "
            f"{_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


@contextlib.contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """Let SIGTERM unwind like an exit, so that ranks are ended and folders removed."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
