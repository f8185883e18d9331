"""From a path to a :class:`~tracekit.core.run.Run`: the only producer of one.

Ranks are read independently; what one file lacks or breaks never costs the
others. Afterwards the run's invariants hold: ranks are unique and sorted, each
rank's columns are in order, times of all ranks are on the traces' own clock.
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from tracekit.core.errors import InputError, UsageError
from tracekit.core.run import Diagnostic, Run, Severity
from tracekit.core.topology import AXES, Group, Topology
from tracekit.core.trace import Calls, Columns, Int32, Kernels, RankTrace, Steps
from tracekit.io import join, kineto, names
from tracekit.io.assemble import Options, Window, assemble
from tracekit.io.discover import Found, TraceFile, discover
from tracekit.io.events import StringTable
from tracekit.io.manifest import Manifest

Progress = Callable[[Path], None]


def load(
    path: str | os.PathLike[str],
    *,
    step_regex: str | None = None,
    comm_patterns: Sequence[str] = (),
    on_file: Progress | None = None,
) -> Run:
    """Load a run folder, a folder of trace files, or one trace file.

    Args:
        path: where it is.
        step_regex: annotations that mark steps, instead of the profiler's own.
        comm_patterns: further kernel names that count as communication.
        on_file: called with each file before it is read.

    Raises:
        InputError: nothing there can be read as a trace, or the files contradict each other.
        UsageError: a pattern is not a regular expression.
    """
    options = _options(step_regex, comm_patterns)
    found = discover(Path(path))
    windows: list[tuple[TraceFile, Window]] = []
    notes: list[Diagnostic] = list(found.diagnostics)
    failures: list[InputError] = []
    for file in found.files:
        if on_file is not None:
            on_file(file.path)
        try:
            windows.append((file, _read(file, options)))
        except InputError as error:
            failures.append(error)
    if not windows:
        raise failures[0]
    notes.extend(
        Diagnostic("unreadable-file", Severity.WARNING, None, 1, str(failure))
        for failure in failures
    )
    return _run(found, windows, notes)


def _options(step_regex: str | None, comm_patterns: Sequence[str]) -> Options:
    try:
        return Options(
            communication=names.communication_pattern(comm_patterns),
            step=None if step_regex is None else re.compile(step_regex),
        )
    except re.error as error:
        raise UsageError(f"{error.pattern!r} is not a regular expression: {error}") from error


def _read(file: TraceFile, options: Options) -> Window:
    """Parse one file and join the runner's records to it."""
    try:
        with _open(file.path) as stream:
            events = kineto.parse(stream, str(file.path))
    except OSError as error:
        raise InputError(f"{file.path}: cannot be read ({error.strerror or error})") from error
    if len(events.columns) == 0:
        raise InputError(f"{file.path}: the trace holds no events")
    window = assemble(events, options)
    return join.join(window, file.records)


def _open(path: Path) -> BinaryIO:
    """The decompressed bytes of a file, by its first bytes and not by its name."""
    raw = path.open("rb")
    magic = raw.read(2)
    raw.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if magic == b"\x1f\x8b" else raw


# -- the run -----------------------------------------------------------------------


def _run(found: Found, windows: list[tuple[TraceFile, Window]], notes: list[Diagnostic]) -> Run:
    by_rank: dict[int, list[tuple[TraceFile, Window]]] = defaultdict(list)
    for (file, window), (rank, note) in zip(windows, _ranks(windows), strict=True):
        by_rank[rank].append((file, window))
        notes.extend(dataclasses.replace(item, rank=rank) for item in window.diagnostics)
        notes.extend(note)
    topology = _topology(found.manifest, windows)
    traces = tuple(_with_axes(_merge(rank, by_rank[rank]), topology) for rank in sorted(by_rank))
    run = Run(
        name=found.name,
        traces=traces,
        topology=topology,
        conditions=found.manifest.conditions if found.manifest else {},
        diagnostics=(),
        truth=tuple(found.manifest.truth) if found.manifest else (),
    )
    if run.missing_ranks:
        notes.append(
            Diagnostic(
                "missing-ranks", Severity.INFO, None, len(run.missing_ranks),
                f"{len(traces)} of {topology.world_size} ranks are here; "
                "what needs all of them is left out",
            )
        )  # fmt: skip
    return dataclasses.replace(run, diagnostics=_collected(notes))


def _ranks(
    windows: Iterable[tuple[TraceFile, Window]],
) -> list[tuple[int, list[Diagnostic]]]:
    """The rank of each window: by content, else by manifest or name, else by order."""
    given: list[tuple[int | None, list[Diagnostic]]] = []
    for file, window in windows:
        notes = []
        if window.rank is not None and file.rank is not None and window.rank != file.rank:
            notes.append(
                Diagnostic(
                    "rank-by-content", Severity.WARNING, window.rank, 1,
                    f"{file.path.name} says rank {file.rank}, its content rank "
                    f"{window.rank}; the content counts",
                )
            )  # fmt: skip
        rank = file.rank if window.rank is None else window.rank
        given.append((rank, notes))
    taken = {rank for rank, _ in given if rank is not None}
    free = (number for number in range(len(given) + len(taken)) if number not in taken)
    out = []
    for (file, _), (rank, notes) in zip(windows, given, strict=True):
        if rank is None:
            rank = next(free)
            notes.append(
                Diagnostic(
                    "rank-guessed", Severity.WARNING, rank, 1,
                    f"{file.path.name} does not say its rank; numbered in order of names",
                )
            )  # fmt: skip
        out.append((rank, notes))
    return out


