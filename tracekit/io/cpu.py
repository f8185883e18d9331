"""Device work of a trace that has no device: operators compute, the backend transfers.

Definitions: compute is the time of leaf operators on the threads that run the
model; an operator with others inside it is not a leaf, since a wait for a
collective, which leaves no event, may hide in it. Communication is the
backend's own span on its worker thread (``gloo:...``). Operators that hand
work to a backend or wait for it are neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.run import Diagnostic, Severity
from tracekit.core.trace import Int64, KernelKind
from tracekit.io import names
from tracekit.io.events import Events

CPU_DEVICE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Device work as rows of the file's events."""

    row: npt.NDArray[np.intp]
    start_ns: Int64
    end_ns: Int64
    device: Int64
    stream: Int64
    kind: npt.NDArray[np.uint8]


def device_work(events: Events) -> tuple[str, Work, list[Diagnostic]]:
    """ "cpu" and the work of a CPU-only trace; "none" where its operators prove nothing.

    A GPU job recorded without device activity also holds operators only, but
    they launch work and do none: such a trace has no device work to show.
    """
    operators = events.rows(names.OPERATOR_CATEGORIES)
    transfers = _transfers(events)
    reason = _why_not_cpu(events)
    if reason is not None:
        note = Diagnostic("no-device-work", Severity.WARNING, None, 1, reason)
        return "none", _work(events, operators[:0], transfers[:0]), [note]
    notes = []
    p2p = [
        row for row in transfers if events.strings[events.columns.name[row]] in _POSTED_TRANSFERS
    ]
    if p2p:
        notes.append(
            Diagnostic(
                "p2p-upper-bound", Severity.INFO, None, len(p2p),
                "gloo send and recv are recorded from posting to wait(): an upper bound",
            )
        )  # fmt: skip
    return "cpu", _work(events, _leaves(events, operators), transfers), notes


_POSTED_TRANSFERS = frozenset({"gloo:send", "gloo:recv"})


def _why_not_cpu(events: Events) -> str | None:
    """Why the operators of this trace are not its compute, if so."""
    if len(events.rows(names.FOREIGN_DEVICE_CATEGORIES)):
        return "the device rows of this accelerator are not understood; only its host was read"
    info = events.header.get("distributedInfo")
    backend = str(info.get("backend", "")) if isinstance(info, dict) else ""
    if len(events.rows(names.LAUNCH_CATEGORIES)) or "nccl" in backend:
        return (
            "an accelerator was used but no device activity was recorded; "
            "record with ProfilerActivity.CUDA (or XPU) as well"
        )
    return None


def _transfers(events: Events) -> npt.NDArray[np.intp]:
    rows = events.rows(names.ANNOTATION_CATEGORIES | names.OPERATOR_CATEGORIES)
    is_transfer = np.array(
        [names.CPU_TRANSFER.match(text) is not None for text in events.strings], dtype=np.bool_
    )
    return rows[is_transfer[events.columns.name[rows]]] if len(rows) else rows


def _leaves(events: Events, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Operators without another inside them that are not communication, in file order."""
    columns = events.columns
    start = columns.start_ns[rows]
    end = start + columns.duration_ns[rows]
    # On each thread events nest: in order of start, longest first, a leaf is one
    # whose successor begins after it has ended.
    order = np.lexsort((-end, start, columns.tid[rows], columns.pid[rows]))
    ordered = rows[order]
    thread = columns.tid[ordered].astype(np.int64) << 32 | columns.pid[ordered]
    same_thread = np.concatenate((thread[1:] == thread[:-1], [False]))[: len(ordered)]
    next_start = np.concatenate((start[order][1:], [0]))[: len(ordered)]
    leaf = ~same_thread | (next_start >= end[order])
    is_compute = np.array(
        [names.CPU_COMMUNICATION_OPERATOR.match(text) is None for text in events.strings],
        dtype=np.bool_,
    )
    kept = ordered[leaf & is_compute[columns.name[ordered]]] if len(ordered) else ordered
    return np.sort(kept)


def _work(events: Events, compute: npt.NDArray[np.intp], transfers: npt.NDArray[np.intp]) -> Work:
    row = np.concatenate((compute, transfers))
    kind = np.repeat(
        np.array([KernelKind.COMPUTE, KernelKind.COMMUNICATION], dtype=np.uint8),
        [len(compute), len(transfers)],
    )
    order = np.argsort(row, kind="stable")
    row, kind = row[order], kind[order]
    start = events.columns.start_ns[row] + events.base_ns
    return Work(
        row=row,
        start_ns=start,
        end_ns=start + events.columns.duration_ns[row],
        device=np.full(len(row), CPU_DEVICE, dtype=np.int64),
        # Threads take the place of streams; their code is as good a name as any.
        stream=events.columns.tid[row].astype(np.int64),
        kind=kind,
    )
