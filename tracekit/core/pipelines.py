"""Pipelines of a job: their ranks in order, the schedule they follow, the bubble it implies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.core.bubble import closed_form_bubble, replay
from tracekit.core.errors import UsageError
from tracekit.core.schedule import (
    SCHEDULES,
    Action,
    Kind,
    Pipeline,
    Placement,
    Table,
    pipeline,
)
from tracekit.core.stagework import KINDS, StageWork, sequence

Costs = Mapping[tuple[Kind, int], float]  # kind and stage -> median ns


class Plan(NamedTuple):
    """The actions of a pipeline, and how they are known.

    Attributes:
        schedule: name of a known schedule, "forward only" or "unknown".
        recognised: whether the order of actions is exactly that schedule's.
    """

    pipeline: Pipeline
    schedule: str
    recognised: bool


def plan_of(rows: Sequence[StageWork], given: str | None) -> Plan | None:
    """The plan that the ranks of a pipeline follow in one step.

    Args:
        rows: actions of each rank in one step, ranks in order of their first stage.
        given: the schedule's name, where the conditions tell it.

    Returns:
        None where the stages do not lie on the ranks in a loop or a V.
    """
    table = tuple(
        tuple(Action(KINDS[kind], stage, mb) for kind, stage, mb in sequence(work)) for work in rows
    )
    placement = _placement(table)
    if placement is None:
        return None
    microbatches = len({action.microbatch for row in table for action in row})
    names = sorted(SCHEDULES, key=lambda name: name != given)
    for name in names:
        try:
            known = pipeline(name, placement.ranks, microbatches, placement.chunks)
        except UsageError:
            continue
        if _plain(known.table) == table:
            return Plan(known, name, True)
    only_forward = all(action.kind is Kind.FORWARD for row in table for action in row)
    name = "forward only" if only_forward else given or "unknown"
    return Plan(Pipeline(name, placement, microbatches, table), name, False)


def _plain(table: Table) -> Table:
    """The table without what it says of pairs, which no trace shows."""
    return tuple(tuple(Action(a.kind, a.stage, a.microbatch) for a in row) for row in table)


def _placement(table: Table) -> Placement | None:
    held = [sorted({action.stage for action in row}) for row in table]
    chunks = len(held[0])
    for vee in (False, True):
        placement = Placement(len(held), chunks, vee)
        if [list(placement.stages_of(rank)) for rank in range(len(held))] == held:
            return placement
    return None


def costs(rows: Sequence[StageWork]) -> dict[tuple[Kind, int], float]:
    """Median time of each kind of action on each stage, over all steps of the ranks given."""
    found: dict[tuple[Kind, int], float] = {}
    for work in rows:
        for kind, stage in sorted(set(zip(work.kind.tolist(), work.stage.tolist(), strict=True))):
            mine = (work.kind == kind) & (work.stage == stage)
            found[KINDS[kind], stage] = float(np.median(work.busy_ns[mine]))
    return found


def equal(costs: Costs) -> dict[tuple[Kind, int], float]:
    """The same, with each kind's mean over stages on every stage."""
    by_kind: dict[Kind, list[float]] = defaultdict(list)
    for (kind, _), time in costs.items():
        by_kind[kind].append(time)
    return {(kind, stage): float(np.mean(by_kind[kind])) for kind, stage in costs}


@dataclass(frozen=True, slots=True)
class Expected:
    """Bubble of each rank in one step, in ns, as the plan implies it.

    Attributes:
        schedule: with stages all alike and transfers that take no time.
        unequal: with each stage's own costs.
        linked: with these and transfers.
        ratio: of ``unequal``, over the replayed time of all ranks.
        closed_form: the same by the published formula, with stages all alike; None
            where there is none.
    """

    schedule: tuple[float, ...]
    unequal: tuple[float, ...]
    linked: tuple[float, ...]
    ratio: float
    closed_form: float | None


def expected(plan: Plan, costs: Costs, transfer_ns: float) -> Expected | None:
    """Replay the plan; None where its actions can never be carried out."""
    same = equal(costs)
    try:
        alike, _ = _bubble(plan.pipeline, same, 0.0)
        unequal, window = _bubble(plan.pipeline, costs, 0.0)
        linked, _ = _bubble(plan.pipeline, costs, transfer_ns)
    except UsageError:
        return None
    ratio = sum(unequal) / (window * len(unequal)) if window else 0.0
    return Expected(alike, unequal, linked, ratio, _closed_form(plan, same))


def _bubble(plan: Pipeline, costs: Costs, transfer_ns: float) -> tuple[tuple[float, ...], float]:
    """Bubble of each rank, and the time from the first begin to the last end."""

    def cost(action: Action) -> float:
        return costs[action.kind, action.stage]

    times = replay(plan, cost, transfer_ns)
    window = max(end for _, end in times) - min(begin for begin, _ in times)
    return tuple(window - sum(map(cost, row)) for row in plan.table), window


def _closed_form(plan: Plan, same: Costs) -> float | None:
    if not plan.recognised:
        return None
    chunks = plan.pipeline.placement.chunks
    by_kind = {kind: time * chunks for (kind, _), time in same.items()}
    weights = by_kind.get(Kind.WEIGHT, 0.0)
    inputs = by_kind.get(Kind.INPUT, by_kind.get(Kind.BACKWARD, 0.0))
    bubble = closed_form_bubble(plan.pipeline, by_kind[Kind.FORWARD], inputs, weights)
    busy = np.mean(
        [sum(same[action.kind, action.stage] for action in row) for row in plan.pipeline.table]
    )
    return float(bubble / (bubble + busy))


def common_sequences(
    works: Sequence[StageWork], numbers: Sequence[Sequence[int]]
) -> tuple[list[StageWork], list[int], int]:
    """Keep the steps in which every rank does all it usually does.

    Args:
        works: of the ranks of one pipeline.
        numbers: step number of each step index, per rank.

    Returns:
        The works of these steps, with ``step`` the number; the numbers, ascending; how many
        steps were left out.
    """
    by_step: list[dict[int, StageWork]] = []
    for work, own in zip(works, numbers, strict=True):
        number = np.array(own, dtype=np.int32)[work.step] if len(work) else work.step
        renamed = StageWork(
            number.astype(np.int32), work.kind, work.stage, work.microbatch,
            work.begin_ns, work.end_ns, work.busy_ns,
        )  # fmt: skip
        by_step.append(
            {step: renamed.take(renamed.step == step) for step in sorted(set(number.tolist()))}
        )
    usual = [
        Counter(sequence(part) for part in parts.values()).most_common(1)[0][0] if parts else ()
        for parts in by_step
    ]
    seen = sorted(set().union(*(set(parts) for parts in by_step)))
    kept = [
        step
        for step in seen
        if all(
            step in parts and sequence(parts[step]) == known
            for parts, known in zip(by_step, usual, strict=True)
        )
    ]
    chosen = [
        work.take(np.zeros(0, dtype=np.intp)) if not kept else _joined([parts[s] for s in kept])
        for work, parts in zip(works, by_step, strict=True)
    ]
    return chosen, kept, len(seen) - len(kept)


def _joined(parts: Sequence[StageWork]) -> StageWork:
    names = StageWork.__slots__
    return StageWork(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
