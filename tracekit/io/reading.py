"""Reads many trace files side by side; what one lacks or breaks never costs the others.

The native tokenizer lets go of the interpreter, so threads share the work and
nothing is copied. The Python path needs processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from multiprocessing import get_context

from tracekit.core.errors import InputError
from tracekit.io import cache, join, kineto, stream
from tracekit.io.assemble import Options, Window, assemble
from tracekit.io.discover import TraceFile

# Called with stored bytes read so far, stored bytes in all, and the file at hand.
Progress = Callable[[int, int, str], None]

# Below this much, starting processes costs more than it saves.
_WORTH_PROCESSES_BYTES = 8 << 20


def read_all(
    files: Sequence[TraceFile],
    options: Options,
    workers: int,
    store: cache.Store,
    on_progress: Progress | None = None,
) -> list[Window | InputError]:
    """Read every file; a file that cannot be read leaves its error in its place.

    Args:
        files: what to read.
        options: what the user says about names.
        workers: how many to read at once.
        store: where columns of files are kept between runs, if anywhere.
        on_progress: told after each file.
    """
    total = sum(file.bytes for file in files)
    done = 0
    out: list[Window | InputError | None] = [None] * len(files)

    def finished(index: int, result: Window | InputError) -> None:
        nonlocal done
        out[index] = result
        done += files[index].bytes
        if on_progress is not None:
            on_progress(done, total, files[index].name)

    executor = _executor(min(workers, len(files)), total)
    if executor is None:
        for index, file in enumerate(files):
            if on_progress is not None:
                on_progress(done, total, file.name)
            finished(index, _read_or_error(file, options, store))
    else:
        with executor:
            jobs = {
                executor.submit(_read_or_error, file, options, store): index
                for index, file in enumerate(files)
            }
            for job in as_completed(jobs):
                finished(jobs[job], job.result())
    return [result for result in out if result is not None]


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read(file: TraceFile, options: Options, store: cache.Store) -> Window:
    """One file as a window of a rank's trace, with the runner's records joined.

    Raises:
        InputError: it cannot be read as a trace.
    """
    events = store.find(file)
    if events is None:
        with stream.open_trace(file.path, file.member) as opened, store.timed(file) as keep:
            try:
                events = kineto.parse(opened, _label(file))
            except OSError as error:
                raise InputError(f"{_label(file)}: cannot be read ({error})") from error
            keep(events)
    if len(events.columns) == 0:
        raise InputError(f"{_label(file)}: the trace holds no events")
    return join.join(assemble(events, options), file.records)


def _read_or_error(file: TraceFile, options: Options, store: cache.Store) -> Window | InputError:
    try:
        return read(file, options, store)
    except InputError as error:
        return error


def _executor(workers: int, total_bytes: int) -> Executor | None:
    """Threads, processes, or None to stay in this thread."""
    if workers < 2:
        return None
    if kineto.native_available():
        return ThreadPoolExecutor(workers, thread_name_prefix="tracekit-read")
    if total_bytes < _WORTH_PROCESSES_BYTES:
        return None
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _label(file: TraceFile) -> str:
    return file.path if file.member is None else f"{file.path}:{file.member}"
