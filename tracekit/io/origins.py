"""Where each kernel comes from: the operator that launched it and the annotation around it.

The operator is the one the kernel's external id names, else the innermost one
open at the launch on its thread. The annotation is the innermost of the user's
own open at that moment, on that thread or, for a backward that runs on a thread
of its own, on the thread with most annotations. On a CPU the operator is the
stretch itself, and a transfer its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.trace import Int32, Int64, Origins
from tracekit.io import names
from tracekit.io.cpu import CPU_DEVICE, Work
from tracekit.io.events import MISSING, Events

Rows = npt.NDArray[np.intp]

# Ranges that a library or the profiler itself opens say nothing of the user's program.
_NOT_A_SCOPE = re.compile(
    r"ProfilerStep#|(?:nccl|gloo|mpi|ucc|c10d)\b.*:|tracekit:|## Call Compiled"
)


class _Host(NamedTuple):
    """The moment and thread at which the host launched each piece of work; -1 if unknown."""

    at_ns: Int64
    thread: Int64


def origins_of(events: Events, work: Work) -> Origins:
    """One row per piece of work, in its order."""
    host = _host(events, work)
    operators = events.rows(names.OPERATOR_CATEGORIES)
    if len(work.row) and (work.device == CPU_DEVICE).all():
        op_row = work.row.astype(np.int64)
    else:
        op_row = _by_external_id(events, work, operators)
        lost = (op_row == MISSING) & (host.at_ns >= 0)
        op_row[lost] = _enclosing(events, operators, host.at_ns[lost], host.thread[lost])
    scopes = _scopes(events)
    scope = _enclosing(events, scopes, host.at_ns, host.thread)
    main = _main_thread(events, scopes)
    lost = (scope == MISSING) & (host.at_ns >= 0) & (host.thread != main)
    scope[lost] = _enclosing(events, scopes, host.at_ns[lost], np.full(int(lost.sum()), main))
    return Origins(
        op_id=_names(events, op_row),
        scope_id=_names(events, scope),
        shape_id=events.columns.shape[work.row],
    )


def _names(events: Events, row: Int64) -> Int32:
    """Name codes of rows, -1 kept."""
    out: Int32 = np.where(row >= 0, events.columns.name[np.maximum(row, 0)], MISSING).astype(
        np.int32
    )
    return out


def _host(events: Events, work: Work) -> _Host:
    """When and where the host launched each piece of work, relative to the base time."""
    columns = events.columns
    if len(work.row) and (work.device == CPU_DEVICE).all():
        return _Host(work.start_ns - events.base_ns, _threads(events, work.row))
    rows = events.rows(names.LAUNCH_CATEGORIES)
    launch = _looked_up(columns.correlation[rows], rows, columns.correlation[work.row])
    known = launch >= 0
    at = np.where(known, columns.start_ns[np.maximum(launch, 0)], MISSING)
    return _Host(at, np.where(known, _threads(events, np.maximum(launch, 0)), MISSING))


def _threads(events: Events, rows: npt.NDArray[np.signedinteger]) -> Int64:
    """One number per process and thread."""
    thread: Int64 = events.columns.pid[rows].astype(np.int64) << 32 | events.columns.tid[rows]
    return thread


def _by_external_id(events: Events, work: Work, operators: Rows) -> Int64:
    external = events.columns.external_id
    return _looked_up(external[operators], operators, external[work.row])


def _looked_up(keys: Int64, rows: Rows, sought: Int64) -> Int64:
    """The row of the first key that equals each sought one; ids of 0 and below prove nothing."""
    known = keys > 0
    keys, rows = keys[known], rows[known]
    if len(keys) == 0:
        return np.full(len(sought), MISSING, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys[order], sought), len(keys) - 1)
    hit = keys[order][place] == sought
    return np.where(hit, rows[order[place]], MISSING).astype(np.int64)


def _scopes(events: Events) -> Rows:
    """Annotations that are the user's own."""
    rows = events.rows(names.ANNOTATION_CATEGORIES)
    own = np.array([_NOT_A_SCOPE.match(text) is None for text in events.strings], dtype=np.bool_)
    return rows[own[events.columns.name[rows]]] if len(rows) else rows


def _main_thread(events: Events, scopes: Rows) -> int:
    threads, count = np.unique(_threads(events, scopes), return_counts=True)
    return int(threads[count.argmax()]) if len(threads) else MISSING


# -- the innermost interval around a moment ----------------------------------------------


def _enclosing(events: Events, rows: Rows, at: Int64, thread: Int64) -> Int64:
    """The innermost of ``rows`` open at each moment on its thread, else -1."""
    found = np.full(len(at), MISSING, dtype=np.int64)
    if len(rows) == 0 or len(at) == 0:
        return found
    start = events.columns.start_ns[rows]
    end = start + events.columns.duration_ns[rows]
    for mine, those in _per_thread(_threads(events, rows), thread):
        order = mine[np.lexsort((-end[mine], start[mine]))]
        place = innermost(start[order], end[order], at[those])
        hit = place >= 0
        found[those[hit]] = rows[order[place[hit]]]
    return found


def _per_thread(have: Int64, want: Int64) -> Iterator[tuple[Rows, Rows]]:
    """For each thread that both know: its own rows, and the places that ask for it."""
    for number in np.intersect1d(have, want).tolist():
        yield np.flatnonzero(have == number), np.flatnonzero(want == number)


def innermost(start: Int64, end: Int64, at: Int64) -> Int64:
    """The innermost of nested intervals around each moment, -1 for none.

    Args:
        start, end: (n,) int64 ns, sorted by start, longer ones first where it is equal.
        at: (m,) int64 ns.
    """
    if len(end) == 0:
        return np.full(len(at), MISSING, dtype=np.int64)
    parent = _parents(end)
    place = np.searchsorted(start, at, side="right") - 1
    while True:
        over = (place >= 0) & (end[np.maximum(place, 0)] <= at)
        if not over.any():
            return place
        place[over] = parent[place[over]]


def _parents(end: Int64) -> Int64:
    """For each interval the last one before it that ends no earlier, -1 for none.

    All candidates between an interval and its own candidate end before it does, so a
    candidate that does not enclose it may hand on its own: as in pointer doubling, each
    round about halves what is left to climb.
    """
    parent = np.arange(len(end), dtype=np.int64) - 1
    while True:
        wrong = (parent >= 0) & (end[np.maximum(parent, 0)] < end)
        if not wrong.any():
            return parent
        parent[wrong] = parent[parent[wrong]]
