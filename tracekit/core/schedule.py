"""Pipeline schedules as plain tables: which stage works on which microbatch, in which order.

A table lists the actions of each pipeline rank in order. The compute order follows the
published schedules and equals torch.distributed.pipelining's: GPipe, 1F1B, interleaved 1F1B
(arXiv 2104.04473), ZB-H1 and its interleaved form, ZB-V (arXiv 2401.10241), DualPipeV (DeepSeek).
:func:`with_transfers` adds the sends and receives in an order in which no rank can hang.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from tracekit.core.errors import UsageError


class Kind(str, Enum):
    """What an action does; the values are torch's own short names."""

    FORWARD = "F"
    BACKWARD = "B"  # the whole backward: gradients of inputs and of weights
    INPUT = "I"  # gradients of inputs only
    WEIGHT = "W"  # gradients of weights only
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"


@dataclass(frozen=True, slots=True)
class Action:
    """One piece of work of a stage on a microbatch.

    ``paired`` marks a forward that runs interleaved with the backward that follows it.
    """

    kind: Kind
    stage: int
    microbatch: int
    paired: bool = False

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"


Table = tuple[tuple[Action, ...], ...]  # by pipeline rank


@dataclass(frozen=True, slots=True)
class Placement:
    """Where stages live: ``chunks`` of them on each of ``ranks`` pipeline ranks.

    Chunks go round the ranks in a loop, or there and back in a V.
    """

    ranks: int
    chunks: int
    vee: bool = False

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds a stage."""
        turn, place = divmod(stage, self.ranks)
        return self.ranks - 1 - place if self.vee and turn % 2 else place

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages of a pipeline rank, by chunk."""
        return tuple(stage for stage in range(self.stages) if self.rank_of(stage) == rank)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A schedule of a pipeline of this shape."""

    schedule: str
    placement: Placement
    microbatches: int
    table: Table


def pipeline(schedule: str, ranks: int, microbatches: int, chunks: int | None = None) -> Pipeline:
    """The schedule of this name.

    Args:
        schedule: one of :data:`SCHEDULES`.
        ranks: pipeline ranks.
        microbatches: per step.
        chunks: stages per rank; by default what the schedule is made for.

    Raises:
        UsageError: there is no such schedule, or it does not fit these numbers.
    """
    if schedule not in _MAKERS:
        raise UsageError(f"schedule {schedule!r} is not known; choose from {', '.join(SCHEDULES)}")
    make, least, most = _MAKERS[schedule]
    chunks = least if chunks is None else chunks
    if not least <= chunks <= most:
        wants = str(least) if least == most else f"at least {least}"
        raise UsageError(f"schedule {schedule}: {chunks} chunks per rank; it needs {wants}")
    placement = Placement(ranks, chunks, vee=schedule in ("zbv", "dualpipev"))
    table = tuple(tuple(make(placement, rank, microbatches)) for rank in range(ranks))
    return Pipeline(schedule, placement, microbatches, table)


# -- the schedules -------------------------------------------------------------------


class _Writer:
    """Writes one rank's actions; counts the microbatches of each stage and kind."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._next: Counter[tuple[Kind, int]] = Counter()
        self._weights: deque[tuple[int, int]] = deque()  # inputs done, weights still to do

    def forward(self, stage: int, paired: bool = False) -> None:
        self._add(Kind.FORWARD, stage, self._count(Kind.FORWARD, stage), paired)

    def backward(self, stage: int) -> None:
        self._add(Kind.BACKWARD, stage, self._count(Kind.INPUT, stage))

    def inputs(self, stage: int) -> None:
        microbatch = self._count(Kind.INPUT, stage)
        self._add(Kind.INPUT, stage, microbatch)
        self._weights.append((stage, microbatch))

    def weights(self, stage: int | None = None) -> None:
        """The oldest pending weight gradients, of any stage or of this one; none is no error."""
        for pending in self._weights:
            if stage in (None, pending[0]):
                self._weights.remove(pending)
                self._add(Kind.WEIGHT, *pending)
                return

    def _count(self, kind: Kind, stage: int) -> int:
        """The microbatch whose turn it is."""
        self._next[kind, stage] += 1
        return self._next[kind, stage] - 1

    def _add(self, kind: Kind, stage: int, microbatch: int, paired: bool = False) -> None:
        self.actions.append(Action(kind, stage, microbatch, paired))


def _gpipe(placement: Placement, rank: int, microbatches: int) -> list[Action]:
    out = _Writer()
    for stage in placement.stages_of(rank):
        for _ in range(microbatches):
            out.forward(stage)
    for stage in reversed(placement.stages_of(rank)):
        for _ in range(microbatches):
            out.backward(stage)
    return out.actions


