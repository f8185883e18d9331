"""Profiling a user's own script, without a change to it.

The script's processes find :mod:`tracekit.profile.hook` through an entry point
on ``PYTHONPATH``. Each rank leaves its traces and a part of the manifest; the
process that started rank 0 puts them together when the script has ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tracekit.core.errors import MissingDataError, UsageError
from tracekit.io import manifest
from tracekit.profile import launch, parts
from tracekit.profile import place as places
from tracekit.profile.agreement import VARIABLE, Agreement
from tracekit.profile.parts import Part
from tracekit.profile.place import Place

HOOK = "tracekit.profile.hook:autoload"
POLL_S = 0.05
# After one rank of a job has failed the others get this long to notice.
GRACE_S = 10.0
# How long rank 0's starter waits for what the other ranks leave.
PARTS_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run and what to record of it."""

    command: tuple[str, ...]  # the script and its arguments
    ranks: int | None = None  # None: one process, which may itself be a launcher
    warmup: int = 3
    active: int = 6
    repeat: int = 1
    step_of: str | None = None
    window: tuple[float, float] | None = None  # seconds from now: start, length


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the script ended, and the run folder if anything was recorded."""

    exit_code: int
    folder: Path | None
    notes: tuple[str, ...]


def run(request: Request, out: Path, *, force: bool = False) -> Outcome:
    """Run a script and record it.

    Args:
        request: what to run.
        out: the run folder.
        force: replace the folder if it is there.

    Returns:
        The script's own exit code, and what was recorded up to its end.

    Raises:
        UsageError: the script does not exist, or the options make no sense.
        MissingDataError: the script succeeded, but made no step that could be recorded.
    """
    _check(request)
    place = places.from_environment(os.environ)
    if place is not None and request.ranks is not None:
        raise UsageError(f"--ranks {request.ranks}: a launcher has started the ranks; leave it out")
    launch.check_output(out, force)
    if place is None:
        with launch.partial_folder(out) as folder:
            code = _run_all(request, folder)
            return _finish(request, folder, out, code, 1)
    return _run_one(request, place, out)


def _check(request: Request) -> None:
    for name, value, least in (
        ("--ranks", request.ranks, 1),
        ("--warmup", request.warmup, 0),
        ("--active", request.active, 1),
        ("--repeat", request.repeat, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{name} {value}: must be at least {least}")
    if request.window is not None and (request.window[0] < 0 or request.window[1] <= 0):
        raise UsageError("--window: give START:SECONDS, with SECONDS above 0")
    argv(request.command)


def argv(command: Sequence[str]) -> list[str]:
    """The process to start for a script, a module (``-m NAME``) or a program.

    Raises:
        UsageError: there is no such script or program.
    """
    first = command[0]
    if first == "-m" or first.endswith(".py"):
        if first != "-m" and not Path(first).is_file():
            raise UsageError(f"{first}: there is no such script")
        return [sys.executable, *command]
    program = shutil.which(first)
    if program is None:
        raise UsageError(
            f"{first!r} is neither a workload, a script (.py) nor a program; "
            "see tracekit profile --help"
        )
    return [program, *command[1:]]


# -- processes ----------------------------------------------------------------------


def _run_all(request: Request, folder: Path) -> int:
    """Start all ranks, or the one process, and wait; the exit code of the first that failed."""
    count = request.ranks or 1
    with hooked(request, folder) as environment:
        several: dict[str, str] = {}
        if request.ranks is not None:
            several = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(_free_port()),
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
            }
            if count > 1:
                environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
        started = []
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if several else {}
            started.append(
                subprocess.Popen(argv(request.command), env={**environment, **several, **own})
            )
        return _wait(started)


def _run_one(request: Request, place: Place, out: Path) -> Outcome:
    """Be the starter of one rank under a launcher; that of rank 0 puts everything together."""
    # The same name for all, from what the launcher told all of them.
    meeting = place.init_method.rpartition("/")[2].replace(":", "-")
    folder = out.with_name(f".{out.name}.{meeting}")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with hooked(request, folder) as environment:
            code = _wait([subprocess.Popen(argv(request.command), env=environment)])
        if place.rank != 0:
            return Outcome(code, None, ())
        return _finish(request, folder, out, code, place.world_size)
    finally:
        if place.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _wait(started: Sequence[subprocess.Popen[bytes]]) -> int:
    """Until all have ended; when one fails the others get a moment, then they are ended too."""
    with _passing_signals(started):
        failed, deadline = 0, float("inf")
        while any(process.poll() is None for process in started):
            codes = [process.returncode for process in started if process.returncode]
            if codes and not failed:
                failed, deadline = codes[0], time.monotonic() + GRACE_S
            if time.monotonic() > deadline:
                for process in started:
                    process.kill()
            time.sleep(POLL_S)
    codes = [process.returncode for process in started if process.returncode]
    code = failed or (codes[0] if codes else 0)
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passing_signals(started: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass on SIGTERM; Ctrl-C reaches the script by itself, and its end is awaited."""

    def forward(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            for process in started:
                process.send_signal(number)

    previous = {
        number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def hooked(request: Request, folder: Path) -> Iterator[dict[str, str]]:
    """An environment in which ``import torch`` loads the hook."""
    window = request.window
    agreement = Agreement(
        folder=str(folder.absolute()),
        warmup=request.warmup,
        active=request.active,
        repeat=request.repeat,
        step_of=request.step_of,
        window=None if window is None else (time.time() + window[0], window[1]),
    )
    with tempfile.TemporaryDirectory(prefix="tracekit-") as name:
        _write_entry_point(Path(name))
        paths = [name, os.environ.get("PYTHONPATH", "")]
        environment = dict(os.environ)
        environment[VARIABLE] = agreement.encode()
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
        environment.setdefault("TORCH_FR_BUFFER_SIZE", "20000")
        environment.setdefault("KINETO_LOG_LEVEL", "99")
        yield environment


def _write_entry_point(folder: Path) -> None:
    """What an installed package would have: enough for torch to find the hook."""
    info = folder / "tracekit_hook-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tracekit-hook\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[torch.backends]\ntracekit = {HOOK}\n")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- the run folder -----------------------------------------------------------------


def _finish(request: Request, folder: Path, out: Path, code: int, world_size: int) -> Outcome:
    """Put together what the ranks have left, and give the folder its name.

    Raises:
        MissingDataError: the script succeeded, and nothing was recorded.
    """
    found = _await_parts(folder, world_size, code == 0)
    notes = tuple(dict.fromkeys(note for part in found for note in part.notes))
    if not any(part.files for part in found):
        if code:
            return Outcome(code, None, notes)
        raise MissingDataError(_nothing(request, found, notes))
    shutil.rmtree(folder / parts.FOLDER)
    manifest.write(folder, together(out.name, found, request))
    launch.publish(folder, out)
    return Outcome(code, out, notes)


def _await_parts(folder: Path, world_size: int, succeeded: bool) -> list[Part]:
    """The parts of all ranks; after a failure, or in vain, those that are there."""
    deadline = time.monotonic() + (PARTS_S if succeeded else 0.0)
    while True:
        found = parts.read(folder)
        complete = len(found) >= world_size and all(part.final for part in found)
        if complete or not found or time.monotonic() > deadline:
            return found
        time.sleep(POLL_S)


def _nothing(request: Request, found: Sequence[Part], notes: Sequence[str]) -> str:
    what = " ".join(request.command)
    if notes:
        return f"{what}: nothing was recorded; {'; '.join(notes)}"
    seen = max((part.seen for part in found), default=0)
    needed = request.warmup + request.active
    if seen:
        return (
            f"{what}: nothing was recorded; it made {seen} steps, and {needed} are needed "
            f"(--warmup {request.warmup} + --active {request.active})"
        )
    return (
        f"{what}: nothing was recorded; no optimizer of torch made a step. For inference name "
        "what a step is: --step-of MODULE:FUNCTION or the class of a model, or --window"
    )


def together(
    name: str,
    found: Sequence[Part],
    request: Request | None,
    extra: Mapping[str, Any] | None = None,
) -> manifest.Manifest:
    """The manifest of all ranks' parts."""
    first = found[0]
    groups = {(group.name, *group.ranks): group for part in found for group in part.groups}
    hosts = {part.host for part in found}
    script = (
        Path(request.command[-1 if request.command[0] == "-m" else 0]).name if request else name
    )
    unknown = dict.fromkeys(
        ("mode", "model", "layers", "hidden", "heads", "seq", "context", "vocab", "params")
    )
    conditions = {
        "workload": {"name": script, **unknown},
        "batch": dict.fromkeys(("global", "micro", "microbatches", "concurrency")),
        "precision": None,
        "cache": dict.fromkeys(("kv", "compile", "warm")),
        "parallel": {
            "world_size": first.world_size,
            "nodes": max(len(hosts), sum(part.local_rank == 0 for part in found)),
            **dict.fromkeys(("dp", "fsdp", "tp", "pp", "ep", "cp", "schedule", "chunks")),
        },
        **first.conditions,
        "profiler": {
            "options": {
                "activities": ["cpu", "cuda"] if first.device == "cuda" else ["cpu"],
                "record_shapes": True,
                "step_of": request.step_of if request else None,
                "window_s": request.window[1] if request and request.window else None,
            },
            "warmup": request.warmup if request else None,
            "active": request.active if request else None,
        },
        "seed": None,
        **(extra or {}),
    }
    return manifest.Manifest(
        schema=manifest.SCHEMA,
        name=name,
        conditions=conditions,
        topology=manifest.TopologyEntry(
            world_size=first.world_size,
            groups=sorted(groups.values(), key=lambda group: (group.axis or "", group.ranks)),
        ),
        steps=manifest.StepsEntry(warmup=request.warmup if request else 0, active=first.steps),
        files=[file for part in found for file in part.files],
    )
