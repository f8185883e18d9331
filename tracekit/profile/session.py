"""Recording a program that is not ours: cycles of warm-up and active steps, one rank at a time.

The program says when a step ends. Between two steps a recording starts or stops;
each makes one trace file. What rank 0 needs for the manifest is left in ``parts``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from tracekit.core.errors import TracekitError
from tracekit.io import manifest, records
from tracekit.profile import conditions, groups, marks, parts, recorder
from tracekit.profile.parts import Part

# How long a rank waits for the others before it starts or stops alone.
PATIENCE_S = 10.0
POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Cycle:
    """Which steps are recorded: ``active`` after each ``warmup``, ``repeat`` times."""

    warmup: int = 1
    active: int = 3
    repeat: int = 1


@dataclass(slots=True)
class _Open:
    """A recording under way."""

    profiler: torch_profile
    watcher: recorder.Recorder
    watching: contextlib.ExitStack
    start_ns: int
    steps: int = 0
    marker: Any = None


@dataclass(slots=True)
class Session:
    """One rank's recordings.

    Attributes:
        folder: the run folder in the making, shared by all ranks.
        cycle: which steps to record.
        on_profiler: called around each use of torch's profiler, so that a watcher for
            the program's own use of it can tell them apart.
    """

    folder: Path
    cycle: Cycle
    on_profiler: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    notes: list[str] = field(default_factory=list)
    closed: bool = False
    _seen: int = 0
    _waited: int = 0  # steps since the latest recording
    _rank: int = field(default_factory=lambda: int(os.environ.get("RANK", "0")))
    _world_size: int = field(default_factory=lambda: int(os.environ.get("WORLD_SIZE", "1")))
    _groups: list[manifest.GroupEntry] = field(default_factory=list)
    _recorded: int = 0
    _files: list[manifest.FileEntry] = field(default_factory=list)
    _open: _Open | None = None
    _load: Mapping[str, Any] | None = None

    @property
    def rank(self) -> int:
        """This process's rank."""
        self._identify()
        return self._rank

    @property
    def recording(self) -> bool:
        """Whether a recording is under way."""
        return self._open is not None

    def step(self) -> None:
        """A step of the program has ended."""
        if self.closed:
            return
        self._seen += 1
        if self._open is not None:
            self._end_step(self._open)
            if self._open.steps < self.cycle.active:
                self._begin_step(self._open)
                return
            self.stop()
            self._waited = 0
        else:
            self._waited += 1
        if self._waited >= self.cycle.warmup and len(self._files) < self.cycle.repeat:
            self.start()

    def prepare(self) -> None:
        """Do what takes long and can be done before; on any thread."""
        if self._load is None:
            marks.preload()
            self._load = conditions.load()

    def start(self) -> None:
        """Begin a recording, together with the other ranks if they come."""
        self.prepare()
        device = _device()
        activities = [ProfilerActivity.CPU]
        if device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with self.on_profiler():
            profiler = torch_profile(activities=activities, record_shapes=True)
            profiler.prepare_trace()
            meet(f"prepared-{len(self._files)}")
            profiler.start_trace()
        watcher = recorder.Recorder()
        watching = contextlib.ExitStack()
        watching.enter_context(watcher.watch())
        self._open = _Open(profiler, watcher, watching, time.time_ns())
        # Starting takes each rank another while; the first step must not show it.
        meet(f"started-{len(self._files)}")
        self._begin_step(self._open)

    def stop(self, *, together: bool = True) -> None:
        """End the recording and write it; nothing happens where none is under way.

        Args:
            together: wait for the other ranks first, whose transfers may need this one.
        """
        open_ = self._open
        if open_ is None:
            return
        if open_.marker is not None:
            self._end_step(open_)
            open_.steps -= 1  # it was cut, and does not count
        if _device() == "cuda":
            torch.cuda.synchronize()
        if together:
            meet(f"stopping-{len(self._files)}")
        self._open = None
        open_.watching.close()
        end_ns = time.time_ns()
        with self.on_profiler():
            open_.profiler.stop_trace()
        if open_.steps > 0:
            self._write(open_, end_ns)

    def close(self, *, together: bool = False) -> None:
        """No more recordings; what is under way is written, and the part is left behind."""
        if self.closed:
            return
        self.stop(together=together)
        self.closed = True
        self.leave_part(final=True)

    def abandon(self, note: str) -> None:
        """Give up after an error of our own; what has been written stays."""
        self.notes.append(note)
        open_, self._open = self._open, None
        self.closed = True
        with contextlib.suppress(RuntimeError):
            if open_ is not None:
                open_.watching.close()
                with self.on_profiler():
                    open_.profiler.stop_trace()
        self.leave_part(final=True)

    def _begin_step(self, open_: _Open) -> None:
        # The name that torch.profiler itself gives to steps.
        open_.marker = record_function(f"ProfilerStep#{self._seen}")
        open_.marker.__enter__()

    def _end_step(self, open_: _Open) -> None:
        marker, open_.marker = open_.marker, None
        marker.__exit__(None, None, None)
        open_.steps += 1

    def _write(self, open_: _Open, end_ns: int) -> None:
        self._identify()
        rank = self._rank
        number = len(self._files)
        file = manifest.FileEntry(
            rank=rank,
            path=f"traces/rank-{rank:05}.{number}.pt.trace.json.gz",
            records=f"records/rank-{rank:05}.{number}.json",
        )
        assert file.records is not None
        for path in (self.folder / file.path, self.folder / file.records):
            path.parent.mkdir(parents=True, exist_ok=True)
        open_.profiler.export_chrome_trace(str(self.folder / file.path))
        found = open_.watcher.records(rank, open_.start_ns, end_ns)
        records.write(self.folder / file.records, found)
        self._files.append(file)
        self._recorded += open_.steps
        self.leave_part()

    def leave_part(self, *, final: bool = False) -> None:
        """Write what the manifest needs of this rank."""
        self._identify()
        device = _device()
        machine: dict[str, Any] = {}
        if self._rank == 0:
            machine = conditions.machine(device, _meeting(), self._load)
        parts.write(
            self.folder,
            Part(
                rank=self._rank,
                world_size=self._world_size,
                local_rank=int(os.environ.get("LOCAL_RANK", self._rank)),
                host=os.uname().nodename,
                device=device,
                files=self._files,
                groups=self._groups,
                steps=self._recorded,
                seen=self._seen,
                notes=self.notes,
                conditions=machine,
                final=final,
            ),
        )

    def _identify(self) -> None:
        """Who this rank is, as long as that can be asked: programs take their groups down."""
        if dist.is_initialized():
            self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
            self._groups = groups.entries()


