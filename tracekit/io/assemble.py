"""Event columns to one rank's trace: device work, steps, communication calls.

Everything that depends on how Kineto and the backends write things ends here;
analyses see the same columns whether a trace came from a GPU or from a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    StepFlag,
    Steps,
)
from tracekit.io import calls as communication
from tracekit.io import cpu, names
from tracekit.io.events import MISSING, Events, StringTable
from tracekit.io.groups import groups_of_header


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may say about names."""

    communication: re.Pattern[str]
    step: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One file of one rank: a window of its trace, with what only the file's header tells.

    ``trace.rank`` is -1 until ``load`` has settled it.
    """

    trace: RankTrace
    rank: int | None
    world_size: int | None
    diagnostics: tuple[Diagnostic, ...]


def assemble(events: Events, options: Options) -> Window:
    """Turn the events of one file into a window of a rank's trace."""
    table = StringTable((text, code) for code, text in enumerate(events.strings))
    groups = groups_of_header(events.header)
    notes = list(events.diagnostics)
    work = _device_work(events, options)
    device_type = "gpu"
    if len(work.row) == 0:
        device_type, work, note = cpu.device_work(events)
        notes.extend(note)
    marks = _step_marks(events, options, work)
    notes.extend(marks.diagnostics)
    launched = _launch_times(events, work) if device_type == "gpu" else work.start_ns
    step = _step_of(launched, marks)
    steps = _steps(marks, step, work.end_ns, events.truncated)
    found = communication.calls(events, work, table, groups)
    kind = work.kind.copy()
    kind[found.columns.kernel] = KernelKind.COMMUNICATION
    notes.extend(_kernel_notes(work, kind, found.columns))
    trace = RankTrace(
        rank=MISSING,
        host=_text(events.header.get("host_name")),
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
        ),
        calls=found.columns,
        names=tuple(table),
        groups=found.groups,
    )
    info = _distributed(events.header)
    return Window(trace, _whole(info.get("rank")), _whole(info.get("world_size")), tuple(notes))


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


# -- steps -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Marks:
    """Step windows as the host saw them, sorted and disjoint."""

    number: Int64
    start_ns: Int64
    end_ns: Int64
    diagnostics: tuple[Diagnostic, ...] = ()


def _step_marks(events: Events, options: Options, work: cpu.Work) -> _Marks:
    """The profiler's own markers, else known or given annotations, else the whole capture."""
    rows = events.rows(names.ANNOTATION_CATEGORIES | names.OPERATOR_CATEGORIES)
    code = events.columns.name[rows]
    if options.step is not None:
        wanted = [options.step.search(text) is not None for text in events.strings]
        chosen = rows[np.array(wanted, dtype=np.bool_)[code]] if len(rows) else rows
        if len(chosen):
            return _marks_of(events, chosen, None)
        note = Diagnostic(
            "no-step-match", Severity.WARNING, None, 1,
            f"no annotation matches the step expression {options.step.pattern!r}",
        )  # fmt: skip
        return _whole_capture(events, work, (note,))
    matches = [names.PROFILER_STEP.search(text) for text in events.strings]
    is_mark = np.array([match is not None for match in matches], dtype=np.bool_)
    chosen = rows[is_mark[code]] if len(rows) else rows
    if len(chosen):
        number = np.array([int(match[1]) if match else 0 for match in matches], dtype=np.int64)[
            events.columns.name[chosen]
        ]
        return _marks_of(events, chosen, number)
    return _annotation_marks(events, work)


def _annotation_marks(events: Events, work: cpu.Work) -> _Marks:
    """Steps from a serving engine's or optimizer's annotations."""
    rows = events.rows(names.ANNOTATION_CATEGORIES)
    for expression in names.STEP_PATTERNS:
        pattern = re.compile(expression)
        wanted = np.array([bool(pattern.search(text)) for text in events.strings], dtype=np.bool_)
        chosen = rows[wanted[events.columns.name[rows]]] if len(rows) else rows
        if not len(chosen):
            continue
        note = Diagnostic(
            "steps-from-annotations", Severity.INFO, None, len(chosen),
            f"no ProfilerStep markers; steps are the annotations matching {expression!r}",
        )  # fmt: skip
        if expression.startswith("Optimizer"):
            return _marks_at_ends(events, chosen, work, (note,))
        return _marks_of(events, chosen, None, (note,))
    note = Diagnostic(
        "no-steps", Severity.INFO, None, 1,
        "no step markers; the whole capture counts as one step (--step-regex names others)",
    )  # fmt: skip
    return _whole_capture(events, work, (note,))


def _marks_of(
    events: Events,
    rows: npt.NDArray[np.intp],
    number: Int64 | None,
    notes: tuple[Diagnostic, ...] = (),
) -> _Marks:
    """Windows of annotations; of nested or repeated ones only the outermost."""
    start = events.columns.start_ns[rows] + events.base_ns
    end = start + events.columns.duration_ns[rows]
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    outer = np.concatenate(([True], start[1:] >= reach[:-1]))
    start, end = start[outer], end[outer]
    given = np.arange(len(start), dtype=np.int64) if number is None else number[order][outer]
    return _Marks(given, start, end, notes)


