"""From a path to a :class:`~tracekit.core.run.Run`: the only producer of one.

Ranks are read independently; what one file lacks or breaks never costs the
others. Afterwards the run's invariants hold: ranks are unique and sorted, each
rank's columns are in order, times of all ranks are on the traces' own clock.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracekit.core.clock import fit
from tracekit.core.errors import InputError, NotATraceError, UsageError
from tracekit.core.match import match
from tracekit.core.onesided import bounded
from tracekit.core.run import Diagnostic, FileFacts, LinkLatency, Run, Severity
from tracekit.core.sampled import ClockSample, held_against
from tracekit.core.topology import AXES, Group, Topology
from tracekit.core.trace import RankTrace
from tracekit.io import baseline, cache, clocks, kineto, names
from tracekit.io.assemble import Options, Window
from tracekit.io.discover import Found, TraceFile, discover
from tracekit.io.manifest import Manifest
from tracekit.io.merge import merge
from tracekit.io.reading import Progress, available_cores, read_all


def load(
    target: str | os.PathLike[str],
    *,
    step_regex: str | None = None,
    comm_patterns: Sequence[str] = (),
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Run:
    """Load a run folder, a folder of traces, a file, an archive, a glob or a URL.

    Args:
        target: what to load.
        step_regex: annotations that mark steps, instead of the profiler's own.
        comm_patterns: further kernel names that count as communication.
        workers: how many files to read at once; by default the cores there are, or 1
            without the native tokenizer, where more take processes of their own.
        on_progress: told stored bytes read, stored bytes in all, and the file at hand.

    Raises:
        InputError: nothing there can be read as a trace, or the files contradict each other.
        UsageError: a pattern is not a regular expression, or ``workers`` is below 1.
    """
    options = _options(step_regex, comm_patterns)
    if workers is None:
        workers = available_cores() if kineto.native_available() else 1
    if workers < 1:
        raise UsageError(f"workers is {workers}; at least 1 is needed")
    found = discover(target)
    store = cache.store_for(found.folder)
    results = read_all(found.files, options, workers, store, on_progress)
    windows = []
    notes = list(found.diagnostics)
    for file, result in zip(found.files, results, strict=True):
        if isinstance(result, Window):
            windows.append((file, result))
        elif isinstance(result, NotATraceError) and found.searched:
            message = "a JSON file that is no trace was left out"
            notes.append(
                Diagnostic("not-a-trace", Severity.INFO, None, 1, f"{message}: {file.name}")
            )
        else:
            notes.append(Diagnostic("unreadable-file", Severity.WARNING, None, 1, str(result)))
    if not windows:
        raise next(result for result in results if isinstance(result, InputError))
    return _run(found, windows, notes)


def _options(step_regex: str | None, comm_patterns: Sequence[str]) -> Options:
    try:
        return Options(
            communication=names.communication_pattern(comm_patterns),
            step=None if step_regex is None else re.compile(step_regex),
        )
    except re.error as error:
        raise UsageError(f"{error.pattern!r} is not a regular expression: {error}") from error


# -- the run -----------------------------------------------------------------------


def _run(found: Found, windows: list[tuple[TraceFile, Window]], notes: list[Diagnostic]) -> Run:
    facts = _facts(windows)
    by_rank: dict[int, list[tuple[TraceFile, Window]]] = defaultdict(list)
    for item, fact in zip(windows, facts, strict=True):
        by_rank[fact.rank].append(item)
        notes.extend(fact.diagnostics)
    topology = _topology(found.manifest, windows)
    known = {(group.name, rank): group for group in topology.groups for rank in group.ranks}
    run = Run(
        name=found.name,
        traces=tuple(_with_groups(merge(rank, by_rank[rank]), known) for rank in sorted(by_rank)),
        topology=topology,
        conditions=found.manifest.conditions if found.manifest else {},
        truth=tuple(found.manifest.truth) if found.manifest else (),
        files=facts,
        baseline=_baseline(found, notes),
    )
    if run.missing_ranks:
        here = f"{len(run.traces)} of {topology.world_size} ranks are here"
        message = f"{here}; what needs all of them is left out"
        count = len(run.missing_ranks)
        notes.append(Diagnostic("missing-ranks", Severity.INFO, None, count, message))
    several = len({trace.host for trace in run.traces}) > 1
    samples = clocks.samples(found.files) if several else ()
    return _across_ranks(dataclasses.replace(run, diagnostics=_collected(notes)), samples)


def _baseline(found: Found, notes: list[Diagnostic]) -> tuple[LinkLatency, ...]:
    """The benchmark of the links that lies with a run, if one does."""
    path = found.folder / baseline.FILE_NAME if found.folder is not None else None
    if path is None or not path.is_file():
        return ()
    try:
        rows = baseline.read(path).rows
    except InputError as error:
        notes.append(Diagnostic("bad-baseline", Severity.WARNING, None, 1, str(error)))
        return ()
    return tuple(
        LinkLatency(row.op, row.group_size, max(row.in_bytes, row.out_bytes), row.p50_ns)
        for row in rows
    )


def _across_ranks(run: Run, samples: Sequence[ClockSample]) -> Run:
    """The run with its calls matched across ranks and its clocks fitted."""
    matching = match(run.traces)
    notes = [
        Diagnostic(
            "unmatched-calls", Severity.WARNING, None, item.count,
            f"calls of group {item.group} stay unmatched: {item.reason}",
        )
        for item in matching.refusals
    ]  # fmt: skip
    clock, told = held_against(run.traces, fit(run.traces, matching), samples)
    notes.extend(told)
    clock, told = bounded(run.traces, matching, clock)
    notes.extend(told)
    parts = len({item.component for item in clock})
    if parts > 1:
        message = f"nothing connects the clocks of {parts} sets of ranks; they are not compared"
        notes.append(Diagnostic("unconnected-ranks", Severity.INFO, None, parts, message))
    return dataclasses.replace(
        run, matching=matching, clock=clock, diagnostics=(*run.diagnostics, *notes)
    )


def _facts(windows: Sequence[tuple[TraceFile, Window]]) -> tuple[FileFacts, ...]:
    """What each file is, with its rank: by content, else by manifest or name, else by order."""
    given = [
        file.rank if window.header.rank is None else window.header.rank for file, window in windows
    ]
    taken = {rank for rank in given if rank is not None}
    free = (number for number in itertools.count() if number not in taken)
    return tuple(
        _file_facts(file, window, next(free) if rank is None else rank)
        for (file, window), rank in zip(windows, given, strict=True)
    )


def _file_facts(file: TraceFile, window: Window, rank: int) -> FileFacts:
    header, trace = window.header, window.trace
    source = "content" if header.rank is not None else "name" if file.rank is not None else "order"
    notes = list(window.diagnostics)
    if header.rank is not None and file.rank not in (None, header.rank):
        message = f"{file.name} says rank {file.rank}, its content says {rank}, which counts"
        notes.append(Diagnostic("rank-by-content", Severity.WARNING, None, 1, message))
    if source == "order":
        message = f"{file.name} does not say its rank; numbered in order of names"
        notes.append(Diagnostic("rank-guessed", Severity.WARNING, None, 1, message))
    return FileFacts(
        name=file.name,
        bytes=file.bytes,
        rank=rank,
        rank_from=source,
        world_size=header.world_size,
        backend=header.backend,
        host=header.host,
        device_type=trace.device_type,
        devices=header.devices,
        software=header.software,
        events=window.events,
        kernels=len(trace.kernels),
        calls=len(trace.calls),
        grouped_calls=int((trace.calls.group >= 0).sum()),
        steps=tuple(trace.steps.number.tolist()),
        diagnostics=tuple(dataclasses.replace(note, rank=rank) for note in notes),
    )


def _collected(notes: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Notes of one kind from many ranks become one, worst first.

    Each file's own notes stay with its facts; here the first stands for all.
    """
    order = {severity: place for place, severity in enumerate(reversed(Severity))}
    merged: dict[tuple[Any, ...], list[Diagnostic]] = defaultdict(list)
    for note in notes:
        about = note.message if note.rank is None else ""
        merged[(order[note.severity], note.code, about)].append(note)
    out = []
    for _, same in sorted(merged.items(), key=lambda item: item[0]):
        first = same[0]
        if len(same) > 1:
            message = first.message
            if any(note.message != message for note in same):
                message += f"; {len(same) - 1} more files likewise"
            count = sum(note.count for note in same)
            first = Diagnostic(first.code, first.severity, None, count, message)
        out.append(first)
    return tuple(out)


# -- topology ----------------------------------------------------------------------


def _topology(manifest: Manifest | None, windows: list[tuple[TraceFile, Window]]) -> Topology:
    """From the manifest, else from what the traces say of their groups.

    Raises:
        InputError: the files belong to jobs of different size.
    """
    sizes: dict[int, list[str]] = defaultdict(list)
    for file, window in windows:
        if window.header.world_size is not None:
            sizes[window.header.world_size].append(file.name)
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


def _with_groups(trace: RankTrace, known: Mapping[tuple[str, int], Group]) -> RankTrace:
    """What is known, by name and rank, of the trace's groups: members, description, axis."""
    groups = []
    for group in trace.groups:
        other = known.get((group.name, trace.rank))
        same = other is not None and group.ranks in ((), other.ranks)
        groups.append(other if other is not None and same else group)
    return dataclasses.replace(trace, groups=tuple(groups))
