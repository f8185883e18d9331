"""A run as a graph of work and joins, from which "what if" can be asked.

Each rank is a chain of *work*: time in which its device computes (*busy*) or in which
nothing runs and nothing is waited for (*gap*: the host is late). The chain is cut
where a call is posted and where one ends while nothing computes: there the rank
waited for it. A call arrives when the chain has reached it and the call before it on
its stream has ended; an instance ends its transfer after its last member arrived.
Waiting is no work: in a replay it comes out anew.

Limits: which kernel waits for which call is not recorded. A wait that cost nothing is
not seen, so a call nobody waited for is joined at the end of its step, unless marks of
the stages' work tell what needs it (:mod:`tracekit.core.receives`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.coalesced import end_with_others
from tracekit.core.collective import Matching
from tracekit.core.intervals import Intervals, union
from tracekit.core.receives import received
from tracekit.core.replay import Float, Graph, graph
from tracekit.core.timing import Timing
from tracekit.core.trace import Int64, KernelKind, RankTrace, StepFlag

Bool = npt.NDArray[np.bool_]
_TOGETHER_NS = 1_000  # parts of one call, and calls that are started as one, end this close
_OVERHANG_NS = 3_000
_WAKE_UP_NS = 10_000  # work follows what it waited for within this
_TOUCHING_NS = 5_000  # a call this soon after the one before it on its stream waited for it


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The steps that are replayed: the same ones on all ranks, without cut ones.

    Attributes:
        numbers: (steps,) step numbers.
        bounds_ns: (traces, steps + 1) int64 ns, on the common clock.
    """

    numbers: Int64
    bounds_ns: Int64

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return len(self.numbers)

    @property
    def base_ns(self) -> int:
        """What replayed times count from: float64 keeps nanoseconds only near zero."""
        return int(self.bounds_ns.min())


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The graph of a run's window, with what its nodes are.

    Attributes:
        graph: the edges; None when the calls contradict each other in time.
        begin_ns: (nodes,) float64 ns after ``window.base_ns``.
        busy_ns, gap_ns: (nodes,) float64 ns, their sum is the node's work.
        trace: (nodes,) int32 whose work it is, -1 for a transfer.
        step: (nodes,) int32 place in the window, -1 for a transfer.
        instance: (nodes,) int32 of a transfer, else -1.
        at_ns: (nodes,) int64 ns, when the node ended in truth.
        end: (traces,) the last node of each rank.
        step_end: (traces, steps) the last node of each step.
        arrive: (calls in the graph,) node of each call's arrival.
        arrive_row: (calls in the graph,) its row in the matching, -1 for one that stands alone.
        arrive_instance: (calls in the graph,) its instance, -1 for one that stands alone.
        cuts: per trace, where its chain is cut, and the node that ends there.
    """

    window: Window
    graph: Graph | None
    begin_ns: Float
    busy_ns: Float
    gap_ns: Float
    trace: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    instance: npt.NDArray[np.int32]
    at_ns: Int64
    end: npt.NDArray[np.intp]
    step_end: npt.NDArray[np.intp]
    arrive: npt.NDArray[np.intp]
    arrive_row: Int64
    arrive_instance: Int64
    cuts: tuple[tuple[Int64, npt.NDArray[np.intp]], ...]


def window(traces: Sequence[RankTrace], clock: Sequence[ClockFit]) -> Window | None:
    """The steps all ranks have whole; the common time as one step where none are marked."""
    if not traces or any(len(trace.steps) == 0 for trace in traces):
        return None
    if all(trace.steps_marked for trace in traces):
        common = _common_steps(traces)
        if len(common) == 0:
            return None
        bounds = []
        for trace, fit in zip(traces, clock, strict=True):
            place = np.searchsorted(trace.steps.number, common)
            start = fit.aligned(trace.steps.start_ns[place])
            end = fit.aligned(trace.steps.end_ns[place])
            bounds.append(np.concatenate((start, end[-1:])))
        return Window(common, np.array(bounds, dtype=np.int64))
    low = [
        int(fit.aligned(trace.steps.start_ns[:1])[0])
        for trace, fit in zip(traces, clock, strict=True)
    ]
    high = [
        int(fit.aligned(trace.steps.end_ns[-1:])[0])
        for trace, fit in zip(traces, clock, strict=True)
    ]
    bounds_ns = np.empty((len(traces), 2), dtype=np.int64)
    for component in {fit.component for fit in clock}:
        members = [place for place, fit in enumerate(clock) if fit.component == component]
        bounds_ns[members, 0] = max(low[place] for place in members)
        bounds_ns[members, 1] = min(high[place] for place in members)
    if (bounds_ns[:, 1] <= bounds_ns[:, 0]).any():
        return None
    return Window(np.zeros(1, dtype=np.int64), bounds_ns)


def _common_steps(traces: Sequence[RankTrace]) -> Int64:
    """Numbers of the longest run of steps that every rank holds whole."""
    good: set[int] | None = None
    whole: set[int] | None = None
    for trace in traces:
        complete = _complete_steps(trace)
        numbers = set(trace.steps.number[complete].tolist())
        clean = set(trace.steps.number[complete & (trace.steps.flag == StepFlag.OK)].tolist())
        good = clean if good is None else good & clean
        whole = numbers if whole is None else whole & numbers
    chosen = np.array(sorted(good or whole or ()), dtype=np.int64)
    if len(chosen) == 0:
        return chosen
    runs = np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1)
    return max(runs, key=len)


def _complete_steps(trace: RankTrace) -> Bool:
    """(steps,) without the first and last ones that hold fewer calls than the others do."""
    count = len(trace.steps)
    step = trace.kernels.step[trace.calls.kernel]
    calls = np.bincount(step[step >= 0], minlength=count)
    kernels = np.bincount(trace.kernels.step[trace.kernels.step >= 0], minlength=count)
    out = np.ones(count, dtype=np.bool_)
    if count < 3:
        return out
    for place in (0, count - 1):
        short = calls[place] < np.median(calls)
        out[place] = not short and kernels[place] >= 0.9 * np.median(kernels)
    return out


# -- building ------------------------------------------------------------------------


class _Nodes:
    """Nodes and edges as they are made, in blocks."""

    def __init__(self) -> None:
        self.count = 0
        self.columns: dict[str, list[npt.NDArray[Any]]] = {
            name: [] for name in ("busy", "gap", "trace", "step", "instance", "at", "begin")
        }
        self.source: list[npt.NDArray[np.intp]] = []
        self.target: list[npt.NDArray[np.intp]] = []

    def add(self, size: int, **columns: npt.ArrayLike) -> npt.NDArray[np.intp]:
        """New nodes; a column not given is 0, or -1 for one that names something."""
        for name, parts in self.columns.items():
            default = -1 if name in ("trace", "step", "instance") else 0
            parts.append(np.broadcast_to(np.asarray(columns.get(name, default)), (size,)))
        self.count += size
        return np.arange(self.count - size, self.count)

    def link(self, source: npt.NDArray[np.intp], target: npt.NDArray[np.intp]) -> None:
        """Edges between nodes; -1 is no node."""
        known = (source >= 0) & (target >= 0)
        self.source.append(source[known])
        self.target.append(target[known])

    def column(self, name: str) -> npt.NDArray[Any]:
        return np.concatenate(self.columns[name]) if self.columns[name] else np.empty(0)


def program(
    traces: Sequence[RankTrace],
    matching: Matching,
    clock: Sequence[ClockFit],
    times: Timing,
    chosen: Window,
) -> Program:
    """The graph of a run's window."""
    nodes = _Nodes()
    calls = [_calls(place, traces[place], clock[place], chosen) for place in range(len(traces))]
    row_of = [np.full(len(trace.calls), -1, dtype=np.int64) for trace in traces]
    rows = matching.rows
    for place in range(len(traces)):
        mine = np.flatnonzero(rows.trace == place)
        row_of[place][rows.call[mine]] = mine
    joined = _joined(matching, times, calls, row_of)
    transfer = _transfer(traces, matching, times)
    size = len(matching.instances)
    last = np.full(size, np.iinfo(np.int64).min)
    np.maximum.at(last, rows.instance, times.arrival_ns)
    instance_node = np.full(size, -1, dtype=np.intp)
    used = np.flatnonzero(joined)
    instance_node[used] = nodes.add(
        len(used), gap=transfer[used], instance=used, at=last[used] + transfer[used]
    )
    needs = received(traces, clock, matching)
    ends, step_ends, arrive, arrive_row, cuts = [], [], [], [], []
    arrive_instance = []
    for place, trace in enumerate(traces):
        made = _chain(
            nodes, place, trace, clock[place], chosen, calls[place], row_of[place],
            matching, joined, instance_node, last + transfer, needs[place],
        )  # fmt: skip
        ends.append(made.steps[-1])
        step_ends.append(made.steps)
        arrive.append(made.arrive)
        arrive_row.append(made.row)
        arrive_instance.append(made.instance)
        cuts.append((made.cut_ns, made.cut_node))
    return Program(
        window=chosen,
        graph=graph(
            nodes.count,
            np.concatenate(nodes.source) if nodes.source else np.empty(0, dtype=np.intp),
            np.concatenate(nodes.target) if nodes.target else np.empty(0, dtype=np.intp),
        ),
        begin_ns=nodes.column("begin").astype(np.float64),
        busy_ns=nodes.column("busy").astype(np.float64),
        gap_ns=nodes.column("gap").astype(np.float64),
        trace=nodes.column("trace").astype(np.int32),
        step=nodes.column("step").astype(np.int32),
        instance=nodes.column("instance").astype(np.int32),
        at_ns=nodes.column("at").astype(np.int64),
        end=np.array(ends, dtype=np.intp),
        step_end=np.array(step_ends, dtype=np.intp),
        arrive=np.concatenate(arrive).astype(np.intp) if arrive else np.empty(0, dtype=np.intp),
        arrive_row=np.concatenate(arrive_row) if arrive_row else np.empty(0, dtype=np.int64),
        arrive_instance=(
            np.concatenate(arrive_instance) if arrive_instance else np.empty(0, dtype=np.int64)
        ),
        cuts=tuple(cuts),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """Calls of one rank inside the window, in order of their start on the common clock."""

    call: Int64
    start: Int64
    end: Int64
    launch: Int64  # -1 when not recorded
    stream: Int64
    kernel: Int64  # of several calls where it is coalesced


def _calls(place: int, trace: RankTrace, fit: ClockFit, chosen: Window) -> _Calls:
    kernel = trace.calls.kernel
    start = fit.aligned(trace.kernels.start_ns[kernel])
    end = fit.aligned(trace.kernels.end_ns[kernel])
    low, high = chosen.bounds_ns[place, 0], chosen.bounds_ns[place, -1]
    rows = np.flatnonzero((start >= low) & (end <= high))
    rows = rows[np.argsort(start[rows], kind="stable")]
    launch = trace.kernels.launch_ns[kernel[rows]]
    device = trace.kernels.device[kernel[rows]].astype(np.int64)
    return _Calls(
        call=rows,
        start=start[rows],
        end=np.maximum(end[rows], start[rows]),
        launch=np.where(launch >= 0, fit.aligned(launch), -1),
        stream=(device << 32) + trace.kernels.stream[kernel[rows]],
        kernel=kernel[rows].astype(np.int64),
    )


def _joined(
    matching: Matching, times: Timing, calls: Sequence[_Calls], row_of: Sequence[Int64]
) -> Bool:
    """(instances,) those that join their members: complete, in the window, really waiting."""
    present = np.zeros(len(matching.instances), dtype=np.int64)
    for mine, row in zip(calls, row_of, strict=True):
        found = row[mine.call]
        np.add.at(present, matching.rows.instance[found[found >= 0]], 1)
    return times.waits_for_all & (present >= matching.instances.members)


def _transfer(traces: Sequence[RankTrace], matching: Matching, times: Timing) -> Float:
    """(instances,) ns that each instance's transfer takes once all have arrived.

    What a CPU backend records of a p2p transfer lasts until its rank waits for it, and a
    coalesced kernel until its last transfer is over. Both are no more than upper bounds: there
    the fast ones of the kind are taken; of a coalesced one, those between the same two ranks.
    """
    out = np.maximum(times.transfer, 0).astype(np.float64)
    cpu = np.array([trace.device_type == "cpu" for trace in traces] or [False], dtype=np.bool_)
    on_cpu = np.zeros(len(out), dtype=np.bool_)
    np.logical_or.at(on_cpu, matching.rows.instance, cpu[matching.rows.trace])
    known = matching.p2p() & times.comparable
    bound = known & (on_cpu | end_with_others(traces, matching))
    size, pair = matching.instances.bytes, np.where(on_cpu, -1, matching.instances.group)
    for kind in np.unique(np.stack((size[bound], pair[bound])), axis=1).T.tolist():
        alike = known & (size == kind[0]) & (pair == kind[1])
        fast = np.quantile(out[alike], 0.1)
        out[alike & bound] = np.minimum(out[alike & bound], fast)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    steps: list[int]
    arrive: npt.NDArray[np.intp]
    row: Int64
    instance: Int64
    cut_ns: Int64
    cut_node: npt.NDArray[np.intp]


def _chain(
    nodes: _Nodes, place: int, trace: RankTrace, fit: ClockFit, chosen: Window,
    calls: _Calls, row_of: Int64, matching: Matching, joined: Bool,
    instance_node: npt.NDArray[np.intp], over_ns: Float, needs: Int64,
) -> _Chain:  # fmt: skip
    """The nodes of one rank."""
    busy = _busy(trace, fit)
    bounds = chosen.bounds_ns[place]
    row = row_of[calls.call]
    instance = np.where(row >= 0, matching.rows.instance[row], -1) if len(row) else row
    real = (instance >= 0) & joined[instance] if len(row) else np.zeros(0, dtype=np.bool_)
    # Calls that stand alone keep their length as it was.
    ending = np.full(len(row), -1, dtype=np.intp)
    ending[real] = instance_node[instance[real]]
    alone = np.flatnonzero(~real)
    ending[alone] = nodes.add(
        len(alone), gap=calls.end[alone] - calls.start[alone], at=calls.end[alone]
    )
    over: Float = calls.end.astype(np.float64)
    over[real] = np.minimum(over_ns[instance[real]], calls.end[real])
    done, over = _kernel_ends(nodes, calls, ending, over)
    before = _before_on_stream(calls)
    anchor = _anchors(trace, fit, calls, before)
    seen = _seen_ends(busy, calls.end)
    waits = _uncovered(busy, seen) & ~_eager(trace, matching, calls)
    waits = _last_of_stretch(busy, anchor, seen, waits, seen < calls.end)
    needed = needs[calls.call]
    unseen = (needed >= seen) & ~waits
    seen = np.where(unseen, needed, seen)
    waits |= unseen
    # Cuts in order of time: waits before the calls they allow, ends of steps last.
    join_at = np.flatnonzero(waits)
    when = np.concatenate((seen[join_at], anchor, bounds[1:]))
    kind = np.repeat([0, 1, 2], [len(join_at), len(anchor), len(bounds) - 1])
    item = np.concatenate((join_at, np.arange(len(anchor)), np.arange(len(bounds) - 1)))
    order = np.lexsort((kind, when))
    when, kind, item = when[order], kind[order], item[order]
    previous = np.concatenate((bounds[:1], when[:-1]))
    until = when.copy()
    is_join = kind == 0
    # Work before a wait ends with the last thing computed; then come wait and wake-up.
    computed = _last_end(busy, when[is_join])
    until[is_join] = np.clip(computed, previous[is_join], when[is_join])
    busy_ns = _covered(busy, until) - _covered(busy, previous)
    step = np.clip(np.searchsorted(bounds, until, side="left") - 1, 0, len(bounds) - 2)
    work = nodes.add(
        len(when), busy=busy_ns, gap=np.maximum(until - previous - busy_ns, 0), trace=place,
        step=step, at=until,
        begin=np.where(np.arange(len(when)) == 0, bounds[0] - chosen.base_ns, 0),
    )  # fmt: skip
    lag = when[is_join] - np.maximum(until[is_join], over[item[is_join]])
    join = nodes.add(
        int(is_join.sum()), gap=np.maximum(lag, 0), trace=place, step=step[is_join],
        at=when[is_join],
    )  # fmt: skip
    tail = work.copy()
    tail[is_join] = join
    nodes.link(tail[:-1], work[1:])
    nodes.link(work[is_join], join)
    nodes.link(done[item[is_join]], join)
    # Arrivals.
    posts = np.flatnonzero(kind == 1)
    posted = item[posts]
    earlier = before[posted]
    free_at = np.where(earlier >= 0, over[earlier], -np.inf)
    start = calls.start[posted]
    late = start - np.maximum(anchor[posted], np.where(free_at <= start + 1, free_at, -np.inf))
    arrive = nodes.add(
        len(posted), gap=np.maximum(late, 0), trace=place, step=step[posts], at=start
    )
    nodes.link(work[posts], arrive)
    after = (earlier >= 0) & (free_at <= start + 1)
    nodes.link(done[earlier[after]], arrive[after])
    nodes.link(arrive, ending[posted])
    # What nobody was seen to wait for must be over at the end of its step.
    step_nodes = work[kind == 2]
    loose = np.setdiff1d(np.arange(len(calls.call)), join_at)
    ends_in = np.clip(
        np.searchsorted(bounds[1:], calls.end[loose], side="left"), 0, len(step_nodes) - 1
    )
    finish = nodes.add(len(step_nodes), trace=place, step=np.arange(len(step_nodes)), at=bounds[1:])
    nodes.link(step_nodes, finish)
    nodes.link(done[loose], finish[ends_in])
    closing = np.flatnonzero(kind == 2)
    following = closing + 1
    inner = following < len(when)
    nodes.link(finish[inner], work[following[inner]])
    known = real[posted]
    return _Chain(
        finish.tolist(), arrive, np.where(known, row[posted], -1),
        np.where(known, instance[posted], -1).astype(np.int64), until, work,
    )  # fmt: skip


def _kernel_ends(
    nodes: _Nodes, calls: _Calls, ending: npt.NDArray[np.intp], over: Float
) -> tuple[npt.NDArray[np.intp], Float]:
    """Node and time at which the kernel of each call is over.

    A coalesced kernel is over when the last of its transfers is.
    """
    unique, kernel, count = np.unique(calls.kernel, return_inverse=True, return_counts=True)
    kernel = kernel.reshape(-1)
    shared = np.flatnonzero(count[kernel] > 1)
    done, last = ending.copy(), over.copy()
    if len(shared) == 0:
        return done, last
    latest = np.full(len(unique), -np.inf)
    np.maximum.at(latest, kernel[shared], over[shared])
    last[shared] = latest[kernel[shared]]
    made = np.full(len(unique), -1, dtype=np.intp)
    chosen = np.flatnonzero(count > 1)
    made[chosen] = nodes.add(len(chosen), at=latest[chosen].astype(np.int64))
    done[shared] = made[kernel[shared]]
    nodes.link(ending[shared], done[shared])
    return done, last


def _busy(trace: RankTrace, fit: ClockFit) -> Intervals:
    """When the rank computes or copies, on the common clock."""
    own = trace.kernels.kind != KernelKind.COMMUNICATION
    return union(fit.aligned(trace.kernels.start_ns[own]), fit.aligned(trace.kernels.end_ns[own]))


def _eager(trace: RankTrace, matching: Matching, calls: _Calls) -> Bool:
    """Sends of a CPU backend: nobody waits for their receiver."""
    if trace.device_type != "cpu":
        return np.zeros(len(calls.call), dtype=np.bool_)
    return trace.calls_of({"send"})[calls.call]


def _before_on_stream(calls: _Calls) -> npt.NDArray[np.intp]:
    """The call before each on its stream, -1 for the first."""
    out = np.full(len(calls.call), -1, dtype=np.intp)
    order = np.lexsort((calls.start, calls.stream))
    same = calls.stream[order[1:]] == calls.stream[order[:-1]]
    out[order[1:][same]] = order[:-1][same]
    return out


def _anchors(trace: RankTrace, fit: ClockFit, calls: _Calls, before: npt.NDArray[np.intp]) -> Int64:
    """When the rank's own work had come as far as each call.

    That is its start, unless it had to wait for the call before it on its stream: then it
    was ready when what was launched before it had been computed.
    """
    anchor: Int64 = calls.start.copy()
    earlier = np.where(before >= 0, calls.end[before], np.iinfo(np.int64).min // 2)
    bound = (calls.start - earlier < _TOUCHING_NS) & (calls.launch >= 0) & (calls.launch < earlier)
    if not bound.any():
        return anchor
    own = (trace.kernels.kind != KernelKind.COMMUNICATION) & (trace.kernels.launch_ns >= 0)
    launch = fit.aligned(trace.kernels.launch_ns[own])
    end = fit.aligned(trace.kernels.end_ns[own])
    order = np.argsort(launch, kind="stable")
    reach = np.maximum.accumulate(end[order]) if len(order) else end
    place = np.searchsorted(launch[order], calls.launch[bound], side="left") - 1
    ready = np.where(place >= 0, reach[np.maximum(place, 0)], calls.launch[bound])
    anchor[bound] = np.minimum(np.maximum(ready, calls.launch[bound]), calls.start[bound])
    return anchor


def _uncovered(busy: Intervals, times: Int64) -> Bool:
    """Whether nothing is computed just before each time."""
    place = np.searchsorted(busy.starts, times, side="left") - 1
    if len(busy.ends) == 0:
        return np.ones(len(times), dtype=np.bool_)
    out: Bool = (place < 0) | (busy.ends[np.maximum(place, 0)] < times)
    return out


def _seen_ends(busy: Intervals, end: Int64) -> Int64:
    """Ends of calls, back to the begin of the computing that they let go.

    Work that waited for a call may start a little before the call's own last timestamp:
    clocks of the device's engines differ, and dependent launches overlap on purpose.
    """
    place = np.searchsorted(busy.starts, end, side="left") - 1
    if len(busy.starts) == 0:
        return end
    begin = busy.starts[np.maximum(place, 0)]
    out: Int64 = np.where((place >= 0) & (end - begin < _OVERHANG_NS), begin, end)
    return out


def _last_of_stretch(busy: Intervals, anchor: Int64, end: Int64, waits: Bool, over: Bool) -> Bool:
    """Of the calls that end in one idle stretch only the last: it is what work waited for.

    An idle stretch ends with the next computing or with the next call. What ended before in
    it, like a receive posted ahead, may have been waited for or not. A call that ends a
    little after the computing has begun (``over``) only counts when none ended just before.
    """
    rows = np.flatnonzero(waits)
    stretch = np.searchsorted(busy.starts, end[rows], side="left").astype(np.int64) << 32
    stretch += np.searchsorted(np.sort(anchor), end[rows], side="left")
    unique, key = np.unique(stretch, return_inverse=True)
    key = key.reshape(-1)
    last = np.full(len(unique), np.iinfo(np.int64).min)
    np.maximum.at(last, key, end[rows])
    before = np.full(len(unique), np.iinfo(np.int64).min)
    inside = ~over[rows]
    np.maximum.at(before, key[inside], end[rows[inside]])
    other = last - before < _WAKE_UP_NS
    out = np.zeros(len(waits), dtype=np.bool_)
    chosen = np.where(other, before, last)[key]
    out[rows] = (end[rows] >= chosen - _TOGETHER_NS) & ~(over[rows] & other[key])
    return out


def _last_end(busy: Intervals, times: Int64) -> Int64:
    """End of the last stretch of computing before each time; far in the past without one."""
    place = np.searchsorted(busy.starts, times, side="left") - 1
    if len(busy.ends) == 0:
        return np.full(len(times), np.iinfo(np.int64).min // 2)
    out: Int64 = np.where(place >= 0, busy.ends[np.maximum(place, 0)], np.iinfo(np.int64).min // 2)
    return out


def _covered(busy: Intervals, times: Int64) -> Int64:
    """Time computed before each time."""
    total = np.concatenate(([0], np.cumsum(busy.ends - busy.starts)))
    place = np.searchsorted(busy.starts, times, side="right")
    if len(busy.ends) == 0:
        return np.zeros(len(times), dtype=np.int64)
    open_still = np.maximum(busy.ends[np.maximum(place - 1, 0)] - times, 0)
    out: Int64 = total[place] - np.where(place > 0, open_still, 0)
    return out