def _collected(notes: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Equal notes of many ranks become one, worst first."""
    order = {severity: place for place, severity in enumerate(reversed(Severity))}
    merged: dict[tuple[Any, ...], list[Diagnostic]] = defaultdict(list)
    for note in notes:
        merged[(order[note.severity], note.code, note.message)].append(note)
    out = []
    for (_, code, message), same in sorted(merged.items(), key=lambda item: item[0]):
        rank = same[0].rank if len(same) == 1 else None
        out.append(Diagnostic(code, same[0].severity, rank, sum(n.count for n in same), message))
    return tuple(out)


# -- topology ----------------------------------------------------------------------


def _topology(manifest: Manifest | None, windows: list[tuple[TraceFile, Window]]) -> Topology:
    """From the manifest, else from what the traces say of their groups.

    Raises:
        InputError: the files belong to jobs of different size.
    """
    sizes: dict[int, list[str]] = defaultdict(list)
    for file, window in windows:
        if window.world_size is not None:
            sizes[window.world_size].append(file.path.name)
    if len(sizes) > 1:
        listed = "; ".join(f"{size}: {files[0]} ({len(files)})" for size, files in sizes.items())
        raise InputError(f"the files come from jobs of different world size ({listed})")
    if manifest is not None and manifest.topology is not None:
        entry = manifest.topology
        groups = tuple(
            Group(group.name, group.description, tuple(group.ranks), group.axis)
            for group in entry.groups
        )
        return Topology(entry.world_size, entry.axes, groups)
    known = {
        (group.ranks, group.description, group.name): group
        for _, window in windows
        for group in window.trace.groups
    }
    return Topology(next(iter(sizes), None), _degrees(known.values()), tuple(known.values()))


def _degrees(groups: Iterable[Group]) -> dict[str, int]:
    """Size of each axis that a group names, outermost first."""
    sizes: dict[str, int] = {}
    for group in groups:
        if group.axis is not None:
            sizes[group.axis] = max(sizes.get(group.axis, 1), len(group.ranks))
    return {axis: sizes[axis] for axis in AXES if sizes.get(axis, 1) > 1}


def _with_axes(trace: RankTrace, topology: Topology) -> RankTrace:
    """What the manifest knows of the trace's groups: members, description, axis."""
    known = {(group.name, rank): group for group in topology.groups for rank in group.ranks}
    groups = []
    for group in trace.groups:
        other = known.get((group.name, trace.rank))
        same = other is not None and group.ranks in ((), other.ranks)
        groups.append(other if other is not None and same else group)
    return dataclasses.replace(trace, groups=tuple(groups))


# -- windows of one rank -----------------------------------------------------------


def _merge(rank: int, files: list[tuple[TraceFile, Window]]) -> RankTrace:
    """One trace from the successive windows of a rank.

    Raises:
        InputError: two files cover the same time, so one is a copy or the rank is wrong.
    """
    if len(files) == 1:
        return dataclasses.replace(files[0][1].trace, rank=rank)
    files = sorted(files, key=lambda item: _extent(item[1].trace)[0])
    for (first, one), (second, other) in itertools.pairwise(files):
        if _extent(other.trace)[0] < _extent(one.trace)[1]:
            raise InputError(
                f"{first.path} and {second.path} both hold rank {rank} at the same time; "
                "move one away, or name a single file"
            )
    table = StringTable()
    groups: dict[Group, int] = {}
    parts: dict[str, list[Columns]] = {"kernels": [], "calls": [], "steps": []}
    kernels = steps = 0
    for _, window in files:
        trace = window.trace
        name = np.array([table[text] for text in trace.names], dtype=np.int32)
        group = np.array(
            [groups.setdefault(item, len(groups)) for item in trace.groups], dtype=np.int32
        )
        step = trace.kernels.step
        parts["kernels"].append(
            dataclasses.replace(
                trace.kernels,
                name_id=_mapped(name, trace.kernels.name_id),
                step=np.where(step >= 0, step + steps, step).astype(np.int32),
            )
        )
        parts["calls"].append(
            dataclasses.replace(
                trace.calls,
                kernel=trace.calls.kernel + np.int32(kernels),
                op_id=_mapped(name, trace.calls.op_id),
                dtype_id=_mapped(name, trace.calls.dtype_id),
                group=_mapped(group, trace.calls.group),
            )
        )
        parts["steps"].append(trace.steps)
        kernels += len(trace.kernels)
        steps += len(trace.steps)
    first_trace = files[0][1].trace
    return RankTrace(
        rank=rank,
        host=first_trace.host,
        device_type=first_trace.device_type,
        steps=_concatenated(Steps, parts["steps"]),
        kernels=_concatenated(Kernels, parts["kernels"]),
        calls=_concatenated(Calls, parts["calls"]),
        names=tuple(table),
        groups=tuple(groups),
    )


def _extent(trace: RankTrace) -> tuple[int, int]:
    """First start and last end of anything in a window, in ns."""
    starts = (trace.steps.start_ns, trace.kernels.start_ns)
    ends = (trace.steps.end_ns, trace.kernels.end_ns)
    low = [int(values.min()) for values in starts if len(values)]
    high = [int(values.max()) for values in ends if len(values)]
    return (min(low), max(high)) if low else (0, 0)


def _mapped(table: Int32, ids: Int32) -> Int32:
    """Ids through a table, -1 kept."""
    out: Int32 = ids.copy()
    out[ids >= 0] = table[ids[ids >= 0]]
    return out


def _concatenated(kind: type[Any], parts: list[Columns]) -> Any:
    return kind(
        **{
            item.name: np.concatenate([getattr(part, item.name) for part in parts])
            for item in dataclasses.fields(kind)
        }
    )
