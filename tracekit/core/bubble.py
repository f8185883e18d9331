"""How long a pipeline stands idle: its schedule replayed, and the published formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracekit.core.errors import UsageError
from tracekit.core.schedule import Action, Kind, Pipeline, Placement, needs, with_transfers

Cost = Callable[[Action], float]


def replay(
    plan: Pipeline, cost: Cost, transfer: float = 0.0, early: bool = False
) -> tuple[tuple[float, float], ...]:
    """When each rank's first action starts and its last one ends, if nothing else takes time.

    A transfer begins when both of its ends have been reached, one after the other in each
    direction of a link; an action begins when its rank is free and its input is there.

    Args:
        plan: the schedule.
        cost: time of an action.
        transfer: time of a transfer between two ranks.
        early: receives are ready from the start, and not only from their place in the table.
    """
    links = _Transfers(transfer, early)
    ranks = [_Replayed(row, links, plan.placement) for row in with_transfers(plan)]
    while not all(rank.over for rank in ranks):
        moved = [rank.advance(cost) for rank in ranks]
        if not any(moved):
            raise UsageError(f"schedule {plan.schedule}: its actions wait for each other")
    return tuple((rank.first, rank.at) for rank in ranks)


_Made = tuple[Kind, int, int]  # as of `gives`: what is transferred


class _Transfers:
    """The links of a replay: when what was sent has arrived."""

    def __init__(self, time: float, early: bool) -> None:
        self.time, self.early = time, early
        self.arrived: dict[_Made, float] = {}
        self._posted: dict[_Made, float] = {}
        self._free: dict[tuple[int, int], float] = {}

    def post(self, what: _Made, ends: tuple[int, int], at: float, receives: bool) -> None:
        """One end of a transfer is reached; with both, its arrival is known."""
        at = 0.0 if receives and self.early else at
        if what not in self._posted:
            self._posted[what] = at
            return
        start = max(at, self._posted.pop(what), self._free.get(ends, 0.0))
        self.arrived[what] = self._free[ends] = start + self.time


class _Replayed:
    """One rank of a replay, on its way."""

    def __init__(self, row: Sequence[Action], links: _Transfers, place: Placement) -> None:
        self.row, self.links, self.place = row, links, place
        self.at = 0.0
        self.first = 0.0
        self.started = False
        self.done = 0

    @property
    def over(self) -> bool:
        return self.done == len(self.row)

    def advance(self, cost: Cost) -> bool:
        """Act until an input is missing; whether anything was done."""
        begin = self.done
        while not self.over and self._act(self.row[self.done], cost):
            self.done += 1
        return self.done > begin

    def _act(self, action: Action, cost: Cost) -> bool:
        if action.kind in _ENDS:
            forward, receives = _ENDS[action.kind]
            to = action.stage if receives else action.stage + (1 if forward else -1)
            source = to - 1 if forward else to + 1
            what = (Kind.FORWARD if forward else Kind.INPUT, source, action.microbatch)
            ends = (self.place.rank_of(source), self.place.rank_of(to))
            self.links.post(what, ends, self.at, receives)
            return True
        want = needs(action, self.place.stages)
        if want is not None and self.place.rank_of(want[1]) != self.place.rank_of(action.stage):
            if want not in self.links.arrived:
                return False
            self.at = max(self.at, self.links.arrived[want])
        if not self.started:
            self.first, self.started = self.at, True
        self.at += cost(action)
        return True


_ENDS = {  # of a transfer: whether it goes forward, whether it is the receiving end
    Kind.SEND_F: (True, False),
    Kind.RECV_F: (True, True),
    Kind.SEND_B: (False, False),
    Kind.RECV_B: (False, True),
}


def closed_form_bubble(plan: Pipeline, forward: float, inputs: float, weights: float) -> float:
    """The idle time of a rank in one step by the published formula, with equal stages.

    Times are of one whole rank (all its chunks) and one microbatch. DualPipeV counts a paired
    forward and backward as the sum of both.

    Source: the papers named above; DeepSeek's DualPipe README for DualPipeV.
    """
    ranks, chunks = plan.placement.ranks, plan.placement.chunks
    whole = forward + inputs + weights
    match plan.schedule:
        case "gpipe" | "1f1b" | "interleaved_1f1b":
            return (ranks - 1) * whole / chunks
        case "zero_bubble":
            return (ranks - 1) * (forward + inputs - weights) / chunks
        case "zbv":
            return (ranks - 1) * inputs / 2
        case _:
            return (ranks - 1) * (whole + inputs + weights - 3 * weights) / chunks
