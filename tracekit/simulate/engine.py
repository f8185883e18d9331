"""Runs a job: when every operation of every rank was launched, began and ended.

The programs of the pipeline ranks advance in turn; each operation is one array
over the ranks that run it. A stream works in order. A collective begins on a rank
when that rank's stream reaches it (arrival), waits there for the last member, then
transfers, and ends on all members at once. A coalesced kernel ends with the last of its
transfers. Times are int64 ns from the job's start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracekit.core.trace import Int64
from tracekit.simulate.contention import stretched
from tracekit.simulate.costs import Costs, costs
from tracekit.simulate.job import WORLD, Job
from tracekit.simulate.program import Do, Key, Op, programs
from tracekit.simulate.routing import Routing
from tracekit.simulate.spec import Spec

COMPUTE_STREAM = 7
_FIRST_STREAM = 13  # of communication


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """What one pipeline rank did: (operations of all steps, width) int64 ns.

    Attributes:
        ops: the operations of one step.
        launch: when the host began with each operation; launched: when it was done.
        start: on the device: of a kernel; of communication the arrival.
        end: on the device.
        ready: of communication: when the last member had arrived.
        stream: of each operation of a step on the device, else -1.
    """

    ops: tuple[Op, ...]
    costs: Costs
    launch: Int64
    launched: Int64
    start: Int64
    end: Int64
    ready: Int64
    stream: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A run job: one lane per pipeline rank."""

    job: Job
    lanes: tuple[Lane, ...]
    routing: Routing

    def step_ends(self) -> Int64:
        """(steps,) when the last rank has finished each step."""
        ends: Int64 = self._edges("end").max(axis=1)
        return ends

    def step_starts(self) -> Int64:
        """(steps,) when the first rank begins each step."""
        starts: Int64 = self._edges("start").min(axis=1)
        return starts

    def _edges(self, which: str) -> Int64:
        steps = self.job.spec.steps
        found = []
        for lane in self.lanes:
            row = len(lane.ops) - 1 if which == "end" else 0
            values = lane.end if which == "end" else lane.launch
            found.append(values.reshape(steps, len(lane.ops), -1)[:, row])
        return np.concatenate(found, axis=1)


def run(spec: Spec) -> Timeline:
    """Run a job to its end."""
    job = Job(spec)
    routing = Routing(job)
    links = _Links(job)
    lanes = [
        _Running(job, pp, ops, costs(job, pp, ops, routing), links)
        for pp, ops in enumerate(programs(spec))
    ]
    while not all(lane.over for lane in lanes):
        moved = [lane.advance() for lane in lanes]
        assert any(moved), "the ranks of the described job wait for each other"
    return Timeline(job, tuple(lane.lane() for lane in lanes), routing)


class _Links:
    """Meets the two ends of transfers, and the pipeline ranks of collectives over all."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._posted: dict[tuple[Key, int], dict[int, tuple[_Running, int]]] = defaultdict(dict)

    def transfer(self, lane: _Running, row: int, op: Op) -> None:
        """Post one end; the later one settles both."""
        ends = self._posted[(op.key, lane.step_of(row))]
        ends[lane.pp] = (lane, row)
        if len(ends) < 2:
            return
        del self._posted[(op.key, lane.step_of(row))]
        ready = np.maximum(*(one.start[at] for one, at in ends.values()))
        time = next(one.costs.work_ns[at] for one, at in ends.values() if one.op(at).do is Do.SEND)
        for one, at in ends.values():
            one.settle(at, ready, ready + time)

    def everyone(self, lane: _Running, row: int, op: Op) -> None:
        """Post one pipeline rank's part of a collective over all; the last settles it."""
        ends = self._posted[(op.key, lane.step_of(row))]
        ends[lane.pp] = (lane, row)
        if len(ends) < self.job.spec.pp:
            return
        del self._posted[(op.key, lane.step_of(row))]
        last = max(int(one.start[at].max()) for one, at in ends.values())
        for one, at in ends.values():
            ready = np.full(self.job.width, last)
            one.settle(at, ready, ready + one.costs.work_ns[at])


