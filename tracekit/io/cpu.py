"""Device work of a trace that has no device: operators compute, the backend transfers.

Definitions: compute is the self time of operators of a library (``aten::`` and
the like). Autograd nodes and Python functions, which have no such prefix, only
contain them, and a wait for a collective, which leaves no event, may hide in
their own time. Communication is the backend's span on its worker thread
(``gloo:...``). Operators that hand work to a backend or wait for it are neither.
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
_END_OF_TIME = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Device work as rows of the file's events."""

    row: npt.NDArray[np.intp]
    start_ns: Int64
    end_ns: Int64
    device: Int64
    stream: Int64
    kind: npt.NDArray[np.uint8]


def device_work(events: Events, backend: str | None) -> tuple[str, Work, list[Diagnostic]]:
    """ "cpu" and the work of a CPU-only trace; "none" where its operators prove nothing.

    A GPU job recorded without device activity also holds operators only, but
    they launch work and do none: such a trace has no device work to show.
    """
    operators = events.rows(names.OPERATOR_CATEGORIES)
    transfers = _transfers(events)
    note = _why_not_cpu(events, backend)
    if note is not None:
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
    return "cpu", _work(events, operators, transfers), notes


_POSTED_TRANSFERS = frozenset({"gloo:send", "gloo:recv"})


def _why_not_cpu(events: Events, backend: str | None) -> Diagnostic | None:
    """Why the operators of this trace are not its compute, if so."""
    if len(events.rows(names.FOREIGN_DEVICE_CATEGORIES)):
        code = "foreign-device"
        reason = "the device rows of this accelerator are not understood; only its host was read"
    elif len(events.rows(names.LAUNCH_CATEGORIES)) or "nccl" in (backend or ""):
        code = "no-device-work"
        reason = (
            "an accelerator was used but no device activity was recorded; "
            "record with ProfilerActivity.CUDA (or XPU) as well"
        )
    else:
        return None
    return Diagnostic(code, Severity.WARNING, None, 1, reason)


def _transfers(events: Events) -> npt.NDArray[np.intp]:
    rows = events.rows(names.ANNOTATION_CATEGORIES | names.OPERATOR_CATEGORIES)
    is_transfer = np.array(
        [names.CPU_TRANSFER.match(text) is not None for text in events.strings], dtype=np.bool_
    )
    return rows[is_transfer[events.columns.name[rows]]] if len(rows) else rows


def _self_time(events: Events, rows: npt.NDArray[np.intp]) -> tuple[Int64, Int64, Int64]:
    """Where a computing operator is the innermost one: row, start and end of each stretch.

    Operators nest on their thread, so a stretch belongs to the one begun last.
    """
    columns = events.columns
    start = columns.start_ns[rows]
    end = start + columns.duration_ns[rows]
    computes = np.array(
        [names.CPU_COMPUTE_OPERATOR.match(text) is not None for text in events.strings],
        dtype=np.bool_,
    )[columns.name[rows]]
    order = np.lexsort((-end, start, columns.tid[rows], columns.pid[rows]))
    out: list[tuple[int, int, int]] = []
    thread: tuple[int, int] | None = None
    stack: list[tuple[int, int, bool]] = []  # row, end, whether it computes
    at = 0  # up to here the thread's time is given away

    def close(until: int) -> None:
        """Give the time up to ``until`` to the operators open in it, innermost first."""
        nonlocal at
        while stack and at < until:
            row, row_end, use = stack[-1]
            stop = min(row_end, until)
            if use and stop > at:
                out.append((row, at, stop))
            at = max(at, stop)
            if row_end > until:
                return
            stack.pop()
        at = max(at, until)

    for index in order.tolist():
        row = int(rows[index])
        here = (int(columns.pid[row]), int(columns.tid[row]))
        if here != thread:
            close(_END_OF_TIME)
            thread, at = here, int(start[index])
            stack.clear()
        close(int(start[index]))
        stack.append((row, int(end[index]), bool(computes[index])))
    close(_END_OF_TIME)
    table = np.array(out, dtype=np.int64).reshape(len(out), 3).T
    return table[0].copy(), table[1].copy(), table[2].copy()


def _work(events: Events, operators: npt.NDArray[np.intp], transfers: npt.NDArray[np.intp]) -> Work:
    row, start, end = _self_time(events, operators)
    transfer_start = events.columns.start_ns[transfers]
    transfer_end = transfer_start + events.columns.duration_ns[transfers]
    kind = np.repeat(
        np.array([KernelKind.COMPUTE, KernelKind.COMMUNICATION], dtype=np.uint8),
        [len(row), len(transfers)],
    )
    row = np.concatenate((row, transfers))
    start = np.concatenate((start, transfer_start)) + events.base_ns
    end = np.concatenate((end, transfer_end)) + events.base_ns
    order = np.lexsort((row, start))
    return Work(
        row=row[order].astype(np.intp),
        start_ns=start[order],
        end_ns=end[order],
        device=np.full(len(row), CPU_DEVICE, dtype=np.int64),
        # Threads take the place of streams; their code is as good a name as any.
        stream=events.columns.tid[row[order]].astype(np.int64),
        kind=kind[order],
    )
