"""Actions of pipeline stages where no marker names them, from the order of transfers.

The k-th receive from the stage before lets the forward of microbatch k begin, the k-th send
to the stage after ends it; gradients likewise, the other way. With the order of a schedule
(GPipe or 1F1B, one stage per rank) that cuts a rank's time into its actions. Where two
actions lie between two transfers (on the first and the last stage) they are cut where the
work of a forward is done, as known from forwards that stand alone, else from other stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.errors import UsageError
from tracekit.core.intervals import Intervals, covered_within, union
from tracekit.core.schedule import Action, Kind, pipeline
from tracekit.core.stagework import KINDS, StageWork, in_stage
from tracekit.core.trace import Int64, RankTrace

_SCHEDULES = ("1f1b", "gpipe")
_ALIKE = 1.4  # actions of one kind on one rank differ by no more
_SLACK_NS = 2_000  # transfers may be stamped this much apart from the work they end


class _Marks(NamedTuple):
    """Times of one rank's transfers in one step, each in order: k-th is microbatch k."""

    forward_in: Int64  # receives from the stage before: their ends
    forward_out: Int64  # sends to the stage after: their begins
    backward_in: Int64
    backward_out: Int64
    low: int  # the step
    high: int

    def begins(self, action: Action) -> int | None:
        """When the input of an action was there, if it comes from another rank."""
        times = self.forward_in if action.kind is Kind.FORWARD else self.backward_in
        return int(times[action.microbatch]) if len(times) else None

    def ends(self, action: Action) -> int | None:
        """When what an action makes was handed on, if it goes to another rank."""
        times = self.forward_out if action.kind is Kind.FORWARD else self.backward_out
        return int(times[action.microbatch]) if len(times) else None


class _Window(NamedTuple):
    """A stretch of a rank's time that holds one or two actions."""

    actions: tuple[Action, ...]
    low: int
    high: int


def inferred_work(
    traces: Sequence[RankTrace], clocks: Sequence[ClockFit | None], given: str | None
) -> list[StageWork] | None:
    """The actions of all ranks of a pipeline; None where transfers do not tell them.

    Args:
        traces: the ranks in order of stage, all of them.
        clocks: their fits.
        given: the schedule, where it is known.
    """
    if given is not None and given not in _SCHEDULES:
        return None
    if any((trace.calls.carried() > 1).any() for trace in traces):
        return None  # when one transfer of a coalesced kernel was over is not known
    for name in _SCHEDULES if given is None else (given,):
        found = _with_schedule(name, traces, sure=given is not None)
        if found is not None:
            return [_aligned(work, clock) for work, clock in zip(found, clocks, strict=True)]
    return None


def _aligned(work: StageWork, clock: ClockFit | None) -> StageWork:
    if clock is None:
        return work
    return StageWork(
        work.step, work.kind, work.stage, work.microbatch,
        clock.aligned(work.begin_ns), clock.aligned(work.end_ns), work.busy_ns,
    )  # fmt: skip


def _with_schedule(name: str, traces: Sequence[RankTrace], sure: bool) -> list[StageWork] | None:
    """The actions if the ranks follow this schedule; None where the traces contradict it.

    Where the schedule is not sure, actions of one kind must also be alike.
    """
    ranks = len(traces)
    every = [_marks(traces, stage) for stage in range(ranks)]
    counts = {
        len(times) for marks in every for step in marks.values() for times in step[:4] if len(times)
    }
    if len(counts) != 1 or not all(every):
        return None
    try:
        plan = pipeline(name, ranks, counts.pop())
    except UsageError:
        return None
    cut: list[dict[int, list[_Window]]] = []
    for stage, marks in enumerate(every):
        mine = {step: _windows(plan.table[stage], found) for step, found in marks.items()}
        if any(windows is None for windows in mine.values()):
            return None
        cut.append({step: windows for step, windows in mine.items() if windows is not None})
    work = [_Work(trace) for trace in traces]
    if not sure and any(item.uneven(windows) for item, windows in zip(work, cut, strict=True)):
        return None
    share = _forward_share(work, cut)
    return [item.actions(windows, share) for item, windows in zip(work, cut, strict=True)]


