"""A second source of traces, written apart from tracekit.simulate, from the trace format alone.

Each rank is a program of launches; the programs run against each other in events, and what
they did is written as Kineto writes it (``kineto.py``). Modelled are:

* a host that launches ahead of its device, waits for it once a step, and pauses where a fault
  says so, beside its data loader;
* one compute stream, and one stream per process group or pair of ranks;
* collectives that end one transfer after the last member has come, about 1 µs apart, and
  transfers between stages that do the same, or that leave eagerly and bind nobody;
* tensor, data, pipeline (1F1B) and expert parallelism, alone and together;
* host clocks that are apart, and windows that begin and end in other steps, or within them.

Not modelled are clocks that drift, kernels that slow each other down, and sharded parameters.
Times are µs of one true clock until they are written.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.independent import kernels
from tests.independent.kernels import Work

TOKENS, HIDDEN = 4096, 2048  # of one rank; elements of each
COMPUTE_STREAM = 7
LAUNCH_RATIO = 0.5  # of an operator's time goes before the launch


@dataclass(frozen=True)
class Fault:
    """What is planted on some ranks.

    ``size`` is for ``slow`` the factor of compute kernels (of operators with ``only`` in their
    names), for ``link`` the µs added to each transfer of the group of kind ``axis`` that the
    ranks are, for ``hot`` the share of all tokens that goes to the expert on these ranks, and
    for the others ms of pause of the host in every ``every``-th step: ``delay`` before the
    first communication, ``gc`` within forward, ``backward`` within backward, ``data`` loading.
    """

    kind: Literal["slow", "link", "hot", "delay", "gc", "backward", "data"]
    ranks: tuple[int, ...]
    size: float
    axis: str = ""
    only: str = ""
    every: int = 1


@dataclass(frozen=True)
class Spec:
    """A job, what is wrong with it, and what its traces show of it."""

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    microbatches: int = 1
    layers: int = 4  # of each stage
    steps: int = 7  # recorded; one more goes before them
    seed: int = 0
    noise: float = 0.02  # of kernel durations, lognormal
    load_us: float = 150.0  # data loading of every rank
    hiccups: float = 0.0  # chance per step of a pause of 0.3 to 1.5 ms, on every rank
    late_sync: bool = False  # the host waits for the step before, not for this one
    norm: bool = True  # the ranks end a step by an all-reduce over all of them
    eager: bool = False  # sends leave without the receiver
    faults: tuple[Fault, ...] = ()
    offset_ms: float = 0.0  # of rank 1's clock to that of rank 0; no other is further off
    numbered: bool = True  # collectives carry sequence numbers
    described: bool = True  # process groups say what they are for
    token_names: bool = True  # kernels of experts have names of their own
    # Windows hold all steps, miss none to two of them at either end, or miss parts of steps too.
    windows: Literal["full", "steps", "times"] = "full"

    @property
    def size(self) -> int:
        return self.tp * self.dp * self.pp * self.ep

    @property
    def stage_size(self) -> int:
        return self.tp * self.ep * self.dp

    def place(self, rank: int) -> tuple[int, int, int, int]:
        """Coordinates of a rank: tp, ep, dp, pp."""
        expert, replica = rank // self.tp % self.ep, rank // (self.tp * self.ep) % self.dp
        return rank % self.tp, expert, replica, rank // self.stage_size


class Group(NamedTuple):
    """A process group."""

    name: str
    description: str
    ranks: tuple[int, ...]


# Which coordinates the members of a group share.
AXES = {"tp": (1, 2, 3), "ep": (0, 2, 3), "dp": (0, 1, 3), "dp_ep": (0, 3), "pp": (0, 1, 2)}


def groups_of(spec: Spec) -> dict[str, dict[int, Group]]:
    """The group of each rank, per axis; groups of one rank are not made."""
    everybody = Group("0", "default_pg", tuple(range(spec.size)))
    made = {"world": dict.fromkeys(everybody.ranks, everybody)}
    count = 0
    for axis, shared in AXES.items():
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in everybody.ranks:
            place = spec.place(rank)
            members.setdefault(tuple(place[i] for i in shared), []).append(rank)
        made[axis] = {}
        for key in sorted(members):
            count += 1
            if len(members[key]) > 1 and (axis != "dp_ep" or spec.ep > 1):
                description = f"mesh_{axis}" if spec.described else "undefined"
                group = Group(str(count), description, tuple(members[key]))
                made[axis].update(dict.fromkeys(group.ranks, group))
    return made


@dataclass
class Transfer:
    """One collective, or one transfer between two ranks: who came when, and left when."""

    key: str
    members: tuple[int, ...]
    came_us: dict[int, float] = field(default_factory=dict)
    end_us: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """What a rank hands to the library for one transfer."""

    kind: str
    axis: str
    sent: int
    received: int
    transfer_us: float
    send_split: tuple[int, ...] = ()
    receive_split: tuple[int, ...] = ()
    peer: int = -1


@dataclass
class Kernel:
    """A kernel or copy, with the operator that launched it."""

    step: int
    operator: str
    name: str
    thread: int
    stream: int
    correlation: int
    host_us: float
    costs_us: float  # of the host
    start_us: float
    end_us: float
    grid: int
    call: Call | None = None
    number: int = 0

    @property
    def launch_us(self) -> float:
        return self.host_us + LAUNCH_RATIO * self.costs_us

    @property
    def is_copy(self) -> bool:
        return self.name.startswith("Memcpy")


class HostSpan(NamedTuple):
    """An annotation or a runtime call that the host was in."""

    step: int
    name: str
    category: str
    start_us: float
    end_us: float
    thread: int


class Job:
    """All ranks of a job, run against each other."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.groups = groups_of(spec)
        self.transfers: dict[str, Transfer] = {}
        self.ranks = [Rank(self, rank) for rank in range(spec.size)]
        run_together({rank.rank: rank.program() for rank in self.ranks})
        for rank in self.ranks:
            for kernel, transfer in rank.open:
                kernel.end_us = transfer.end_us[rank.rank]

    def duration_us(self, steps: list[int]) -> float:
        """From the device's end of the step before the first of ``steps`` to that of the last."""
        ends = [max(rank.step_end_us[step] for rank in self.ranks) for step in range(steps[-1] + 1)]
        return ends[steps[-1]] - ends[steps[0] - 1]

    def tokens(self, what: str, members: tuple[int, ...]) -> list[list[int]]:
        """How many tokens each member sends to each member's expert."""
        rng = random.Random(f"{self.spec.seed}/tokens/{what}/{members}")
        weights = [rng.lognormvariate(0, 0.02) for _ in members]
        for fault in self.spec.faults:
            if fault.kind == "hot":
                cold = (1 - fault.size) / (len(members) - 1)
                for i, rank in enumerate(members):
                    weights[i] *= fault.size if rank in fault.ranks else cold
        rows = []
        for _ in members:
            wanted = [weight * rng.lognormvariate(0, 0.01) for weight in weights]
            row = [int(TOKENS * weight / sum(wanted)) for weight in wanted]
            row[0] += TOKENS - sum(row)
            rows.append(row)
        return rows

    def come(self, transfer: Transfer, call: Call, rank: int, at_us: float) -> None:
        """Has a rank come to a transfer, which ends once all its members have."""
        spec = self.spec
        transfer.came_us[rank] = at_us
        if spec.eager and call.kind == "send":
            rng = random.Random(f"{spec.seed}/eager/{transfer.key}")
            transfer.end_us[rank] = at_us + call.transfer_us * rng.lognormvariate(0, 0.05)
        if len(transfer.came_us) < len(transfer.members):
            return
        rng = random.Random(f"{spec.seed}/{transfer.key}")
        takes_us = call.transfer_us * rng.lognormvariate(0, 0.03)
        for fault in spec.faults:
            if fault.kind == "link" and (fault.axis, fault.ranks) == (
                call.axis,
                tuple(sorted(transfer.members)),
            ):
                takes_us += fault.size
        if transfer.end_us:  # eager: the receiver copies what has arrived
            sender, receiver = transfer.members
            arrived_us = max(transfer.came_us[receiver] + 25, transfer.end_us[sender] + 4)
            transfer.end_us[receiver] = arrived_us + takes_us - call.transfer_us
            return
        end_us = max(transfer.came_us.values()) + takes_us
        for member in transfer.members:
            apart_us = max(-3.0, min(3.0, rng.gauss(0, 1)))
            transfer.end_us[member] = max(end_us + apart_us, transfer.came_us[member] + 1)