def _one_forward_one_backward(placement: Placement, rank: int, microbatches: int) -> list[Action]:
    if microbatches < placement.ranks:
        raise UsageError(
            f"schedule 1f1b: {microbatches} microbatches are fewer than {placement.ranks} stages"
        )
    out = _Writer()
    ahead = placement.ranks - 1 - rank
    for _ in range(ahead):
        out.forward(rank)
    for _ in range(microbatches - ahead):
        out.forward(rank)
        out.backward(rank)
    for _ in range(ahead):
        out.backward(rank)
    return out.actions


def _interleaved(placement: Placement, rank: int, microbatches: int) -> list[Action]:
    order = _Rounds.of("interleaved_1f1b", placement, rank, microbatches)
    ahead = order.warm_up(hops_weigh=2)
    out = _Writer()
    for number in range(ahead):
        out.forward(order.forward_stage(number))
    for number in range(order.total - ahead):
        out.forward(order.forward_stage(number + ahead))
        out.backward(order.backward_stage(number))
    for number in range(order.total - ahead, order.total):
        out.backward(order.backward_stage(number))
    return out.actions


def _zero_bubble(placement: Placement, rank: int, microbatches: int) -> list[Action]:
    order = _Rounds.of("zero_bubble", placement, rank, microbatches)
    ahead = order.warm_up(hops_weigh=1)
    out = _Writer()
    for number in range(ahead):
        out.forward(order.forward_stage(number))
    for number in range(order.total):
        if number + ahead < order.total:
            out.forward(order.forward_stage(number + ahead))
        out.inputs(order.backward_stage(number))
        # A rank further down has more inputs to hand back before it may fill in weights.
        if number >= rank:
            out.weights()
    for _ in range(rank):
        out.weights()
    return out.actions


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The order in which a rank with several chunks goes through them, a round at a time."""

    placement: Placement
    rank: int
    microbatches: int
    per_round: int

    @classmethod
    def of(cls, name: str, placement: Placement, rank: int, microbatches: int) -> _Rounds:
        rounds = max(1, microbatches // placement.ranks)
        if microbatches % rounds:
            raise UsageError(
                f"schedule {name}: {microbatches} microbatches do not divide into {rounds} rounds; "
                f"use a multiple of {placement.ranks}"
            )
        return cls(placement, rank, microbatches, microbatches // rounds)

    @property
    def total(self) -> int:
        return self.placement.chunks * self.microbatches

    def warm_up(self, hops_weigh: int) -> int:
        """Forwards before the first backward."""
        last = (self.placement.chunks - 1) * self.per_round
        hops = self.placement.ranks - 1 - self.rank
        return min(last + hops_weigh * hops, self.total)

    def forward_stage(self, number: int) -> int:
        chunk = number // self.per_round % self.placement.chunks
        return chunk * self.placement.ranks + self.rank

    def backward_stage(self, number: int) -> int:
        chunk = self.placement.chunks - 1 - number // self.per_round % self.placement.chunks
        return chunk * self.placement.ranks + self.rank


def _zbv(placement: Placement, rank: int, microbatches: int) -> list[Action]:
    first, second = placement.stages_of(rank)
    # Fewer microbatches than fill the V are the same order with some left out.
    count = max(2 * placement.ranks - 1, microbatches)
    out = _Writer()
    for _ in range(2 * (placement.ranks - rank) - 1):
        out.forward(first)
    for _ in range(rank):
        out.forward(second)
        out.forward(first)
    for _ in range(placement.ranks - rank):
        out.forward(second)
        out.inputs(second)
        out.weights(second)
    forwards = 2 * (placement.ranks - rank) - 1 + rank
    for number in range(count - placement.ranks):
        if forwards + number < count:
            out.forward(first)
        out.inputs(first)
        out.weights(first)
        out.forward(second)
        out.inputs(second)
        out.weights(second)
    for _ in range(rank):
        out.inputs(first)
        out.inputs(second)
    for _ in range(placement.ranks - rank):
        out.inputs(first)
        out.weights(first)
    for stage in (second, first):
        for _ in range(rank):
            out.weights(stage)
    return [action for action in out.actions if action.microbatch < microbatches]


def _dualpipev(placement: Placement, rank: int, microbatches: int) -> list[Action]:
    if microbatches < placement.stages:
        raise UsageError(
            f"schedule dualpipev: {microbatches} microbatches are fewer than "
            f"{placement.stages} stages"
        )
    first, second = placement.stages_of(rank)
    after = placement.ranks - 1 - rank  # ranks between this one and the turn of the V
    out = _Writer()

    def both(forward: int, backward: int) -> None:
        out.forward(forward, paired=True)
        out.backward(backward)

    for _ in range(2 * after):
        out.forward(first)
    for _ in range(rank + 1):
        out.forward(first)
        out.forward(second)
    for _ in range(after):
        out.inputs(second)
        out.weights()
        out.forward(second)
    for number in range(microbatches - 2 * placement.ranks + rank + 1):
        if number == 0 and rank == placement.ranks - 1:
            out.forward(first)
            out.backward(second)
        else:
            both(first, second)
        both(second, first)
    for _ in range(after):
        out.backward(second)
        both(second, first)
    _dualpipev_end(out, rank, after, (first, second))
    return out.actions


def _dualpipev_end(out: _Writer, rank: int, after: int, stages: tuple[int, int]) -> None:
    """The last backwards: whole ones first, then split to fill the gaps with weights."""
    first, second = stages
    half = (rank + 1) // 2
    for number in range(rank + 1):
        split_second = number > half or (number == half and rank % 2 == 1)
        (out.inputs if split_second else out.backward)(second)
        (out.inputs if number >= half else out.backward)(first)
    for _ in range(after):
        out.weights()
        out.inputs(first)
    for _ in range(rank + 1):
        out.weights()


_Maker = Callable[[Placement, int, int], list[Action]]
_MANY = 1 << 10
_MAKERS: dict[str, tuple[_Maker, int, int]] = {  # with the least and most chunks per rank
    "gpipe": (_gpipe, 1, 1),
    "1f1b": (_one_forward_one_backward, 1, 1),
    "interleaved_1f1b": (_interleaved, 2, _MANY),
    "zero_bubble": (_zero_bubble, 1, _MANY),
    "zbv": (_zbv, 2, 2),
    "dualpipev": (_dualpipev, 2, 2),
}
SCHEDULES = tuple(_MAKERS)


# -- dependencies and transfers --------------------------------------------------------


def needs(action: Action, stages: int) -> tuple[Kind, int, int] | None:
    """Which work on the neighbouring stage an action needs: kind, stage, microbatch.

    The kind is FORWARD, or INPUT for the gradients that a whole or a split backward hands on.
    """
    if action.kind is Kind.FORWARD and action.stage > 0:
        return Kind.FORWARD, action.stage - 1, action.microbatch
    if action.kind in (Kind.BACKWARD, Kind.INPUT) and action.stage < stages - 1:
        return Kind.INPUT, action.stage + 1, action.microbatch
    return None


def gives(action: Action) -> tuple[Kind, int, int]:
    """What an action makes, in the form of :func:`needs`."""
    kind = Kind.INPUT if action.kind is Kind.BACKWARD else action.kind
    return kind, action.stage, action.microbatch


def with_transfers(plan: Pipeline) -> Table:
    """The table with a send after each action another rank waits for, and its receive there.

    Ranks advance in rounds; the sender places the receive in the other rank's list, so both
    sides post their transfers in the same order.

    Raises:
        UsageError: the order of actions can never be carried out.
    """
    place, last = plan.placement, plan.placement.stages
    waiting = [deque(actions) for actions in plan.table]
    lists: list[list[Action]] = [[] for _ in plan.table]
    have: list[set[tuple[Kind, int, int]]] = [set() for _ in plan.table]
    while any(waiting):
        progress = False
        for rank, actions in enumerate(waiting):
            group = _next_group(actions)
            wanted = [needs(action, last) for action in group]
            if not group or not all(want is None or want in have[rank] for want in wanted):
                continue
            progress = True
            lists[rank].extend(group)
            for action in group:
                actions.popleft()
                made = gives(action)
                have[rank].add(made)
                sent = _transfer(action, place)
                if sent is not None:
                    send, other, receive = sent
                    lists[rank].append(send)
                    lists[other].append(receive)
                    have[other].add(made)
        if not progress:
            raise UsageError(f"schedule {plan.schedule}: its actions wait for each other")
    return tuple(tuple(actions) for actions in lists)


def _next_group(actions: Sequence[Action]) -> tuple[Action, ...]:
    """The next action, or the two of a pair."""
    if not actions:
        return ()
    return (actions[0], actions[1]) if actions[0].paired else (actions[0],)


def _transfer(action: Action, place: Placement) -> tuple[Action, int, Action] | None:
    """The send after an action, the rank it goes to, and the receive there, if it goes anywhere."""
    if action.kind is Kind.FORWARD and action.stage < place.stages - 1:
        to, send, receive = action.stage + 1, Kind.SEND_F, Kind.RECV_F
    elif action.kind in (Kind.BACKWARD, Kind.INPUT) and action.stage > 0:
        to, send, receive = action.stage - 1, Kind.SEND_B, Kind.RECV_B
    else:
        return None
    other = place.rank_of(to)
    if other == place.rank_of(action.stage):
        return None
    mb = action.microbatch
    return Action(send, action.stage, mb), other, Action(receive, to, mb)
