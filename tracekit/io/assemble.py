"""Event columns to one rank's trace: device work, steps, communication calls.

Everything that depends on how Kineto and the backends write things ends here;
analyses see the same columns whether a trace came from a GPU or from a CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.run import Diagnostic, Severity
from tracekit.core.trace import (
    Calls,
    Int32,
    Int64,
    KernelKind,
    Kernels,
    RankTrace,
)
from tracekit.io import calls as communication
from tracekit.io import cpu, markers, names
from tracekit.io import header as headers
from tracekit.io.events import MISSING, Events, StringTable
from tracekit.io.header import Header
from tracekit.io.origins import origins_of
from tracekit.io.steps import steps_of


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may say about names."""

    communication: re.Pattern[str]
    step: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One file of one rank: a window of its trace, and what the file tells of itself.

    ``trace.rank`` is -1 until ``load`` has settled it.
    """

    trace: RankTrace
    header: Header
    events: int
    diagnostics: tuple[Diagnostic, ...]


def assemble(events: Events, options: Options) -> Window:
    """Turn the events of one file into a window of a rank's trace."""
    table = StringTable((text, code) for code, text in enumerate(events.strings))
    header = headers.read(events.header)
    notes = list(events.diagnostics)
    work = _device_work(events, options)
    device_type = "gpu"
    if len(work.row) == 0:
        device_type, work, cpu_notes = cpu.device_work(events, header.backend)
        notes.extend(cpu_notes)
    steps, step, launch_ns, note = steps_of(events, work, options.step)
    notes.extend(note)
    found = communication.calls(events, work, table, header.groups)
    notes.extend(found.notes)
    kind = work.kind.copy()
    kind[found.columns.kernel] = KernelKind.COMMUNICATION
    notes.extend(_call_notes(kind, found.columns))
    spans, span_notes = markers.spans_of(events)
    notes.extend(span_notes)
    trace = RankTrace(
        rank=MISSING,
        host=header.host,
        device_type=device_type,
        steps=steps,
        kernels=Kernels(
            start_ns=work.start_ns,
            end_ns=work.end_ns,
            device=work.device.astype(np.int16),
            stream=work.stream.astype(np.int32),
            kind=kind,
            name_id=events.columns.name[work.row],
            correlation=events.columns.correlation[work.row],
            step=step,
            launch_ns=launch_ns,
        ),
        calls=found.columns,
        names=tuple(table),
        groups=found.groups,
        spans=spans,
        origins=origins_of(events, work),
        splits=found.splits,
        # Annotations and whole captures are only counted, from wherever a file begins.
        steps_marked=options.step is None
        and not {"no-steps", "steps-from-annotations"} & {item.code for item in note},
    )
    return Window(trace, header, len(events.columns), tuple(notes))


def _device_work(events: Events, options: Options) -> cpu.Work:
    """Kernels, copies and sets of a trace with device activity."""
    columns = events.columns
    kernel_rows = events.rows(names.KERNEL_CATEGORIES)
    memory_rows = events.rows(names.MEMORY_CATEGORIES)
    row = np.sort(np.concatenate((kernel_rows, memory_rows)))
    is_communication = np.array(
        [options.communication.search(text) is not None for text in events.strings], dtype=np.bool_
    )
    kind = np.full(len(row), KernelKind.COMPUTE, dtype=np.uint8)
    if len(row):
        kind[is_communication[columns.name[row]]] = KernelKind.COMMUNICATION
    kind[np.isin(row, memory_rows)] = KernelKind.MEMORY
    start = columns.start_ns[row] + events.base_ns
    return cpu.Work(
        row=row,
        start_ns=start,
        end_ns=start + columns.duration_ns[row],
        device=_numbers(events, columns.device[row], columns.pid[row]),
        stream=_numbers(events, columns.stream[row], columns.tid[row]),
        kind=kind,
    )


def _numbers(events: Events, given: Int64, fallback: Int32) -> Int64:
    """An id from the arguments, else the number in the pid or tid ("stream 7" -> 7)."""
    out = np.array(given)
    for index in np.flatnonzero(out == MISSING):
        match = re.search(r"\d+", events.strings[fallback[index]])
        out[index] = int(match[0]) if match else MISSING
    # Ids are small; an absurd one must not wrap around into another device's.
    return np.where((out < MISSING) | (out > np.iinfo(np.int16).max), MISSING, out)


def _call_notes(kind: npt.NDArray[np.uint8], calls: Calls) -> list[Diagnostic]:
    """How much communication rests on names alone."""
    by_name = int((kind == KernelKind.COMMUNICATION).sum()) - len(
        np.unique(calls.kernel[calls.group >= 0])
    )
    if by_name <= 0:
        return []
    message = "communication is known by its name only; its process group is not recorded"
    return [Diagnostic("communication-without-group", Severity.INFO, None, by_name, message)]
