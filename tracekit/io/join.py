"""Joins the runner's records to a CPU trace: the group and sequence of each transfer.

A record and a transfer of the same operation and size follow each other in the
same order, so the k-th of one is the k-th of the other when their numbers
agree. Where they do not, the transfer stays without a group, and that is said.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from tracekit.core.run import Diagnostic, Severity
from tracekit.core.topology import Group
from tracekit.core.trace import ExpertLoads, RankTrace
from tracekit.io import names
from tracekit.io.assemble import Window
from tracekit.io.events import MISSING
from tracekit.io.records import CollectiveRecord, ExpertRecord, P2pRecord, Records


def join(window: Window, path: Path | None) -> Window:
    """The window with groups and sequence numbers where the records tell them."""
    if path is None:
        return window
    try:
        records = msgspec.json.decode(path.read_bytes(), type=Records)
    except (OSError, msgspec.DecodeError) as error:
        return _noted(window, "bad-records", 1, f"{path.name} cannot be used: {error}")
    if records.experts:
        trace = dataclasses.replace(window.trace, loads=_loads(records.experts))
        window = dataclasses.replace(window, trace=trace)
    if window.trace.device_type != "cpu" or len(window.trace.calls) == 0:
        return window
    trace, unmatched = _joined(window.trace, records)
    notes = tuple(note for note in window.diagnostics if note.code != "communication-without-group")
    window = dataclasses.replace(window, trace=trace, diagnostics=notes)
    if not unmatched:
        return window
    return _noted(
        window, "unmatched-records", unmatched,
        "transfers and the runner's records differ in number; their groups are not known",
    )  # fmt: skip


def _loads(records: Sequence[ExpertRecord]) -> ExpertLoads:
    """One row per count and expert, in order of time."""
    records = sorted(records, key=lambda record: record.at_ns)
    sizes = [len(record.tokens) for record in records]
    return ExpertLoads(
        at_ns=np.repeat(np.array([record.at_ns for record in records], dtype=np.int64), sizes),
        layer=np.repeat(np.array([record.layer for record in records], dtype=np.int32), sizes),
        expert=np.array(
            [record.first + place for record in records for place in range(len(record.tokens))],
            dtype=np.int32,
        ),
        tokens=np.array([count for record in records for count in record.tokens], dtype=np.int64),
    )


def _noted(window: Window, code: str, count: int, message: str) -> Window:
    note = Diagnostic(code, Severity.WARNING, None, count, message)
    return dataclasses.replace(window, diagnostics=(*window.diagnostics, note))


def _joined(trace: RankTrace, records: Records) -> tuple[RankTrace, int]:
    """Group, seq and peer columns filled in; and how many calls found no record."""
    group, seq = trace.calls.group.copy(), trace.calls.seq.copy()
    peer = trace.calls.peer.copy()
    groups = list(trace.groups)
    place = {item.name: number for number, item in enumerate(groups)}
    waiting = _calls_by_kind(trace)
    unmatched = 0
    for kind, found in _records_by_kind(records).items():
        rows = waiting.pop(kind, [])
        if len(rows) != len(found):
            unmatched += len(rows)
            continue
        for row, record in zip(rows, found, strict=True):
            if record.group not in place:
                place[record.group] = len(groups)
                groups.append(Group(record.group, "", (), None))
            group[row] = place[record.group]
            if isinstance(record, CollectiveRecord):
                seq[row] = record.seq
            else:
                peer[row] = record.peer
    unmatched += sum(len(rows) for rows in waiting.values())
    calls = dataclasses.replace(trace.calls, group=group, seq=seq, peer=peer)
    return dataclasses.replace(trace, calls=calls, groups=tuple(groups)), unmatched


def _calls_by_kind(trace: RankTrace) -> dict[tuple[str, int], list[int]]:
    """Rows of calls in order of start, by operation and bytes."""
    start = trace.kernels.start_ns[trace.calls.kernel]
    out: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in np.argsort(start, kind="stable").tolist():
        op = trace.names[trace.calls.op_id[row]]
        out[(op, int(trace.calls.in_bytes[row]))].append(row)
    return out


def _records_by_kind(
    records: Records,
) -> dict[tuple[str, int], list[CollectiveRecord | P2pRecord]]:
    """Records in order of time, by operation and bytes."""
    out: dict[tuple[str, int], list[CollectiveRecord | P2pRecord]] = defaultdict(list)
    for item in sorted(records.collectives, key=lambda record: record.created_ns):
        size = _bytes(item.in_sizes, item.in_dtypes)
        out[(names.collective(item.op), size)].append(item)
    for transfer in sorted(records.p2p, key=lambda record: record.posted_ns):
        out[(transfer.op, transfer.bytes)].append(transfer)
    return out


def _bytes(sizes: Sequence[list[int]], dtypes: list[str]) -> int:
    if not sizes:
        return MISSING  # a barrier has no tensors, and its transfer lists none
    total = 0
    for shape, dtype in zip(sizes, dtypes, strict=False):
        width = names.element_bytes(dtype)
        if width is None:
            return MISSING
        total += int(np.prod(shape, dtype=np.int64)) * width
    return total
