"""Page with all ranks on one aligned axis: what each is at in a step, moment by moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.core.clock import ClockFit
from tracekit.core.run import Run, why_no_device_work
from tracekit.core.trace import Int64, RankTrace
from tracekit.core.tracks import At, Track, cut, thinned, track
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Block,
    Folded,
    Key,
    Lane,
    Role,
    Table,
    TableColumn,
    Text,
    Timeline,
    TimelineView,
)
from tracekit.report.page import RunPage
from tracekit.report.section import Section

from ._parts import MANY_RANKS
from ._waits import last_arrivals

MOST_PIECES = 40_000  # over all lanes and steps: about 0.8 MB
LEAST_PIECES = 60  # of one lane
MOST_STEPS = 12
SHOWN_RANKS = 48  # where there are too many to draw them all
WORST_RANKS = 16
ROLES = (
    (Role.COMPUTE, "compute"),
    (Role.HIDING, "compute hiding communication"),
    (Role.TRANSFER, "exposed transfer"),
    (Role.WAIT, "waiting for another rank"),
    (Role.MEMORY, "memory copies"),
)
METHOD = (
    "Each lane is one rank; at any time it shows one thing: compute, compute beside "
    "communication, transfer, waiting inside a collective that another rank has not entered, "
    "copies, or nothing. Of kernels that run side by side the one that began first is shown.\n\n"
    "All lanes are on one clock, aligned by the ends of collectives. A wait is known where every "
    "rank of the collective is here and their clocks are connected; elsewhere it is drawn as "
    "transfer.\n\n"
    "Drag to zoom, double click to see all, hover for name and length. Keys: arrows, + and -, 0."
)


@dataclass(frozen=True, slots=True)
class _Window:
    """One step of one rank on its own clock; the whole capture where there are no steps."""

    start_ns: int
    end_ns: int


def build(section: Section) -> Sequence[Block]:
    """What a typical step consists of, its picture, its numbers by rank, method."""
    run = section.run
    steps = _steps(section)
    ranks = _ranks(section)
    tracks = _tracks(run, set(ranks))
    names = _Names(run)
    chosen = _typical(section, steps)
    budget = max(LEAST_PIECES, MOST_PIECES // (len(ranks) * len(steps)))
    views = tuple(
        _view(section, _Windows(run, step), step, ranks, tracks, names, budget) for step in steps
    )
    windows = _Windows(run, steps[chosen])
    shares = {rank: _shares(tracks[rank], windows, rank) for rank in ranks if rank in windows.of}
    roles = _roles(tracks)
    picture = Timeline(
        "All ranks on one axis" if len(run.traces) > 1 else "One rank, moment by moment",
        views,
        (*roles, (Role.IDLE, "unattributed" if section.on_cpu else "idle")),
        names.texts,
        chosen,
        _caption(section, steps, ranks),
    )
    return (
        _answer(section, _what(section, steps[chosen]), shares, roles),
        picture,
        _numbers(section, steps[chosen], shares, roles),
        Folded("Method and limits", (Text(METHOD),)),
    )


# -- what is shown -------------------------------------------------------------------


def _steps(section: Section) -> tuple[int | None, ...]:
    """All steps, of many those that are typical or extreme; None alone is the capture."""
    steps = section.step_numbers
    if not steps:
        return (None,)
    if len(steps) <= MOST_STEPS and len(section.run.traces) <= MANY_RANKS:
        return steps
    lengths = _lengths(section)
    order = sorted(lengths, key=lambda step: (lengths[step], step))
    most = MOST_STEPS if len(section.run.traces) <= MANY_RANKS else 3
    places = sorted({round(i * (len(order) - 1) / (most - 1)) for i in range(most)})
    return tuple(sorted(order[place] for place in places))


def _lengths(section: Section) -> dict[int, float]:
    """Median length over ranks of each step, counted ones alone where there are any."""
    found: dict[int, list[int]] = {}
    for trace in section.run.traces:
        use = trace.statistic_steps()
        spans = (trace.steps.end_ns - trace.steps.start_ns)[use]
        for number, span in zip(trace.steps.number[use].tolist(), spans.tolist(), strict=True):
            found.setdefault(number, []).append(span)
    return {step: float(np.median(spans)) for step, spans in found.items()}


def _typical(section: Section, steps: Sequence[int | None]) -> int:
    """Place of the step whose length is nearest to the median of all counted ones."""
    lengths = _lengths(section)
    middle = float(np.median(list(lengths.values()))) if lengths else 0.0
    known = [(abs(lengths[s] - middle), i) for i, s in enumerate(steps) if s in lengths]
    return min(known)[1] if known else 0


def _ranks(section: Section) -> tuple[int, ...]:
    """All ranks in order, or those that compute longest and others evenly spread."""
    order = section.rank_order
    if len(order) <= MANY_RANKS:
        return order
    busy = {trace.rank: _busy(trace) for trace in section.run.traces}
    worst = set(sorted(order, key=lambda rank: (-busy[rank], rank))[:WORST_RANKS])
    rest = [rank for rank in order if rank not in worst]
    spread = rest[:: max(1, len(rest) // (SHOWN_RANKS - WORST_RANKS))]
    shown = worst | set(spread[: SHOWN_RANKS - WORST_RANKS])
    return tuple(rank for rank in order if rank in shown)


def _busy(trace: RankTrace) -> int:
    compute = trace.kernels.kind == 0
    return int((trace.kernels.end_ns - trace.kernels.start_ns)[compute].sum())


def _caption(section: Section, steps: Sequence[int | None], ranks: Sequence[int]) -> str:
    words = []
    total = len(section.run.traces)
    if len(ranks) < total:
        words.append(
            f"{len(ranks)} of {total:,} ranks: the {WORST_RANKS} that compute longest, and others "
            "evenly spread."
        )
    everything = len(section.step_numbers)
    if len(steps) < everything:
        words.append(f"{len(steps)} of {everything} steps, from the shortest to the longest.")
    clock = section.run.clock
    if total > 1 and clock:
        parts = len({item.component for item in clock})
        if parts > 1:
            words.append(
                f"Nothing connects the clocks of {parts} sets of ranks: each is drawn from its "
                "own beginning, so times do not compare between them."
            )
        if parts < total:
            worst = max(item.uncertainty_ns for item in clock)
            words.append(f"Clocks aligned to ±{format.quantity(worst, 'ns')}.")
    return " ".join(words)


# -- tracks --------------------------------------------------------------------------


def _tracks(run: Run, ranks: set[int]) -> dict[int, Track]:
    """The track of each of these ranks, with waits where they are known."""
    return {
        trace.rank: track(trace, last_arrivals(run, place))
        for place, trace in enumerate(run.traces)
        if trace.rank in ranks
    }


class _Windows:
    """The windows of one step over ranks, and what puts them on one axis."""

    def __init__(self, run: Run, step: int | None) -> None:
        clock = {item.rank: item for item in run.clock}
        self.of: dict[int, _Window] = {}
        self.shift: dict[int, int] = {}
        for trace in run.traces:
            window = _window(trace, step)
            if window is not None:
                self.of[trace.rank] = window
                self.shift[trace.rank] = _shift(clock.get(trace.rank), window.start_ns)
        component = {rank: clock[rank].component if rank in clock else 0 for rank in self.of}
        self.zero = {
            part: min(self.begin(rank) for rank in self.of if component[rank] == part)
            for part in set(component.values())
        }
        self.component = component
        ends = (
            window.end_ns - self.shift[rank] - self.zero[component[rank]]
            for rank, window in self.of.items()
        )
        self.span_ns = max(1, max(ends, default=1))

    def begin(self, rank: int) -> int:
        """Where a rank's window begins on the common clock."""
        return self.of[rank].start_ns - self.shift[rank]

    def on_axis(self, rank: int, times: Int64) -> Int64:
        """Times of a rank from the beginning of the view."""
        return times - self.shift[rank] - self.zero[self.component[rank]]