def world_size() -> int:
    """Ranks of the program's default group; 1 without one."""
    return int(dist.get_world_size()) if dist.is_initialized() else 1


def meet(name: str) -> bool:
    """Wait for the other ranks, but not for ever: no collective, and nothing in the trace.

    Returns:
        Whether all came; a program whose ranks make different numbers of steps goes on alone.
    """
    if world_size() == 1:
        return True
    store = dist.distributed_c10d._get_default_store()
    key = f"tracekit/{name}"
    deadline = time.monotonic() + PATIENCE_S
    here = store.add(key, 1)
    while here < dist.get_world_size():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
        here = store.add(key, 0)
    return True


def shared(make: Callable[[], Path]) -> Path:
    """A path that rank 0 makes and tells the others; where it fails, all of them fail.

    Raises:
        TracekitError: what rank 0 met.
    """
    if world_size() == 1:
        return make()
    told: list[Path | TracekitError | None] = [None]
    if dist.get_rank() == 0:
        try:
            told = [make()]
        except TracekitError as error:
            told = [error]
    dist.broadcast_object_list(told, src=0)
    if isinstance(told[0], TracekitError):
        raise told[0]
    assert told[0] is not None
    return told[0]


def _device() -> str:
    """Where this process computes, as far as can be known: it has a CUDA context or not."""
    return "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]


def _meeting() -> str | None:
    address = os.environ.get("MASTER_ADDR")
    return f"tcp://{address}:{os.environ.get('MASTER_PORT', '0')}" if address else None