def _marks_at_ends(
    events: Events,
    rows: npt.NDArray[np.intp],
    work: cpu.Work,
    notes: tuple[Diagnostic, ...],
) -> _Marks:
    """Steps that each end with the most frequent of these annotations."""
    code = events.columns.name[rows]
    most = np.bincount(code).argmax()
    rows = rows[code == most]
    end = np.sort(events.columns.start_ns[rows] + events.base_ns + events.columns.duration_ns[rows])
    first = _whole_capture(events, work, ()).start_ns
    start = np.concatenate((np.minimum(first, end[:1]), end[:-1]))
    return _Marks(np.arange(len(end), dtype=np.int64), start, end, notes)


def _whole_capture(events: Events, work: cpu.Work, notes: tuple[Diagnostic, ...]) -> _Marks:
    """One step over everything that was recorded; none when nothing was."""
    rows = events.rows(
        names.OPERATOR_CATEGORIES | names.ANNOTATION_CATEGORIES | names.LAUNCH_CATEGORIES
    )
    # CUDA before 12.8 writes zero times; a kernel at 0 must not stretch the capture.
    rows = rows[events.columns.start_ns[rows] > 0]
    start = np.concatenate((events.columns.start_ns[rows] + events.base_ns, work.start_ns))
    host_end = events.columns.start_ns[rows] + events.columns.duration_ns[rows] + events.base_ns
    end = np.concatenate((host_end, work.end_ns))
    count = 1 if len(start) else 0
    return _Marks(
        np.zeros(count, dtype=np.int64), np.sort(start)[:count], np.sort(end)[::-1][:count], notes
    )


def _launch_times(events: Events, work: cpu.Work) -> Int64:
    """When the host launched each kernel; its own start where the launch is not recorded."""
    rows = events.rows(names.LAUNCH_CATEGORIES)
    correlation = events.columns.correlation[rows]
    known = correlation > 0
    rows, correlation = rows[known], correlation[known]
    out: Int64 = work.start_ns.copy()
    if len(rows) == 0 or len(out) == 0:
        return out
    order = np.argsort(correlation, kind="stable")
    sought = events.columns.correlation[work.row]
    place = np.minimum(np.searchsorted(correlation[order], sought), len(rows) - 1)
    hit = correlation[order][place] == sought
    out[hit] = (events.columns.start_ns[rows[order[place]]] + events.base_ns)[hit]
    return out


def _step_of(times: Int64, marks: _Marks) -> Int32:
    """Index of the step whose host window holds each time, else -1."""
    if len(marks.start_ns) == 0:
        return np.full(len(times), MISSING, dtype=np.int32)
    place = np.searchsorted(marks.start_ns, times, side="right") - 1
    inside = (place >= 0) & (times < marks.end_ns[np.maximum(place, 0)])
    out: Int32 = np.where(inside, place, MISSING).astype(np.int32)
    return out


def _steps(marks: _Marks, step: Int32, end_ns: Int64, truncated: bool) -> Steps:
    """Step windows on the device's time.

    A step ends when the last kernel launched in it does, and begins no earlier
    than the one before it ended. So windows never overlap, no time is counted
    twice, and a device that runs behind its host still gets its true step time.
    """
    count = len(marks.number)
    end = marks.end_ns.copy()
    np.maximum.at(end, step[step >= 0], end_ns[step >= 0])
    end = np.maximum.accumulate(end) if count else end
    start = np.maximum(marks.start_ns, np.concatenate((marks.start_ns[:1], end[:-1])))
    flag = np.full(count, StepFlag.OK, dtype=np.uint8)
    if count > 1:
        flag[0] = StepFlag.FIRST
    if truncated and count:
        flag[-1] = StepFlag.CUT
    return Steps(number=marks.number, start_ns=start, end_ns=np.maximum(start, end), flag=flag)


# -- notes -------------------------------------------------------------------------


def _kernel_notes(work: cpu.Work, kind: npt.NDArray[np.uint8], calls: Calls) -> list[Diagnostic]:
    """How much of what follows rests on names alone, or on odd times."""
    notes = []
    by_name = int((kind == KernelKind.COMMUNICATION).sum()) - int((calls.group >= 0).sum())
    if by_name > 0:
        notes.append(
            Diagnostic(
                "communication-without-group", Severity.INFO, None, by_name,
                "communication is known by its name only; its process group is not recorded",
            )
        )  # fmt: skip
    return notes


def _distributed(header: Mapping[str, Any]) -> Mapping[str, Any]:
    info = header.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _whole(value: object) -> int | None:
    """A rank or world size, however it was written; None when it is none."""
    try:
        number = int(value) if isinstance(value, (int, str)) else -1
    except ValueError:
        return None
    return number if 0 <= number < 1 << 24 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
