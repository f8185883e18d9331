"""Step windows: whose they are, and where they begin and end on the device's time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.run import Diagnostic, Severity
from tracekit.core.trace import Int32, Int64, StepFlag, Steps
from tracekit.io import names
from tracekit.io.cpu import Work
from tracekit.io.events import MISSING, Events


def steps_of(
    events: Events, work: Work, given: re.Pattern[str] | None
) -> tuple[Steps, Int32, Int64, tuple[Diagnostic, ...]]:
    """The steps of a file, the step of each piece of work, and when it was launched.

    Args:
        events: the file.
        work: its device work.
        given: annotations that mark steps, instead of the known ones.

    Returns:
        The windows; (work,) int32 index of the step that launched it, else -1;
        (work,) int64 ns when its launch began, else -1; notes.
    """
    marks = _step_marks(events, given, work)
    launch_ns = _launch_times(events, work)
    # Without its launch, a kernel belongs to the step it runs in.
    step = _step_of(np.where(launch_ns >= 0, launch_ns, work.start_ns), marks)
    return _steps(marks, step, work.end_ns, events.truncated), step, launch_ns, marks.diagnostics


@dataclass(frozen=True, slots=True, eq=False)
class _Marks:
    """Step windows as the host saw them, sorted and disjoint."""

    number: Int64
    start_ns: Int64
    end_ns: Int64
    diagnostics: tuple[Diagnostic, ...] = ()


def _step_marks(events: Events, given: re.Pattern[str] | None, work: Work) -> _Marks:
    """The profiler's own markers, else known or given annotations, else the whole capture."""
    rows = events.rows(names.ANNOTATION_CATEGORIES | names.OPERATOR_CATEGORIES)
    code = events.columns.name[rows]
    if given is not None:
        wanted = [given.search(text) is not None for text in events.strings]
        chosen = rows[np.array(wanted, dtype=np.bool_)[code]] if len(rows) else rows
        if len(chosen):
            return _marks_of(events, chosen, None)
        note = Diagnostic(
            "no-step-match", Severity.WARNING, None, 1,
            f"no annotation matches the step expression {given.pattern!r}",
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


def _annotation_marks(events: Events, work: Work) -> _Marks:
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
    work: Work,
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


def _whole_capture(events: Events, work: Work, notes: tuple[Diagnostic, ...]) -> _Marks:
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


def _launch_times(events: Events, work: Work) -> Int64:
    """When the host began to launch each kernel; -1 where that is not recorded."""
    rows = events.rows(names.LAUNCH_CATEGORIES)
    correlation = events.columns.correlation[rows]
    known = correlation > 0
    rows, correlation = rows[known], correlation[known]
    out = np.full(len(work.row), MISSING, dtype=np.int64)
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
