"""True measures of a run job: waits and transfers, bubbles, contention, experts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.core.bubble import replay
from tracekit.core.schedule import Action, Pipeline
from tracekit.core.trace import Int64
from tracekit.simulate import calls
from tracekit.simulate.clock import BASE_NS, START_NS
from tracekit.simulate.engine import Lane, Timeline, spans
from tracekit.simulate.program import Do, Op


def absolute(times: Int64) -> Int64:
    """Times since the job's start as times of a true clock, as a trace would show them."""
    return times + (START_NS + BASE_NS)


# -- communication -----------------------------------------------------------------------


def collectives(timeline: Timeline) -> dict[str, list[Any]]:
    """One row per communication call and rank, by the true clock.

    ``instance`` counts the calls of a group (by its name) alike on all its members; of a
    transfer between two ranks those of that direction. ``wait_ns`` goes to the last arrival.
    """
    columns: dict[str, list[Any]] = defaultdict(list)
    for pp, lane in enumerate(timeline.lanes):
        for call in _instances(timeline, lane):
            _call(columns, timeline, pp, lane, call)
    return dict(columns)


def _instances(timeline: Timeline, lane: Lane) -> Iterator[tuple[int, Op, int, str]]:
    """Row, operation, instance and axis of each call of a lane."""
    number = calls.numbering(timeline.job.spec, lane.ops)
    turns: dict[tuple[str, int], int] = defaultdict(int)
    for row in range(len(lane.ops) * timeline.job.spec.steps):
        op = lane.ops[row % len(lane.ops)]
        if op.do is Do.COLLECTIVE:
            yield row, op, number.seq[row], op.axis + (" alias" if number.alias[row] else "")
        elif op.do in (Do.SEND, Do.RECV):
            turns[op.name, op.peer] += 1
            yield row, op, turns[op.name, op.peer], "pp"


def _call(
    columns: dict[str, list[Any]],
    timeline: Timeline,
    pp: int,
    lane: Lane,
    call: tuple[int, Op, int, str],
) -> None:
    row, op, number, axis = call
    job = timeline.job
    ranks = list(job.ranks(pp))
    arrival, ready, end = lane.start[row], lane.ready[row], lane.end[row]
    same = {
        "op": op.name, "axis": axis, "instance": number, "step": row // len(lane.ops),
        "bytes": op.size * op.width,
    }  # fmt: skip
    for name, value in same.items():
        columns[name].extend([value] * len(ranks))
    columns["rank"].extend(ranks)
    columns["group"].extend(job.named(rank)[axis].name for rank in ranks)
    to = (op.peer - pp) * job.width if op.peer >= 0 else None
    columns["peer"].extend(-1 if to is None else rank + to for rank in ranks)
    columns["arrival_ns"].extend(absolute(arrival).tolist())
    columns["end_ns"].extend(absolute(end).tolist())
    columns["wait_ns"].extend((ready - arrival).tolist())
    columns["transfer_ns"].extend((end - ready).tolist())


