"""Planting faults in a live job.

Time is lost by sleeping wherever it can be: a sleep is exact, whatever else
runs on the machine, and takes no core from the other ranks.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tracekit.core.fault import Dataloader, Delay, Gc, SlowLink, SlowRank, SlowStage
from tracekit.profile.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tracekit.workloads import Workload


class Planter:
    """Plants the faults of one rank into a built workload.

    The worker says which step begins. A pause then comes once, between the
    computation that leads to the step's first communication and that communication.
    """

    def __init__(self, plan: Plan, rank: int, workload: Workload) -> None:
        mine = [fault for fault in plan.faults if getattr(fault, "rank", rank) == rank]
        self._delays = [fault for fault in mine if isinstance(fault, Delay)]
        self._collections = [fault for fault in mine if isinstance(fault, Gc)]
        self._step = -1
        if self._delays or self._collections:
            # Prepended: the communication itself may be a forward hook of the same module.
            workload.first_exchange.register_forward_hook(self._pause, prepend=True)
        workload.batches.delay_s = sum(f.ms for f in mine if isinstance(f, Dataloader)) / 1000
        factor = 1.0
        for fault in mine:
            if isinstance(fault, SlowRank) or (
                isinstance(fault, SlowStage) and plan.coordinate(rank, "pp") == fault.stage
            ):
                factor *= fault.factor
        if factor > 1:
            slow_down(workload.layers, factor, "pp" in plan.degrees, plan.device)
        for fault in mine:
            if isinstance(fault, SlowLink) and rank in fault.ranks:
                peer = next(other for other in fault.ranks if other != rank)
                SlowSender(peer, fault.ms / 1000).plant()

    def begin(self, step: int) -> None:
        """Arm the pauses that hit this step."""
        self._step = step

    def _pause(self, *_: object) -> None:
        step, self._step = self._step, -1
        if step < 0:
            return
        due_ms = sum(delay.ms for delay in self._delays if delay.hits(step))
        if due_ms:
            time.sleep(due_ms / 1000)
        garbage_ms = sum(fault.ms for fault in self._collections if fault.hits(step))
        if garbage_ms:
            collect_slowly(garbage_ms / 1000)


class _Costly:
    """Garbage that takes a given time to collect."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.me = seconds, self

    def __del__(self) -> None:
        time.sleep(self.seconds)


def collect_slowly(seconds: float) -> None:
    """A garbage collection of the youngest generation that takes this long."""
    gc.collect(0)  # what is there already is not part of the time
    _Costly(seconds)
    gc.collect(0)


def slow_down(layers: Sequence[nn.Module], factor: float, pipelined: bool, device: str) -> None:
    """Let computation take ``factor`` times as long, by sleeping after it."""
    sleeping: list[Any] = [layer for layer in layers if hasattr(layer, "pause_s")]
    for layer in sleeping:
        layer.pause_s *= factor
    if sleeping:
        return
    clock = _Clock(device)
    if pipelined:
        _slow_stages(factor, clock)
    else:
        for layer in layers:
            _Drag(layer, factor, clock)


class _Clock:
    """Time this thread has computed: waiting, for other ranks above all, does not count."""

    def __init__(self, device: str) -> None:
        self._device = device

    def __call__(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.thread_time()


def _slow_stages(factor: float, clock: _Clock) -> None:
    """Wrap the work of this process's pipeline stages, for as long as it lives."""
    from torch.distributed.pipelining import stage

    def slowed(original: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = original(*args, **kwargs)
            time.sleep((factor - 1) * (clock() - start))
            return result

        return work

    for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
        owner: Any = stage._PipelineStageBase
        setattr(owner, name, slowed(getattr(owner, name)))


class _Drag:
    """Lets one layer's forward and backward take longer."""

    def __init__(self, layer: nn.Module, factor: float, clock: _Clock) -> None:
        self._extra, self._clock, self._start = factor - 1, clock, 0.0
        layer.register_forward_pre_hook(self._before)
        layer.register_forward_hook(self._after)

    def _before(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(inputs[0], torch.Tensor) and inputs[0].requires_grad:
            _on_gradient(inputs[0], self._sleep)  # its gradient ends the layer's backward
        self._begin()

    def _after(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        self._sleep()
        if output.requires_grad:
            _on_gradient(output, self._begin)

    def _begin(self, *_: object) -> None:
        self._start = self._clock()

    def _sleep(self, *_: object) -> None:
        time.sleep(self._extra * max(self._clock() - self._start, 0.0))


def _on_gradient(tensor: Any, act: Callable[..., None]) -> None:
    tensor.register_hook(act)


class SlowSender:
    """Puts every transfer to one peer on its way later, in order, without holding up the rank."""

    def __init__(self, peer: int, seconds: float) -> None:
        self._peer, self._seconds = peer, seconds
        self._queue: queue.SimpleQueue[tuple[float, dist.P2POp, _Late]] = queue.SimpleQueue()

    def plant(self) -> None:
        """Divert this process's pipeline transfers, for as long as it lives."""
        from torch.distributed.pipelining import schedules

        post = schedules._batch_p2p

        def diverted(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[Any]:
            late = [op for op in p2p_ops if op.op is dist.isend and op.peer == self._peer]
            rest = [op for op in p2p_ops if op not in late]
            works: dict[int, Any] = {id(op): self._send(op) for op in late}
            # One at a time, so that works and transfers stay in the same order.
            works |= {id(op): post([op], desc)[0] for op in rest}
            return [works[id(op)] for op in p2p_ops]

        schedules._batch_p2p = diverted
        threading.Thread(target=self._run, daemon=True).start()

    def _send(self, op: dist.P2POp) -> _Late:
        late = _Late()
        self._queue.put((time.monotonic() + self._seconds, op, late))
        return late

    def _run(self) -> None:
        while True:
            due, op, late = self._queue.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            late.work = dist.isend(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer)
            late.posted.set()


class _Late:
    """The handle of a transfer that has not been put on its way yet."""

    def __init__(self) -> None:
        self.posted = threading.Event()
        self.work: dist.Work | None = None

    def wait(self) -> None:
        self.posted.wait()
        if self.work is not None:
            self.work.wait()