def _marks(traces: Sequence[RankTrace], stage: int) -> dict[int, _Marks]:
    """Transfers of one rank by step; empty where a step lacks some."""
    trace = traces[stage]
    before = (traces[stage - 1].rank, stage - 1) if stage > 0 else None
    after = (traces[stage + 1].rank, stage + 1) if stage + 1 < len(traces) else None
    calls, kernels = trace.calls, trace.kernels
    op = np.array([*trace.names, ""], dtype=object)[calls.op_id].astype(str)
    step = kernels.step[calls.kernel]
    found: dict[int, _Marks] = {}
    for number in np.unique(step[step >= 0]).tolist():
        here = step == number
        forward_in = _times(trace, here & (op == "recv"), before, ends=True)
        forward_out = _times(trace, here & (op == "send"), after, ends=False)
        backward_in = _times(trace, here & (op == "recv"), after, ends=True)
        backward_out = _times(trace, here & (op == "send"), before, ends=False)
        if not any(map(len, (forward_in, forward_out, backward_in, backward_out))):
            continue
        found[number] = _Marks(
            forward_in, forward_out, backward_in, backward_out,
            int(trace.steps.start_ns[number]), int(trace.steps.end_ns[number]),
        )  # fmt: skip
    return {
        number: marks
        for number, marks in found.items()
        if (before is None or min(len(marks.forward_in), len(marks.backward_out)))
        and (after is None or min(len(marks.forward_out), len(marks.backward_in)))
    }


def _times(
    trace: RankTrace, chosen: npt.NDArray[np.bool_], peer: tuple[int, int] | None, ends: bool
) -> Int64:
    """Begins or ends of transfers with a peer, by its rank or its place in the group."""
    if peer is None:
        return np.empty(0, dtype=np.int64)
    calls, kernels = trace.calls, trace.kernels
    rank, place = peer
    mine = chosen & (calls.peer == rank)
    if not mine.any():
        mine = chosen & (calls.peer == place)
    rows = calls.kernel[mine]
    rows = rows[np.argsort(kernels.start_ns[rows], kind="stable")]
    times = kernels.end_ns[rows] if ends else kernels.start_ns[rows]
    return np.sort(times)


def _windows(row: Sequence[Action], marks: _Marks) -> list[_Window] | None:
    """A rank's time cut at its transfers; None where they come in another order."""
    out: list[_Window] = []
    open_actions: list[Action] = []
    low = marks.low
    for place, action in enumerate(row):
        begin = marks.begins(action)
        if begin is not None and not open_actions:
            low = max(low, begin)
        open_actions.append(action)
        end = marks.ends(action)
        if end is None and place + 1 < len(row):
            coming = marks.begins(row[place + 1])
            # Its input came while it ran: then only the next end tells.
            end = coming if coming is not None and coming > low else None
        if end is None and place + 1 == len(row):
            end = marks.high
        if end is None:
            continue
        if end < low - _SLACK_NS or len(open_actions) > 2:
            return None
        out.append(_Window(tuple(open_actions), low, max(end, low)))
        low, open_actions = max(end, low), []
    return out if not open_actions else None


