"""Ranks on this machine: forked, watched, and ended together."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tracekit.core.errors import RankFailedError
from tracekit.profile.place import Place

POLL_S = 0.02
# One failing rank drags the others down within moments; the verdict waits for the first cause.
VERDICT_S = 0.3
# A rank that is stuck in C++ ignores SIGTERM.
TERMINATE_S = 1.0
TAIL_LINES = 12
# How much longer than torch itself to wait for a job in which nothing moves.
PATIENCE_S = 30.0
PR_SET_PDEATHSIG = 1


Report = Callable[[str], None]
Work = Callable[[Place, Report], None]  # what each rank does; says how far it is


class Job(Protocol):
    """What is asked of a launcher."""

    @property
    def world_size(self) -> int: ...
    @property
    def timeout_s(self) -> float: ...


def run_ranks(job: Job, work: Work, on_progress: Callable[[str], None]) -> None:
    """Fork one process per rank and wait until all have succeeded.

    Whatever happens, no rank is left when this returns or raises.

    Raises:
        RankFailedError: with the last lines of the log of the rank that failed first.
    """
    with tempfile.TemporaryDirectory(prefix="tracekit-") as name:
        ranks = _Ranks(job, work, Path(name), Pipe())
        try:
            ranks.start()
            ranks.wait(on_progress)
        finally:
            ranks.end()
            ranks.news.close()


class Pipe:
    """Lines from the ranks to their parent; a line costs a rank one short system call."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        self._rest = b""

    def write(self, rank: int, line: str) -> None:
        """Say something as a rank; lines of this length are never torn."""
        os.write(self._in, f"{rank} {line}\n".encode())

    def read(self) -> list[tuple[int, str]]:
        """All that was said since the last call, with who said it."""
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._out, 1 << 16)
        *lines, self._rest = self._rest.split(b"\n")
        words = [line.decode().partition(" ") for line in lines]
        return [(int(rank), text) for rank, _, text in words]

    def close(self) -> None:
        """Give both ends back."""
        os.close(self._out)
        os.close(self._in)


@dataclass(slots=True)
class _Ranks:
    job: Job
    work: Work
    scratch: Path  # where ranks meet, log and say how far they are
    news: Pipe
    alive: dict[int, int] = field(default_factory=dict)  # pid -> rank
    failed: dict[int, int] = field(default_factory=dict)  # rank -> exit code, < 0 for a signal

    def start(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or each child would inherit, and repeat, what is still buffered
        parent = os.getpid()
        for rank in range(self.job.world_size):
            place = Place(rank, rank, self.job.world_size, f"file://{self.scratch}/store")
            pid = os.fork()
            if pid == 0:
                _be_rank(self, place, parent)
            self.alive[pid] = rank

    def wait(self, on_progress: Callable[[str], None]) -> None:
        """Until all ranks are done, one has failed, or none has moved for too long."""
        patience_s = self.job.timeout_s + PATIENCE_S
        said: dict[int, str] = {}
        moved = time.monotonic()
        while self.alive:
            self._reap()
            if self.failed:
                self._settle()
                raise RankFailedError(self._verdict())
            for rank, line in self.news.read():
                said[rank], moved = line, time.monotonic()
                if rank == 0:
                    on_progress(line)
            if time.monotonic() - moved > patience_s:
                words = ", ".join(f"rank {rank}: {said[rank]}" for rank in sorted(said)[:8])
                raise RankFailedError(f"no rank got further in {patience_s:.0f} s; last: {words}")
            time.sleep(POLL_S)

    def end(self) -> None:
        """End and reap every rank that is still there."""
        for number, grace_s in ((signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, 10.0)):
            for pid in self.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + grace_s
            while self.alive and time.monotonic() < deadline:
                self._reap()
                time.sleep(POLL_S)

    def _reap(self) -> None:
        for pid in list(self.alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                rank = self.alive.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                if code:
                    self.failed[rank] = code

    def _settle(self) -> None:
        deadline = time.monotonic() + VERDICT_S
        while self.alive and time.monotonic() < deadline:
            self._reap()
            time.sleep(POLL_S)

    def _verdict(self) -> str:
        """The failure that came first, with the end of its rank's log.

        A rank killed by a signal could not note when; the others can only have failed after it.
        """
        killed = [rank for rank, code in self.failed.items() if code < 0]
        rank = min(killed) if killed else min(self.failed, key=self._failed_at)
        code = self.failed[rank]
        what = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = _log(self.scratch, rank).read_text(errors="replace").splitlines()
        head = f"rank {rank} of {self.job.world_size} failed ({what})"
        if not lines:
            return f"{head}; it left no log"
        return "\n".join([f"{head}; the end of its log:", *lines[-TAIL_LINES:]])

    def _failed_at(self, rank: int) -> int:
        try:
            return int(_stamp(self.scratch, rank).read_text())
        except FileNotFoundError:
            return sys.maxsize


def _log(scratch: Path, rank: int) -> Path:
    return scratch / f"rank-{rank:05}.log"


def _stamp(scratch: Path, rank: int) -> Path:
    return scratch / f"rank-{rank:05}.failed"


def _be_rank(ranks: _Ranks, place: Place, parent: int) -> None:
    """Run one rank in this forked process, which never returns."""
    code = 1
    try:
        _settle_in(_log(ranks.scratch, place.rank), parent)
        ranks.work(place, lambda line: ranks.news.write(place.rank, line))
        code = 0
    except BaseException as error:  # noqa: BLE001  (the outermost frame: log, tell by exit code)
        _stamp(ranks.scratch, place.rank).write_text(str(time.monotonic_ns()))
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            sys.stderr.write(f"no space left for {error.filename}; free some, or choose -o\n")
        else:
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # not the parent's cleanup, nor its tests


def _settle_in(log: Path, parent: int) -> None:
    """Take this process's own log and manners, and share no lock with the parent."""
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(file=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends all ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked to be told
            os._exit(1)
    os.environ["OMP_NUM_THREADS"] = "1"