class _Running:
    """One pipeline rank on its way."""

    def __init__(self, job: Job, pp: int, ops: tuple[Op, ...], own: Costs, links: _Links) -> None:
        self.job, self.spec, self.pp, self.ops, self.costs = job, job.spec, pp, ops, own
        self.links = links
        self.total = self.spec.steps * len(ops)
        self.at = 0
        self.launch, self.launched, self.start, self.end, self.ready = (
            np.zeros((self.total, job.width), dtype=np.int64) for _ in range(5)
        )
        zero = np.zeros(job.width, dtype=np.int64)
        self.host, self.compute = zero, zero
        self.streams: dict[str, Int64] = {}
        self.open: dict[str, list[int]] = defaultdict(list)  # posted, not settled, in order
        self.rows: dict[Key, int] = {}  # the last row of a key
        self.settled = np.zeros(self.total, dtype=np.bool_)
        self.met: set[int] = set()  # transfers over whose kernel is not
        self.recent: list[int] = []  # communication that may still be running
        self.latency = int(self.spec.launch_latency_us * 1000)
        self.inline = self.spec.backend == "gloo"
        self.segments = _segments(ops, bool(self.spec.contention))

    @property
    def over(self) -> bool:
        return self.at == self.total

    def op(self, row: int) -> Op:
        return self.ops[row % len(self.ops)]

    def step_of(self, row: int) -> int:
        return row // len(self.ops)

    def lane(self) -> Lane:
        names = sorted({name for op in self.ops if (name := stream_name(op))})
        numbers = {name: _FIRST_STREAM + place for place, name in enumerate(names)}
        return Lane(
            self.ops, self.costs, self.launch, self.launched, self.start, self.end, self.ready,
            tuple(
                COMPUTE_STREAM if op.do is Do.COMPUTE else numbers.get(stream_name(op), -1)
                for op in self.ops
            ),
        )  # fmt: skip

    # -- the loop ------------------------------------------------------------------------

    def advance(self) -> bool:
        """Go on until something is missing; whether anything was done."""
        begin = self.at
        while self.at < self.total:
            place = self.at % len(self.ops)
            count = self.segments[place]
            if count > 1:
                self._kernels(self.at, self.at + count)
                self.at += count
                continue
            if not self._one(self.at, self.ops[place]):
                break
            self.at += 1
        return self.at > begin

    def _one(self, row: int, op: Op) -> bool:
        """Do one operation; False where it must wait for another pipeline rank."""
        match op.do:
            case Do.COMPUTE:
                if self.spec.contention:
                    return self._contended(row, op)
                self._kernels(row, row + 1)
            case Do.COLLECTIVE:
                return self._collective(row, op)
            case Do.SEND | Do.RECV:
                return self._transfer(row, op)
            case Do.WAIT:
                return self._wait(row, op)
            case Do.SYNC:
                return self._sync(row)
            case _:
                self._host(row)
        return True

    def _host(self, row: int) -> None:
        """A pause, or the edge of a marked stretch."""
        self.launch[row] = self.host
        self.host = self.host + self.costs.host_ns[row]
        self.launched[row] = self.start[row] = self.end[row] = self.host
        if self.inline:
            self.compute = np.maximum(self.compute, self.host)

    def _launches(self, first: int, last: int) -> Int64:
        """Advance the host over these rows; when the device may begin each."""
        used = np.cumsum(self.costs.host_ns[first:last], axis=0)
        launched = self.host + used
        self.launch[first:last] = launched - self.costs.host_ns[first:last]
        self.launched[first:last] = launched
        self.host = launched[-1]
        return launched + self.latency

    def _kernels(self, first: int, last: int) -> None:
        """Kernels in a row: each begins when it is launched and the one before is over."""
        if self.inline:
            self._operators(first, last)
            return
        ready = self._launches(first, last)
        work = self.costs.work_ns[first:last]
        done = np.cumsum(work, axis=0)
        slack = ready - (done - work)
        slack[0] = np.maximum(slack[0], self.compute)
        end = done + np.maximum.accumulate(slack, axis=0)
        self.start[first:last] = end - work
        self.end[first:last] = end
        self.compute = end[-1]

    def _operators(self, first: int, last: int) -> None:
        """The same without a device: the host does the work itself."""
        work = self.costs.work_ns[first:last]
        both = work + self.costs.host_ns[first:last]
        end = self.host + np.cumsum(both, axis=0)
        self.launch[first:last] = end - both
        self.start[first:last] = self.launched[first:last] = end - work
        self.end[first:last] = end
        self.host = self.compute = end[-1]

    def _contended(self, row: int, op: Op) -> bool:
        """A kernel that communication on the same rank slows down."""
        if not all(self.settled[other] for other in self.recent):
            return False
        ready = self.host if self.inline else self._launches(row, row + 1)[0]
        begin = np.maximum(self.compute, ready)
        self.recent = [at for at in self.recent if (self.end[at] > begin).any()]
        table = self.spec.contention
        factor = table.get(op.name, table.get("*", 1.0))
        spans = [(self.start[at], self.end[at]) for at in self.recent]
        end = stretched(begin, self.costs.work_ns[row], spans, factor)
        if self.inline:
            self.launch[row] = self.launched[row] = self.host
            self.host = end
        self.start[row], self.end[row] = begin, end
        self.compute = end
        return True

    # -- communication -------------------------------------------------------------------

    def _arrive(self, row: int, op: Op) -> bool:
        """Launch communication; when its stream reaches it. False where that is not known yet.

        Of a coalesced kernel, all of its transfers.
        """
        stream = stream_name(op)
        before = self.open[stream]
        waits = [self.rows[key] for key in op.needs]
        if before or not all(self.settled[at] for at in waits):
            return False
        rows = range(row, row + max(op.batch, 1))
        ready = self._launches(row, rows.stop)[-1] - (self.latency if self.inline else 0)
        if self.inline:
            self.compute = np.maximum(self.compute, self.host)
        begin = np.maximum(ready, self.compute)
        for at in waits:
            begin = np.maximum(begin, self.end[at])
        if stream in self.streams:
            begin = np.maximum(begin, self.streams[stream])
        for at in rows:
            self.start[at] = begin
            self.rows[self.op(at).key] = at
        if self.spec.contention:
            self.recent.extend(rows)
        return True

    def settle(self, row: int, ready: Int64, end: Int64) -> None:
        """The last member has arrived: the end is known."""
        stream = stream_name(self.op(row))
        self.ready[row] = ready
        self.end[row] = end + self.costs.end_noise_ns[row]
        rows = self._kernel(row)
        self.met.add(row)
        if not self.met.issuperset(rows):
            return
        self.met.difference_update(rows)
        self.end[rows.start : rows.stop] = self.end[rows.start : rows.stop].max(axis=0)
        self.streams[stream] = self.end[row]
        self.settled[rows.start : rows.stop] = True
        self.open[stream] = [at for at in self.open[stream] if at not in rows]

    def _kernel(self, row: int) -> range:
        """All rows of the kernel of a row."""
        first = row
        while self.op(row).batch and self.op(first - 1).batch == self.op(first).batch + 1:
            first -= 1
        return range(first, first + max(self.op(first).batch, 1))

    def _collective(self, row: int, op: Op) -> bool:
        """Done at once, unless it runs over the pipeline ranks as well."""
        if not self._arrive(row, op):
            return False
        if op.axis == WORLD:
            self.open[stream_name(op)].append(row)
            self.links.everyone(self, row, op)
            return True
        ready = self.job.members_reduce(self.start[row], op.axis)
        self.settle(row, ready, ready + self.costs.work_ns[row])
        if op.blocking:
            self._meet(row)
        return True

    def _transfer(self, row: int, op: Op) -> bool:
        if row != self._kernel(row).start:
            return True  # posted with the first of its kernel
        if not self._arrive(row, op):
            return False
        rows = self._kernel(row)
        self.open[stream_name(op)].extend(rows)
        for at in rows:
            self.links.transfer(self, at, self.op(at))
        return True

    def _wait(self, row: int, op: Op) -> bool:
        rows = [self.rows[key] for key in op.needs]
        if not all(self.settled[at] for at in rows):
            return False
        self.launch[row] = self.start[row] = self.host
        for at in rows:
            self._meet(at)
        self.launched[row] = self.end[row] = self.host
        return True

    def _meet(self, row: int) -> None:
        """The compute stream goes on when this communication is over."""
        self.compute = np.maximum(self.compute, self.end[row])
        if self.inline:
            self.host = np.maximum(self.host, self.compute)

    def _sync(self, row: int) -> bool:
        """The host waits for all streams."""
        if any(self.open.values()):
            return False
        self.launch[row] = self.start[row] = self.host
        for end in (self.compute, *self.streams.values()):
            self.host = np.maximum(self.host, end)
        self.launched[row] = self.end[row] = self.host
        self.compute = np.maximum(self.compute, self.host)
        return True


def stream_name(op: Op) -> str:
    """Which stream communication runs on: one per axis, and one per peer and direction.

    Coalesced transfers share the one of their group.
    """
    if op.do is Do.COLLECTIVE:
        return op.axis
    if op.batch:
        return "coalesced"
    if op.do in (Do.SEND, Do.RECV):
        return f"{op.name}{op.peer}"
    return ""


def _segments(ops: tuple[Op, ...], one_by_one: bool) -> tuple[int, ...]:
    """For each operation: how many kernels in a row begin here."""
    counts = [1] * (len(ops) + 1)
    for place in reversed(range(len(ops))):
        follows = place + 1 < len(ops) and ops[place + 1].do is Do.COMPUTE
        if ops[place].do is Do.COMPUTE and follows and not one_by_one:
            counts[place] = counts[place + 1] + 1
    return tuple(counts[:-1])


def spans(lane: Lane, name: str) -> Iterator[tuple[int, int]]:
    """Rows of one step at which the stretches of this name open and close."""
    for place, op in enumerate(lane.ops):
        if op.do is Do.CLOSE and op.name == name:
            yield place - op.back, place