def _shift(fit: ClockFit | None, at_ns: int) -> int:
    if fit is None:
        return 0
    return at_ns - int(fit.aligned(np.array([at_ns], dtype=np.int64))[0])


def _window(trace: RankTrace, step: int | None) -> _Window | None:
    if step is None:
        kernels = trace.kernels
        return (
            _Window(int(kernels.start_ns.min()), int(kernels.end_ns.max()))
            if len(kernels)
            else None
        )
    place = np.flatnonzero(trace.steps.number == step)
    if not len(place):
        return None
    return _Window(int(trace.steps.start_ns[place[0]]), int(trace.steps.end_ns[place[0]]))


class _Names:
    """Texts of all lanes by number; a call is named by its operation and axis."""

    def __init__(self, run: Run) -> None:
        self._codes: dict[str, int] = {}
        self._traces = {trace.rank: trace for trace in run.traces}
        self._calls = {trace.rank: _named_calls(trace) for trace in run.traces}

    def of(self, rank: int, kernels: Int64) -> tuple[int, ...]:
        """Numbers of the names of these kernels."""
        trace = self._traces[rank]
        calls = self._calls[rank]
        return tuple(self._code(_name(trace, calls.get(k, -1), k)) for k in kernels.tolist())

    def _code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._codes)


def _named_calls(trace: RankTrace) -> dict[int, int]:
    """The call of each kernel that has just one."""
    alone = np.flatnonzero(trace.calls.carried() == 1)
    return dict(zip(trace.calls.kernel[alone].tolist(), alone.tolist(), strict=True))


def _name(trace: RankTrace, call: int, kernel: int) -> str:
    if call < 0:
        return trace.names[int(trace.kernels.name_id[kernel])]
    op: str = trace.names[trace.calls.op_id[call]]
    group = trace.calls.group[call]
    axis = trace.groups[group].axis if group >= 0 else None
    return f"{op} over {axis}" if axis else op


