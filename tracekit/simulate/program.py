"""What one pipeline rank does in a step: its operations in the host's order.

All ranks of one pipeline rank run the same program; what differs between them
(routing, faults, noise) is in their times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from tracekit.core.schedule import Action, Kind, Pipeline, with_transfers
from tracekit.simulate import model
from tracekit.simulate.job import WORLD
from tracekit.simulate.spec import Spec

ELEMENT_BYTES = 2  # bfloat16
COUNT_BYTES = 8  # int64
_GRADIENT_SHAPES = 12  # parameters of a layer are about 12 * hidden ** 2


class Do(IntEnum):
    """Kinds of operation."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    WAIT = 4  # the compute stream waits for communication
    PAUSE = 5  # the host does something else: "data", "delay" or "gc"
    SYNC = 6  # the host waits for the device
    OPEN = 7  # begin of a marked stretch of the host's time
    CLOSE = 8


Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
        name: kernel class, collective, pause, or marker.
        cost_ns: nominal time of a kernel.
        work: F, B, I, W of the action it belongs to, O for the optimizer, else "".
        key: what a WAIT calls it by.
        needs: keys that must be over: of a WAIT, or of a collective's other inputs.
        axis: of the group of a collective.
        size: elements that one rank puts in; of an exchange the mean over ranks.
        blocking: the compute stream waits for it at once.
        peer: pipeline rank at the other end of a transfer.
        routed: a kernel or exchange whose size depends on the routing of its layer.
        head: its launch costs host time; False inside a replayed graph.
        back: of a CLOSE, how many operations ago it was opened.
        batch: of a coalesced transfer: itself and those after it in its kernel; else 0.
    """

    do: Do
    name: str
    cost_ns: float = 0.0
    work: str = ""
    stage: int = -1
    microbatch: int = -1
    layer: int = -1
    key: Key = ()
    needs: tuple[Key, ...] = ()
    axis: str = ""
    size: int = 0
    width: int = ELEMENT_BYTES
    blocking: bool = False
    peer: int = -1
    routed: bool = False
    head: bool = True
    back: int = 0
    batch: int = 0


def programs(spec: Spec) -> tuple[tuple[Op, ...], ...]:
    """The program of one step of each pipeline rank."""
    plan = spec.pipeline()
    table = with_transfers(plan)
    return tuple(tuple(_Builder(spec, plan, pp).step(table[pp])) for pp in range(spec.pp))


def _op(do: Do, name: str, action: Action) -> Op:
    """An operation of an action."""
    return Op(do, name, work=action.kind.value, stage=action.stage, microbatch=action.microbatch)


def _coalesced(ops: list[Op]) -> list[Op]:
    """The same operations, transfers that follow each other in one kernel."""
    out = ops.copy()
    following = 0
    for place in reversed(range(len(ops))):
        is_transfer = ops[place].do in (Do.SEND, Do.RECV)
        following = following + 1 if is_transfer else 0
        if is_transfer:
            out[place] = replace(ops[place], batch=following)
    return out


class _Builder:
    """Writes the operations of one pipeline rank."""

    def __init__(self, spec: Spec, plan: Pipeline, pp: int) -> None:
        self.spec, self.plan, self.pp = spec, plan, pp
        self.per_stage = spec.layer_count // plan.placement.stages
        self.tokens = spec.batch * spec.seq
        self.paused = False
        self.gradients: list[Key] = []

    def step(self, actions: tuple[Action, ...]) -> Iterator[Op]:
        """All operations of a step, stretches closed."""
        ops: list[Op] = []
        self._emit(ops, [Op(Do.OPEN, "step"), Op(Do.PAUSE, "data")])
        for number, action in enumerate(actions):
            if number == len(actions) // 2:
                ops.append(Op(Do.PAUSE, "gc"))
            if action.kind.value in ("F", "B", "I", "W"):
                self._marked(ops, action)
            else:
                self._emit(ops, [self._transfer(action)])
        self._emit(ops, self._optimizer())
        if not self.paused:  # nothing is communicated
            ops.append(Op(Do.PAUSE, "delay"))
        ops.append(Op(Do.SYNC, "sync"))
        ops.append(Op(Do.CLOSE, "step", back=len(ops)))
        yield from _coalesced(ops) if self.spec.coalesced else ops

    def _marked(self, ops: list[Op], action: Action) -> None:
        """An action between its marker's begin and end; the wait for its input lies before."""
        wait = self._input(action)
        if wait is not None:
            ops.append(wait)
        begin = len(ops)
        ops.append(_op(Do.OPEN, "stage", action))
        made = self._action(action)
        self._emit(ops, self._launched_at_once(made) if self.spec.graph else made)
        ops.append(replace(_op(Do.CLOSE, "stage", action), back=len(ops) - begin))

    def _emit(self, ops: list[Op], made: Iterator[Op] | list[Op]) -> None:
        """Append; the pause of a delay comes before the step's first communication."""
        for op in made:
            if not self.paused and op.do in (Do.COLLECTIVE, Do.SEND, Do.RECV):
                ops.append(Op(Do.PAUSE, "delay"))
                self.paused = True
            ops.append(op)

    # -- transfers between stages --------------------------------------------------------

    def _transfer(self, action: Action) -> Op:
        forward = action.kind in (Kind.SEND_F, Kind.RECV_F)
        sends = action.kind in (Kind.SEND_F, Kind.SEND_B)
        other = action.stage + (1 if forward == sends else -1)
        to = other if sends else action.stage
        return Op(
            Do.SEND if sends else Do.RECV,
            "send" if sends else "recv",
            stage=action.stage,
            microbatch=action.microbatch,
            key=("F" if forward else "B", to, action.microbatch),
            peer=self.plan.placement.rank_of(other),
            size=self.tokens * self.spec.hidden,
        )

    def _input(self, action: Action) -> Op | None:
        """The wait for what another rank sends, if it does."""
        place = self.plan.placement
        forward = action.kind is Kind.FORWARD
        if forward:
            source = action.stage - 1
        elif action.kind is Kind.WEIGHT:
            return None
        else:
            source = action.stage + 1
        if not 0 <= source < place.stages or place.rank_of(source) == self.pp:
            return None
        key: Key = ("F" if forward else "B", action.stage, action.microbatch)
        return Op(Do.WAIT, "recv", needs=(key,))

    # -- the work of a stage -------------------------------------------------------------

    def _action(self, action: Action) -> Iterator[Op]:
        work, layers = action.kind.value, range(self.per_stage)
        if work == "F":
            for layer in layers:
                yield from self._gathered(action, layer, layers)
                yield from self._forward(action, layer)
            return
        if work in ("B", "I"):
            for layer in reversed(layers):
                yield from self._gathered(action, layer, layers[::-1])
                yield from self._backward(action, layer)
                if work == "B":
                    yield from self._weights(action, layer)
        if work == "W":
            for layer in reversed(layers):
                yield from self._weights(action, layer)

    def _launched_at_once(self, made: Iterator[Op]) -> Iterator[Op]:
        """The same operations, replayed from a graph."""
        head = True
        for op in made:
            on_device = op.do in (Do.COMPUTE, Do.COLLECTIVE)
            yield replace(op, head=head) if on_device else op
            head = head and not on_device

    def _scaled(
        self, action: Action, layer: int, parts: tuple[model.Part, ...], ratio: float
    ) -> Iterator[Op]:
        factors = self.spec.stage_factors
        factor = factors[action.stage] if factors else 1.0
        for name, share in parts:
            yield replace(
                _op(Do.COMPUTE, name, action),
                cost_ns=self.spec.forward_us * 1000 * ratio * share * factor,
                layer=self._global(action, layer),
                routed=name == "experts",
            )

    def _global(self, action: Action, layer: int) -> int:
        return action.stage * self.per_stage + layer

    def _forward(self, action: Action, layer: int) -> Iterator[Op]:
        first, second = self._halves()
        yield from self._block(action, layer, first, 1.0)
        if self.spec.ep > 1:
            yield from self._scaled(action, layer, model.ROUTER, 1.0)
            yield from self._exchange(action, layer, "dispatch")
            yield from self._scaled(action, layer, model.EXPERTS, 1.0)
            yield from self._exchange(action, layer, "combine")
            yield from self._tensor_parallel(action, layer, after=True)
        elif second:
            yield from self._block(action, layer, second, 1.0)

    def _backward(self, action: Action, layer: int) -> Iterator[Op]:
        first, second = (model.backward(part) for part in self._halves())
        ratio = self.spec.input_ratio
        if self.spec.ep > 1:
            yield from self._exchange(action, layer, "combine")
            yield from self._scaled(action, layer, model.EXPERTS, ratio)
            yield from self._exchange(action, layer, "dispatch")
            yield from self._scaled(action, layer, model.backward(model.ROUTER), ratio)
            yield from self._tensor_parallel(action, layer, after=True)
        elif second:
            yield from self._block(action, layer, second, ratio)
        yield from self._block(action, layer, first, ratio)

    def _weights(self, action: Action, layer: int) -> Iterator[Op]:
        parts = sum(self._halves(), ())
        if self.spec.ep > 1:
            parts += model.ROUTER + model.EXPERTS
        yield from self._scaled(action, layer, model.weights(parts), self.spec.weight_ratio)
        if action.microbatch == self._last_microbatch(action):
            yield from self._reduced(action, layer)

    def _halves(self) -> tuple[tuple[model.Part, ...], tuple[model.Part, ...]]:
        """The kernels up to each tensor-parallel sum; those of experts are apart."""
        if self.spec.fused:
            apart = model.ROUTER + model.EXPERTS if self.spec.ep > 1 else ()
            return (("layer", 1.0 - sum(share for _, share in apart)),), ()
        return model.ATTENTION, () if self.spec.ep > 1 else model.DENSE

    def _block(
        self, action: Action, layer: int, parts: tuple[model.Part, ...], ratio: float
    ) -> Iterator[Op]:
        yield from self._tensor_parallel(action, layer, after=False)
        yield from self._scaled(action, layer, parts, ratio)
        yield from self._tensor_parallel(action, layer, after=True)

    # -- communication inside a stage ------------------------------------------------------

    def _tensor_parallel(self, action: Action, layer: int, after: bool) -> Iterator[Op]:
        """The sum over tp after a block; with sequence parallelism, a gather before as well."""
        if self.spec.tp == 1 or not (after or self.spec.sequence_parallel):
            return
        name, size = "all_reduce", self.tokens * self.spec.hidden
        if self.spec.sequence_parallel:
            name = "reduce_scatter" if after else "all_gather"
            size = size if after else size // self.spec.tp
        yield self._collective(action, layer, name, "tp", size)

    def _collective(self, action: Action, layer: int, name: str, axis: str, size: int) -> Op:
        return replace(
            _op(Do.COLLECTIVE, name, action),
            layer=self._global(action, layer),
            axis=axis,
            size=size,
            blocking=True,
        )

    def _exchange(self, action: Action, layer: int, name: str) -> Iterator[Op]:
        """Tokens to their experts or back; the counts go ahead of a forward's dispatch."""
        rows = self.tokens * self.spec.top_k
        call = self._collective(action, layer, "all_to_all", "ep", rows * self.spec.hidden)
        if name == "dispatch" and action.kind is Kind.FORWARD:
            yield replace(call, size=self.spec.experts, width=COUNT_BYTES)
        yield replace(call, routed=True, key=(name,))

    def _gathered(self, action: Action, layer: int, order: range) -> Iterator[Op]:
        """The layer's parameters, gathered while the layer before it computes."""
        if self.spec.fsdp == 1:
            return
        place = order.index(layer)
        ahead = [order[place]] if place == 0 else []
        ahead += [order[place + 1]] if place + 1 < len(order) else []
        for number in ahead:
            size = self._parameters() // self.spec.fsdp
            call = self._collective(action, number, "all_gather", "fsdp", size)
            yield replace(call, key=self._shard(action, number), blocking=False)
        yield Op(Do.WAIT, "parameters", needs=(self._shard(action, layer),))

    def _shard(self, action: Action, layer: int) -> Key:
        return ("gather", action.kind.value, action.stage, layer, action.microbatch)

    def _parameters(self) -> int:
        """Parameters of a layer on one rank of a tp group."""
        return _GRADIENT_SHAPES * self.spec.hidden**2 // self.spec.tp

    def _last_microbatch(self, action: Action) -> int:
        """The last microbatch whose weight gradients this stage makes."""
        kinds = (Kind.BACKWARD, Kind.WEIGHT)
        return [
            a.microbatch
            for a in self.plan.table[self.pp]
            if a.stage == action.stage and a.kind in kinds
        ][-1]

    def _reduced(self, action: Action, layer: int) -> Iterator[Op]:
        """A layer's gradients, summed while the next layer's are made."""
        before: tuple[Key, ...] = ()
        size = self._parameters()
        for axis, name in (
            ("fsdp", "reduce_scatter"),
            ("ep", "all_reduce"),
            ("dp", "all_reduce"),
        ):
            if self.spec.degree(axis) == 1:
                continue
            key: Key = ("gradients", axis, action.stage, layer)
            call = self._collective(action, layer, name, axis, size)
            yield replace(call, key=key, needs=before, blocking=False)
            before = (key,)
            self.gradients.append(key)
            if name == "reduce_scatter":
                size //= self.spec.fsdp

    def _optimizer(self) -> Iterator[Op]:
        if self.gradients:
            yield Op(Do.WAIT, "gradients", needs=tuple(self.gradients))
        if self.spec.norm and self.spec.world_size > 1:
            yield Op(Do.COLLECTIVE, "all_reduce", axis=WORLD, size=1, width=4, key=("norm",))
            yield Op(Do.WAIT, "norm", needs=(("norm",),))
        if self.spec.optimizer_us:
            chunks = self.plan.placement.chunks
            cost = self.spec.optimizer_us * 1000 * self.per_stage * chunks
            yield Op(Do.COMPUTE, "optimizer", cost_ns=cost, work="O")