class _Work:
    """One rank's own work, and how much of it lies where."""

    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace
        chosen = in_stage(trace)
        self.busy = union(trace.kernels.start_ns[chosen], trace.kernels.end_ns[chosen])
        self.on_cpu = trace.device_type == "cpu"

    def length(self, low: int, high: int) -> int:
        """Time of its work in a stretch."""
        ends = (np.array([low], dtype=np.int64), np.array([high], dtype=np.int64))
        return int(covered_within(self.busy, *ends)[0])

    def span(self, low: int, high: int) -> tuple[int, int]:
        """First begin and last end of its work in a stretch."""
        first = int(np.searchsorted(self.busy.ends, low, side="right"))
        last = int(np.searchsorted(self.busy.starts, high, side="left")) - 1
        if last < first:
            return low, low
        return max(low, int(self.busy.starts[first])), min(high, int(self.busy.ends[last]))

    def after(self, low: int, ns: int) -> int:
        """The moment at which so much work is done since ``low``."""
        done = _covered_before(self.busy, low) + ns
        total = np.cumsum(self.busy.ends - self.busy.starts)
        place = int(np.searchsorted(total, done, side="left"))
        if place >= len(total):
            return int(self.busy.ends[-1]) if len(total) else low
        return int(self.busy.ends[place] - (total[place] - done))

    def actions(self, windows: dict[int, list[_Window]], share: float) -> StageWork:
        """The rank's actions in all steps."""
        typical = self._typical(windows, share)
        rows: list[tuple[int, int, int, int, int, int, int]] = []
        for step, cut in windows.items():
            for window in cut:
                for action, low, high in self._parts(window, typical):
                    begin, end = self.span(low, high)
                    busy = end - begin if self.on_cpu else self.length(low, high)
                    kind = KINDS.index(action.kind)
                    rows.append((step, kind, action.stage, action.microbatch, begin, end, busy))
        table = np.array(rows, dtype=np.int64).reshape(len(rows), 7).T
        return StageWork(
            step=table[0].astype(np.int32),
            kind=table[1].astype(np.uint8),
            stage=table[2].astype(np.int32),
            microbatch=table[3].astype(np.int32),
            begin_ns=table[4].copy(),
            end_ns=table[5].copy(),
            busy_ns=table[6].copy(),
        )

    def uneven(self, windows: dict[int, list[_Window]]) -> bool:
        """Whether actions of one kind differ so much that they must be something else.

        As where weight gradients run apart, which no transfer shows.
        """
        for size in ((Kind.FORWARD,), (Kind.BACKWARD,), (Kind.FORWARD, Kind.BACKWARD)):
            times = [
                self.length(window.low, window.high)
                for cut in windows.values()
                for window in cut[:-1]
                if tuple(sorted(a.kind for a in window.actions)) == tuple(sorted(size))
            ]
            if len(times) > 3:
                low, high = np.quantile(times, (0.1, 0.9))
                if high > _ALIKE * max(low, 1):
                    return True
        return False

    def _typical(self, windows: dict[int, list[_Window]], share: float) -> dict[Kind, float]:
        """Median work of a forward and of a backward."""
        alone: dict[Kind, list[int]] = {Kind.FORWARD: [], Kind.BACKWARD: []}
        both: list[int] = []
        for cut in windows.values():
            # The last window reaches to the end of the step and holds the optimizer.
            for window in cut[:-1]:
                work = self.length(window.low, window.high)
                if len(window.actions) == 1:
                    alone[window.actions[0].kind].append(work)
                else:
                    both.append(work)
        pair = float(np.median(both)) if both else 0.0
        forward = float(np.median(alone[Kind.FORWARD])) if alone[Kind.FORWARD] else share * pair
        backward = (
            float(np.median(alone[Kind.BACKWARD])) if alone[Kind.BACKWARD] else pair - forward
        )
        return {Kind.FORWARD: forward, Kind.BACKWARD: backward}

    def _parts(self, window: _Window, typical: dict[Kind, float]) -> list[tuple[Action, int, int]]:
        """Each action of a window with its stretch."""
        low, high = window.low, window.high
        if len(window.actions) == 1:
            (action,) = window.actions
            is_open = window.high == self._end_of_step(window)
            usual = round(typical[action.kind])
            if is_open and usual and self.length(low, high) > 1.02 * usual:
                high = self.after(low, usual)
            return [(action, low, high)]
        first, second = window.actions
        work = self.length(low, high)
        total = sum(typical[action.kind] for action in window.actions)
        part = typical[first.kind] / total if total else 0.5
        turn = self.after(low, round(work * part))
        return [(first, low, turn), (second, turn, high)]

    def _end_of_step(self, window: _Window) -> int:
        steps = self.trace.steps
        place = int(np.searchsorted(steps.start_ns, window.low, side="right")) - 1
        return int(steps.end_ns[max(place, 0)])


def _covered_before(busy: Intervals, at: int) -> int:
    if len(busy.starts) == 0:
        return 0
    low = np.array([int(busy.starts[0])], dtype=np.int64)
    return int(covered_within(busy, low, np.maximum(np.array([at], dtype=np.int64), low))[0])


def _forward_share(work: Sequence[_Work], cut: Sequence[dict[int, list[_Window]]]) -> float:
    """Share of the forward in a forward and a backward, over stages that have both alone."""
    shares = []
    for item, windows in zip(work, cut, strict=True):
        found: dict[Kind, list[int]] = {Kind.FORWARD: [], Kind.BACKWARD: []}
        for step in windows.values():
            for window in step[:-1]:
                if len(window.actions) == 1:
                    found[window.actions[0].kind].append(item.length(window.low, window.high))
        if all(found.values()):
            forward, backward = (float(np.median(times)) for times in found.values())
            if forward + backward > 0:
                shares.append(forward / (forward + backward))
    return float(np.median(shares)) if shares else 1 / 3