def _view(
    section: Section,
    windows: _Windows,
    step: int | None,
    ranks: Sequence[int],
    tracks: Mapping[int, Track],
    names: _Names,
    budget: int,
) -> TimelineView:
    lanes = []
    pieces = shown = threshold = 0
    for rank in ranks:
        if rank not in windows.of:
            continue
        window = windows.of[rank]
        whole = cut(tracks[rank], window.start_ns, window.end_ns)
        kept, least = thinned(whole, budget)
        pieces += len(whole)
        shown += len(kept)
        threshold = max(threshold, least)
        lanes.append(_lane(section, windows, rank, kept, names))
    note = ""
    if threshold:
        note = (
            f"{shown:,} of {pieces:,} pieces are drawn: those shorter than "
            f"{format.quantity(threshold, 'ns')} are merged with their neighbours."
        )
    label = "the whole capture" if step is None else f"step {step}"
    flag = section.flagged_steps.get(step) if step is not None else None
    return TimelineView(
        f"{label} ({flag})" if flag else label, step, windows.span_ns, tuple(lanes), note
    )


def _lane(section: Section, windows: _Windows, rank: int, pieces: Track, names: _Names) -> Lane:
    start = windows.on_axis(rank, pieces.start_ns)
    end = windows.on_axis(rank, pieces.end_ns)
    counts = tuple(pieces.count.tolist()) if (pieces.count > 1).any() else ()
    return Lane(
        section.rank_name(rank),
        rank,
        tuple(start.tolist()),
        tuple((end - start).tolist()),
        tuple(pieces.at.tolist()),
        names.of(rank, pieces.kernel),
        counts,
    )


# -- words and numbers ---------------------------------------------------------------


def _shares(pieces: Track, windows: _Windows, rank: int) -> tuple[float, ...]:
    """Time of each state in the window, then its length, in ns."""
    window = windows.of[rank]
    inside = cut(pieces, window.start_ns, window.end_ns)
    time = np.bincount(inside.at, inside.end_ns - inside.start_ns, minlength=len(At))
    return (*time.tolist(), float(window.end_ns - window.start_ns))


def _roles(tracks: Mapping[int, Track]) -> tuple[tuple[Role, str], ...]:
    """Role and word of each state; without a known wait, transfer may be waiting as well."""
    if any((pieces.at == At.WAIT).any() for pieces in tracks.values()):
        return ROLES
    return tuple(
        (role, "exposed communication" if role is Role.TRANSFER else label) for role, label in ROLES
    )


def _what(section: Section, step: int | None) -> str:
    if step is None:
        return "The capture"
    if len(section.step_numbers) == 1:
        return f"Step {step}, the only one,"
    return f"Step {step}, a typical one,"


def _answer(
    section: Section,
    what: str,
    shares: Mapping[int, tuple[float, ...]],
    roles: Sequence[tuple[Role, str]],
) -> Answer:
    total = sum(row[-1] for row in shares.values()) or 1.0
    means = [sum(row[i] for row in shares.values()) / total for i in range(len(At))]
    compute = format.quantity(means[At.COMPUTE] + means[At.HIDING], "ratio")
    length = float(np.median([row[-1] for row in shares.values()])) if shares else 0.0
    sentence = f"{what} takes {format.quantity(length, 'ns')}: {compute} is compute"
    for at in (At.WAIT, At.TRANSFER):
        if means[at]:
            sentence += f", {format.quantity(means[at], 'ratio')} {roles[at][1]}"
    least = min(shares, key=lambda rank: (shares[rank][At.WAIT], rank))
    detail = "Mean over the ranks shown." if len(shares) > 1 else ""
    if len(shares) > 1 and means[At.WAIT]:
        waits = format.quantity(shares[least][At.WAIT] / shares[least][-1], "ratio")
        detail += f" {section.rank_name(least).capitalize()} waits least, {waits} of the step."
    return Answer(sentence + ".", detail.strip())


def _numbers(
    section: Section,
    step: int | None,
    shares: Mapping[int, tuple[float, ...]],
    roles: Sequence[tuple[Role, str]],
) -> Table:
    """Time of each state by rank; states that no rank is ever in are left out."""
    kept = [at for at in At if any(row[at] for row in shares.values())]
    columns = (
        TableColumn("rank", "", numeric=False),
        *(TableColumn(roles[at][1], "ns") for at in kept),
        TableColumn("unattributed" if section.on_cpu else "idle", "ns"),
        TableColumn("length", "ns"),
    )
    rows = tuple(
        (
            section.rank_name(rank),
            *(row[at] for at in kept),
            row[-1] - sum(row[:-1]),
            row[-1],
        )
        for rank, row in shares.items()
    )
    title = "The capture, rank by rank" if step is None else f"Step {step}, rank by rank"
    keys = tuple(Key(rank=rank) for rank in shares)
    return Table(title, columns, rows, worst=len(columns) - 1, keys=keys)


def _missing(section: Section) -> str | None:
    """Why there is nothing to draw."""
    if any(len(trace.kernels) for trace in section.run.traces):
        return None
    return why_no_device_work(section.run)


PAGE = RunPage("Timeline", "timeline", build, order=80, missing=_missing)