Program = Iterator[Transfer]


def run_together(programs: dict[int, Program]) -> None:
    """Runs the programs, each of which yields the transfers whose end it must know to go on."""
    waits: dict[int, Transfer] = {}
    while programs:
        ready = [r for r in programs if r not in waits or r in waits[r].end_us]
        if not ready:
            raise RuntimeError(f"the ranks wait for each other: {waits}")
        for rank in ready:
            try:
                waits[rank] = next(programs[rank])
            except StopIteration:
                del programs[rank]


class Rank:
    """One rank: its host's clock, its streams, and what it did."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.spec, self.rank = job, job.spec, rank
        self.rng = random.Random(f"{job.spec.seed}/rank/{rank}")
        self.hiccups = random.Random(f"{job.spec.seed}/hiccups/{rank}")
        self.stage = job.spec.place(rank)[3]
        self.host_us = 1000.0 + 50 * rank % 170
        self.compute_us = 0.0  # when the compute stream is free
        self.compute_waits: list[Transfer] = []  # that the compute stream waits for
        self.at_end: list[Transfer] = []  # that the optimizer waits for
        self.last_of: dict[str, Transfer] = {}  # per communication stream
        self.counts: dict[str, int] = {}
        self.thread = self.forward_thread = 4000 + rank
        self.step = 0
        self.has_communicated = False
        self.kernels: list[Kernel] = []
        self.spans: list[HostSpan] = []
        self.open: list[tuple[Kernel, Transfer]] = []
        self.step_end_us: list[float] = []  # of the device
        self.step_host_us: list[tuple[float, float]] = []

    # What the host and the device do.

    def costs(self, typical_us: float) -> float:
        return typical_us * self.rng.lognormvariate(0, 0.15)

    def planted(self, kind: str) -> Iterator[Fault]:
        for fault in self.spec.faults:
            if fault.kind == kind and self.rank in fault.ranks and self.step % fault.every == 0:
                yield fault

    def pause(self, kind: str) -> None:
        self.host_us += sum(fault.size for fault in self.planted(kind)) * 1000

    def settle(self) -> Program:
        """Has the compute stream wait for the transfers whose results come next."""
        for transfer in self.compute_waits:
            yield from self.known(transfer)
            self.compute_us = max(self.compute_us, transfer.end_us[self.rank])
        self.compute_waits = []

    def known(self, transfer: Transfer) -> Program:
        if self.rank not in transfer.end_us:
            yield transfer

    def compute(self, operator: str, name: str, typical_us: float) -> Program:
        """Launches a kernel or copy on the compute stream."""
        yield from self.settle()
        costs_us = self.costs(8.0)
        arrives_us = self.host_us + LAUNCH_RATIO * costs_us + 3.0 + self.rng.random()
        begin_us = max(arrives_us, self.compute_us + 0.9)
        takes_us = typical_us * self.rng.lognormvariate(0, self.spec.noise)
        for fault in self.planted("slow"):
            if fault.only in operator and not name.startswith("Memcpy"):
                takes_us *= fault.size
        self.compute_us = begin_us + takes_us
        grid = max(1, round(typical_us * 4))
        self.launched(operator, name, COMPUTE_STREAM, costs_us, begin_us, grid)
        self.host_us += costs_us + 1.0

    def launched(
        self, operator: str, name: str, stream: int, costs_us: float, begin_us: float, grid: int
    ) -> Kernel:
        """Writes down a kernel that was just launched, by an operator that took ``costs_us``."""
        kernel = Kernel(
            self.step,
            operator,
            name,
            self.thread,
            stream,
            len(self.kernels) + 1,
            self.host_us,
            costs_us,
            begin_us,
            self.compute_us,  # of a transfer only known when all have come
            grid,
        )
        self.kernels.append(kernel)
        return kernel

    def communicate(self, call: Call) -> Program:
        """Launches one transfer on its own stream, once what it sends is computed."""
        if not self.has_communicated:
            self.pause("delay")
        self.has_communicated = True
        members = self.job.groups[call.axis][self.rank].ranks
        if call.peer >= 0:
            ends = (self.rank, call.peer)
            members = ends if call.kind == "send" else ends[::-1]
        path = f"{call.axis}/{members}"
        number = self.counts[path] = self.counts.get(path, 0) + 1
        key = f"{path}/{number}"
        transfer = self.job.transfers.setdefault(key, Transfer(key, members))
        yield from self.settle()
        free_us = 0.0
        if path in self.last_of:
            yield from self.known(self.last_of[path])
            free_us = self.last_of[path].end_us[self.rank] + 1.0
        self.last_of[path] = transfer
        costs_us = self.costs(22.0)
        arrives_us = self.host_us + LAUNCH_RATIO * costs_us + 4.0 + self.rng.random()
        begin_us = max(arrives_us, self.compute_us + 1.5, free_us)
        stream = 20 + 4 * list(self.last_of).index(path)
        name = kernels.COMMUNICATION[call.kind]
        kernel = self.launched("record_param_comms", name, stream, costs_us, begin_us, 132)
        kernel.call, kernel.number = call, number
        self.host_us += costs_us + 2.0
        self.job.come(transfer, call, self.rank, begin_us)
        self.open.append((kernel, transfer))
        if call.kind == "send" or call.axis in ("dp", "dp_ep"):
            self.at_end.append(transfer)
        else:
            self.compute_waits.append(transfer)

    def span(self, name: str, category: str, start_us: float) -> None:
        self.spans.append(HostSpan(self.step, name, category, start_us, self.host_us, self.thread))

    def synchronize(self) -> Program:
        """The host waits for the compute stream."""
        yield from self.settle()
        start_us = self.host_us
        self.host_us = max(start_us + 5, self.compute_us + 8)
        self.span("cudaStreamSynchronize", "cuda_runtime", start_us)

    # What a step is made of.

    def all_of(self, works: tuple[Work, ...]) -> Program:
        for work in works:
            yield from self.compute(*work)

    def tensor_parallel(self) -> Program:
        if self.spec.tp > 1:
            size = 4 << 20
            yield from self.communicate(Call("allreduce", "tp", size, size, 60 + 40 * self.spec.tp))

    def experts(self, what: str, works: tuple[Work, ...], *, forward: bool) -> Program:
        """The experts' work, on the tokens that came, between two exchanges of tokens."""
        members = self.job.groups["ep"][self.rank].ranks
        here, ones = members.index(self.rank), (1,) * len(members)
        rows = self.job.tokens(f"{self.step}/{what}", members)
        to, came = tuple(rows[here]), tuple(row[here] for row in rows)
        busiest = max(sum(column) for column in zip(*rows, strict=True))
        takes_us = 30 + busiest * HIDDEN * 2 / 100e3
        sent, received = sum(to) * HIDDEN, sum(came) * HIDDEN
        if forward:  # how many tokens come, which the host must know
            size = len(members)
            yield from self.communicate(Call("all_to_allv", "ep", size, size, 18.0, ones, ones))
            yield from self.synchronize()
        yield from self.communicate(Call("all_to_allv", "ep", sent, received, takes_us, to, came))
        prefix = "grouped_" if self.spec.token_names else ""
        for operator, name, typical_us in works:
            yield from self.compute(operator, prefix + name, typical_us * sum(came) / TOKENS)
        yield from self.communicate(Call("all_to_allv", "ep", received, sent, takes_us, came, to))

    def mlp(self, what: str, works: tuple[Work, ...], *, forward: bool) -> Program:
        if self.spec.ep > 1:
            yield from self.experts(what, works, forward=forward)
        else:
            yield from self.all_of(works)

    def forward(self, microbatch: int) -> Program:
        spec, self.thread = self.spec, self.forward_thread
        if self.hiccups.random() < spec.hiccups / spec.microbatches:
            self.host_us += self.hiccups.uniform(300, 1500)
        if self.stage == 0:
            yield from self.compute("aten::embedding", kernels.EMBEDDING, 40)
        for layer in range(spec.layers):
            yield from self.all_of(kernels.ATTENTION)
            yield from self.tensor_parallel()
            yield from self.all_of(kernels.BETWEEN)
            if layer == spec.layers // 2 and microbatch == 0:
                self.pause("gc")
            yield from self.mlp(f"{layer}/{microbatch}", kernels.MLP, forward=True)
            yield from self.tensor_parallel()
        if self.stage == spec.pp - 1:
            yield from self.all_of(kernels.HEAD)

    def backward(self, microbatch: int) -> Program:
        spec, self.thread = self.spec, self.forward_thread + 5000
        last = microbatch == spec.microbatches - 1
        if self.stage == spec.pp - 1:
            yield from self.all_of(kernels.HEAD_GRAD)
        for layer in reversed(range(spec.layers)):
            yield from self.mlp(f"{layer}/{microbatch}", kernels.MLP_GRAD, forward=False)
            yield from self.all_of(kernels.BETWEEN_GRAD)
            yield from self.tensor_parallel()
            if last and layer == spec.layers // 2:
                self.pause("backward")
            yield from self.all_of(kernels.ATTENTION_GRAD)
            yield from self.tensor_parallel()
            if last and layer % 2 == 0:
                yield from self.reduce_gradients()
        self.thread = self.forward_thread

    def reduce_gradients(self) -> Program:
        size = 12 << 20
        for axis, count in (("dp_ep", self.spec.dp * self.spec.ep), ("dp", self.spec.dp)):
            if self.rank in self.job.groups[axis]:
                takes_us = 30 + 2 * (count - 1) / count * size * 2 / 120e3
                yield from self.communicate(Call("allreduce", axis, size, size, takes_us))

    def exchange(self, kind: str, stages: int) -> Program:
        """Sends to, or receives from, the rank that is so many stages on; ends have no peer."""
        if 0 <= self.stage + stages < self.spec.pp:
            size, peer = 4 << 20, self.rank + stages * self.spec.stage_size
            yield from self.communicate(Call(kind, "pp", size, size, 90.0, peer=peer))

    def microbatches(self) -> Program:
        """1F1B: as many forwards ahead as stages follow, then one of each by turns."""
        spec = self.spec
        ahead = min(spec.microbatches, spec.pp - 1 - self.stage)
        order = [(i, True) for i in range(ahead)]
        for i in range(spec.microbatches):
            order += [(i + ahead, True)] if i + ahead < spec.microbatches else []
            order += [(i, False)]
        for microbatch, is_forward in order:
            onward = 1 if is_forward else -1
            yield from self.exchange("recv", -onward)
            yield from (self.forward if is_forward else self.backward)(microbatch)
            yield from self.exchange("send", onward)

    def load_data(self) -> Program:
        start_us = self.host_us + 2
        self.host_us = start_us + self.costs(self.spec.load_us)
        self.pause("data")
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        self.span(name, "user_annotation", start_us)
        self.host_us += 8
        yield from self.compute("aten::copy_", "Memcpy HtoD (Pinned -> Device)", 30)

    def optimize(self) -> Program:
        self.compute_waits += self.at_end
        self.at_end = []
        yield from self.compute("aten::_foreach_norm", kernels.ADD, 30)
        if self.spec.norm:
            yield from self.communicate(Call("allreduce", "world", 1, 1, 25.0))
        start_us = self.host_us
        for _ in range(4):
            yield from self.compute("aten::_fused_adamw_", kernels.ADAM, 60)
        self.span("Optimizer.step#AdamW.step", "user_annotation", start_us)

    def program(self) -> Program:
        before_us = 0.0
        for step in range(self.spec.steps + 1):
            self.step = step
            start_us, self.has_communicated = self.host_us, False
            yield from self.load_data()
            yield from self.microbatches()
            yield from self.optimize()
            if self.spec.late_sync:
                wait_us = self.host_us
                self.host_us = max(wait_us + 3, before_us + 8)
                self.span("cudaEventSynchronize", "cuda_runtime", wait_us)
            else:
                yield from self.compute("aten::item", "Memcpy DtoH (Device -> Pageable)", 2)
                yield from self.synchronize()
            before_us = self.compute_us
            self.step_end_us.append(before_us)
            self.span(f"ProfilerStep#{self.step}", "user_annotation", start_us)
            self.step_host_us.append((start_us, self.host_us))
            self.host_us += self.costs(20)
