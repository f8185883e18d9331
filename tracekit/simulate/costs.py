"""How long everything takes: kernels, launches, transfers and pauses, with noise and faults.

All draws depend on the seed and on the program only, never on the faults: a job and
its twin without the fault see the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core import fault
from tracekit.core.trace import Int64
from tracekit.simulate.job import WORLD, Job
from tracekit.simulate.program import Do, Op
from tracekit.simulate.routing import Routing

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Of one pipeline rank, over all steps: (operations, width) int64 ns.

    Attributes:
        host_ns: time the host spends on each operation.
        work_ns: time of a kernel alone; of a transfer once all have arrived.
        end_noise_ns: by how much a rank sees a collective end later than the others.
    """

    host_ns: Int64
    work_ns: Int64
    end_noise_ns: Int64


def costs(job: Job, pp: int, ops: tuple[Op, ...], routing: Routing) -> Costs:
    """The costs of all steps of one pipeline rank."""
    return _Maker(job, pp, ops, routing).made()


class _Maker:
    def __init__(self, job: Job, pp: int, ops: tuple[Op, ...], routing: Routing) -> None:
        self.job, self.spec, self.pp, self.ops = job, job.spec, pp, ops
        self.routing = routing
        self.random = np.random.default_rng([self.spec.seed, pp])
        self.ranks = np.array(job.ranks(pp))
        self.rows = {kind: [n for n, op in enumerate(ops) if op.do is kind] for kind in Do}
        self._slow: dict[str, npt.NDArray[np.bool_]] = {}
        self.shape = (self.spec.steps, len(ops), job.width)

    def made(self) -> Costs:
        work = np.zeros(self.shape)
        self._compute(work)
        self._collectives(work)
        self._transfers(work)
        size = (self.spec.steps * len(self.ops), self.job.width)
        noise = np.abs(self.random.standard_normal(self.shape)) * self.spec.end_noise_us * 1000
        return Costs(
            self._whole(self._host()).reshape(size),
            self._whole(work).reshape(size),
            self._whole(noise).reshape(size),
        )

    @staticmethod
    def _whole(values: Floats) -> Int64:
        return np.rint(values).astype(np.int64)

    def _spread(self, ratio: float, rows: list[int]) -> Floats:
        """Factors around 1, lognormal with mean 1: (steps, rows, width)."""
        drawn = self.random.standard_normal((self.spec.steps, len(rows), self.job.width))
        return np.exp(ratio * drawn - ratio**2 / 2)

    # -- kernels -----------------------------------------------------------------------

    def _compute(self, work: Floats) -> None:
        rows = self.rows[Do.COMPUTE]
        nominal = np.array([self.ops[row].cost_ns for row in rows])
        times = nominal[None, :, None] * self._spread(self.spec.noise_ratio, rows)
        tail = self.random.random(times.shape) < self.spec.tail_ratio
        times[tail] *= self.spec.tail_factor
        trend = np.linspace(0, self.spec.trend_ratio, len(rows)) if rows else np.zeros(0)
        times *= (1 + trend)[None, :, None]
        times *= self._slowness()[None, None, :]
        for place, row in enumerate(rows):
            if self.ops[row].routed:
                op = self.ops[row]
                times[:, place] *= self.routing.load_ratio(self.pp, op.layer, op.microbatch)
        work[:, rows] = times

    def _slowness(self) -> Floats:
        """(width,) factor of the planted slow ranks and stages."""
        factor = np.ones(self.job.width)
        for planted in self.spec.planted():
            if isinstance(planted, fault.SlowRank):
                factor[self.ranks == planted.rank] *= planted.factor
            elif isinstance(planted, fault.SlowStage) and planted.stage == self.pp:
                factor *= planted.factor
        return factor

    # -- the host ----------------------------------------------------------------------

    def _host(self) -> Floats:
        host = np.zeros(self.shape)
        launched = [
            number
            for number, op in enumerate(self.ops)
            if op.do in (Do.COMPUTE, Do.COLLECTIVE, Do.SEND, Do.RECV) and op.head
        ]
        host[:, launched] = self.spec.launch_us * 1000 * self._spread(0.05, launched)
        paused = self.rows[Do.PAUSE]
        data = self.spec.data_us * 1000 * self._spread(0.05, paused)
        for place, row in enumerate(paused):
            if self.ops[row].name == "data":
                host[:, row] = data[:, place]
        for planted in self.spec.planted():
            self._pause(host, planted)
        return host

    def _pause(self, host: Floats, planted: fault.Fault) -> None:
        """Add what a fault makes the host do."""
        every = range(self.spec.steps)
        match planted:
            case fault.Delay(rank, ms) | fault.Gc(rank, ms):
                name = "delay" if isinstance(planted, fault.Delay) else "gc"
                steps = [step for step in every if planted.hits(step)]
            case fault.Dataloader(rank, ms):
                name, steps = "data", list(every)
            case _:
                return
        at = np.flatnonzero(self.ranks == rank)
        for row in self.rows[Do.PAUSE]:
            if self.ops[row].name == name and len(at):
                host[steps, row, at[0]] += ms * 1e6

    # -- communication -------------------------------------------------------------------

    def _collectives(self, work: Floats) -> None:
        rows = self.rows[Do.COLLECTIVE]
        spread = self._spread(self.spec.jitter_ratio, rows)
        for place, row in enumerate(rows):
            op = self.ops[row]
            time = self._collective(op, 0)
            for step in range(self.spec.steps):
                if op.routed:
                    time = self._collective(op, step)
                jitter = spread[step, place]
                if op.axis == WORLD:
                    jitter = np.ones(self.job.width)  # one for all: no rank may draw its own
                else:
                    jitter = self.job.members_reduce(jitter, op.axis, largest=False)
                work[step, row] = time * jitter
            if not op.blocking:
                work[:, row] *= self.spec.transfer_contention

    def _collective(self, op: Op, step: int) -> Floats:
        """(width,) nominal transfer time, equal within each group."""
        slow = self._spans_hosts(op.axis)
        latency, bandwidth = self._link(slow)
        members = self.spec.world_size if op.axis == WORLD else self.spec.degree(op.axis)
        size = np.full(self.job.width, float(op.size * op.width))
        if op.routed:
            rows = self.routing.largest_rows(self.pp, step, op.layer, op.microbatch)
            size = rows * float(self.spec.hidden * op.width)
        factor = (members - 1) / members
        if op.name == "all_reduce":
            factor *= 2
        elif op.name == "all_gather":
            size = size * members
        return latency + size * factor / bandwidth + self._slow_link(op)

    def _spans_hosts(self, axis: str) -> npt.NDArray[np.bool_]:
        if axis == WORLD:
            return np.full(self.job.width, self.spec.world_size > self.spec.ranks_per_host)
        if axis not in self._slow:
            self._slow[axis] = self.job.slow(self.pp, axis)
        return self._slow[axis]

    def _link(self, slow: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Latency in ns and bandwidth in bytes per ns."""
        spec = self.spec
        latency = np.where(slow, spec.inter_latency_us, spec.intra_latency_us) * 1000
        return latency, np.where(slow, spec.inter_gbps, spec.intra_gbps)

    def _slow_link(self, op: Op) -> Floats:
        """(width,) what a slow link adds: rings pass it where its ends are neighbours."""
        extra = np.zeros(self.job.width)
        for planted in self.spec.planted():
            if not isinstance(planted, fault.SlowLink):
                continue
            for place, rank in enumerate(self.ranks.tolist()):
                members = self.job.group(rank, op.axis).ranks
                if uses_link(op.name, members, planted.ranks):
                    extra[place] += planted.ms * 1e6
        return extra

    def _transfers(self, work: Floats) -> None:
        """P2p; the time counts on the side of the sender, the receiver takes it over."""
        rows = self.rows[Do.SEND]
        spread = self._spread(self.spec.jitter_ratio, rows)
        for place, row in enumerate(rows):
            op = self.ops[row]
            peers = self.ranks + (op.peer - self.pp) * self.job.width
            hosts = self.ranks // self.spec.ranks_per_host
            latency, bandwidth = self._link(hosts != peers // self.spec.ranks_per_host)
            time = latency + op.size * op.width / bandwidth
            for planted in self.spec.planted():
                if isinstance(planted, fault.SlowLink):
                    ends = np.sort(np.stack((self.ranks, peers)), axis=0).T
                    time = time + (ends == planted.ranks).all(axis=1) * planted.ms * 1e6
            work[:, row] = time * spread[:, place]


def uses_link(name: str, members: tuple[int, ...], link: tuple[int, int]) -> bool:
    """Whether a collective over these members sends over this link."""
    if not set(link) <= set(members):
        return False
    one, other = (members.index(rank) for rank in link)
    apart = abs(one - other)
    return name == "all_to_all" or apart in (1, len(members) - 1)