# -- the pipeline ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """The actions of one lane: (steps, actions, width) int64 ns, on the device.

    Attributes:
        begin, end: of each action.
        busy: its kernels and the collectives inside its stage.
    """

    actions: tuple[Action, ...]
    begin: Int64
    end: Int64
    busy: Int64


def bubbles(timeline: Timeline) -> list[dict[str, int]]:
    """Per rank and step: what of the pipeline's window is no work of a stage, and why.

    The window goes from the first action's begin on any rank of the same pipeline to the
    last one's end. ``schedule_ns`` is the bubble with equal stages, ``imbalance_ns`` what
    unequal ones add, ``p2p_ns`` what transfers add, ``jitter_ns`` the rest; they sum.
    """
    spec = timeline.job.spec
    if spec.pp == 1:
        return []
    plan = spec.pipeline()
    work = [_work(spec.steps, lane, plan.table[pp]) for pp, lane in enumerate(timeline.lanes)]
    begin = np.min([item.begin.min(axis=1) for item in work], axis=0)
    end = np.max([item.end.max(axis=1) for item in work], axis=0)
    transfer = _median_transfer(timeline)
    rows = []
    for place in range(timeline.job.width):
        parts = _expected(plan, work, place, transfer)
        for pp, item in enumerate(work):
            for step in range(spec.steps):
                window = int(end[step, place] - begin[step, place])
                busy = int(item.busy[step, :, place].sum())
                known = [round(part[pp]) for part in parts]
                rows.append(
                    {
                        "stage": pp,
                        "rank": timeline.job.ranks(pp)[place],
                        "step": step,
                        "window_ns": window,
                        "busy_ns": busy,
                        "bubble_ns": window - busy,
                        "schedule_ns": known[0],
                        "imbalance_ns": known[1] - known[0],
                        "p2p_ns": known[2] - known[1],
                        "jitter_ns": window - busy - known[2],
                    }
                )
    return rows


def _work(steps: int, lane: Lane, actions: tuple[Action, ...]) -> _Work:
    shape = (steps, len(lane.ops), lane.start.shape[1])
    start, end = lane.start.reshape(shape), lane.end.reshape(shape)
    inside = [
        [
            row
            for row in range(opened, closed)
            if lane.ops[row].do is Do.COMPUTE or lane.ops[row].blocking
        ]
        for opened, closed in spans(lane, "stage")
    ]
    assert len(inside) == len(actions)
    return _Work(
        actions,
        np.stack([start[:, rows].min(axis=1) for rows in inside], axis=1),
        np.stack([end[:, rows].max(axis=1) for rows in inside], axis=1),
        np.stack([(end[:, rows] - start[:, rows]).sum(axis=1) for rows in inside], axis=1),
    )


def _median_transfer(timeline: Timeline) -> float:
    """Median time of a transfer between two stages, ns."""
    sent = [
        lane.costs.work_ns[place :: len(lane.ops)].ravel()
        for lane in timeline.lanes
        for place, op in enumerate(lane.ops)
        if op.do is Do.SEND
    ]
    return float(np.median(np.concatenate(sent)))


def _expected(
    plan: Pipeline, work: list[_Work], place: int, transfer: float
) -> tuple[list[float], list[float], list[float]]:
    """Bubble of each rank with equal stages, with their own costs, and with transfers."""
    taken: dict[tuple[str, int], list[Int64]] = defaultdict(list)
    for item in work:
        for number, action in enumerate(item.actions):
            taken[action.kind.value, action.stage].append(item.busy[:, number, place])
    own = {key: float(np.median(np.concatenate(times))) for key, times in taken.items()}
    kinds: dict[str, list[float]] = defaultdict(list)
    for (kind, _), time in own.items():
        kinds[kind].append(time)
    mean = {kind: float(np.mean(times)) for kind, times in kinds.items()}

    def equal(action: Action) -> float:
        return mean[action.kind.value]

    def unequal(action: Action) -> float:
        return own[action.kind.value, action.stage]

    def bubble(cost: Any, transfer: float) -> list[float]:
        ends = replay(plan, cost, transfer)
        window = max(end for _, end in ends) - min(begin for begin, _ in ends)
        return [window - sum(map(cost, row)) for row in plan.table]

    return bubble(equal, 0.0), bubble(unequal, 0.0), bubble(unequal, transfer)


# -- contention --------------------------------------------------------------------------


def contention(timeline: Timeline) -> list[dict[str, Any]]:
    """Per kernel class: the planted slowdown, and the time all its kernels lost to it."""
    spec = timeline.job.spec
    table = spec.contention
    lost: dict[str, int] = defaultdict(int)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for lane in timeline.lanes if table else ():
        extra = lane.end - lane.start - lane.costs.work_ns
        for place, op in enumerate(lane.ops):
            if op.do is Do.COMPUTE:
                values = extra[place :: len(lane.ops)]
                lost[op.name] += int(values.sum())
                counts[op.name][0] += values.size
                counts[op.name][1] += int((values > 0).sum())
    return [
        {
            "kernel": name,
            "slowdown": table.get(name, table.get("*", 1.0)),
            "n": counts[name][0],
            "n_slowed": counts[name][1],
            "lost_ns": time,
        }
        for name, time in sorted(lost.items())
    ]


# -- experts -----------------------------------------------------------------------------


def experts(timeline: Timeline) -> dict[str, list[dict[str, int]]]:
    """Rows that each rank's experts get per layer and step, and the time imbalance costs.

    ``lost_ns`` is what the busiest rank's expert kernels take longer than the mean of its
    group's, in both directions, for the worst group.
    """
    spec, job = timeline.job.spec, timeline.job
    if spec.ep == 1:
        return {"tokens": [], "lost": [], "traffic": []}
    tokens: dict[tuple[int, int], Int64] = {}
    lost: dict[tuple[int, int], int] = defaultdict(int)
    for pp, layer, microbatch, cost_ns in _routed(timeline):
        load = timeline.routing.load(pp, layer, microbatch)
        tokens[pp, layer] = tokens.get((pp, layer), np.zeros_like(load)) + load
        ratio = timeline.routing.load_ratio(pp, layer, microbatch)
        worst = (ratio.max(axis=1) - 1) * cost_ns
        for step, value in enumerate(worst.tolist()):
            lost[layer, step] += round(value)
    per_rank = [
        {"layer": layer, "step": step, "rank": rank, "tokens": int(load[step, place])}
        for (pp, layer), load in sorted(tokens.items())
        for step in range(spec.steps)
        for place, rank in enumerate(job.ranks(pp))
    ]
    lost_rows = [
        {"layer": layer, "step": step, "lost_ns": value}
        for (layer, step), value in sorted(lost.items())
    ]
    return {"tokens": per_rank, "lost": lost_rows, "traffic": _traffic(timeline)}


def _routed(timeline: Timeline) -> Iterator[tuple[int, int, int, float]]:
    """Pipeline rank, layer, microbatch and nominal time of the experts' work on it."""
    for pp, lane in enumerate(timeline.lanes):
        cost: dict[tuple[int, int], float] = defaultdict(float)
        for op in lane.ops:
            if op.do is Do.COMPUTE and op.routed:
                cost[op.layer, op.microbatch] += op.cost_ns
        for (layer, microbatch), value in cost.items():
            yield pp, layer, microbatch, value


def _traffic(timeline: Timeline) -> list[dict[str, int]]:
    """Rows dispatched from rank to rank, over all layers and steps."""
    job = timeline.job
    total: dict[tuple[int, int], int] = defaultdict(int)
    for pp, layer, microbatch, _ in _routed(timeline):
        matrix = timeline.routing.matrix(pp, layer, microbatch).sum(axis=0)
        for rank in job.ranks(pp):
            members = job.group(rank, "ep").ranks
            replica = job.coordinate(rank, "dp") * job.spec.fsdp + job.coordinate(rank, "fsdp")
            sent: npt.NDArray[np.int64] = matrix[replica, members.index(rank)]
            for other, count in zip(members, sent.tolist(), strict=True):
                total[rank, other] += count
    return [
        {"src": src, "dst": dst, "tokens": count} for (src, dst), count in sorted(total.items())
    ]
