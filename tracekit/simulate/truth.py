"""What is true of a simulated run: times, culprits, clocks, waits, bubbles, experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from tracekit.core import fault
from tracekit.core.trace import Int64
from tracekit.simulate import engine, measures
from tracekit.simulate.clock import Clock
from tracekit.simulate.engine import Lane, Timeline
from tracekit.simulate.job import Job
from tracekit.simulate.measures import absolute
from tracekit.simulate.program import Do
from tracekit.simulate.spec import Spec

SCHEMA = "tracekit.truth/1"
# More rows than this are left out of truth.json; ask the Python API for them.
MOST_ROWS = 50_000

_CAUSES = {
    "slow-rank": "compute",
    "slow-stage": "compute",
    "delay": "host",
    "gc": "gc",
    "dataloader": "dataloader",
    "slow-link": "link",
    "hot-expert": "experts",
}


def of(timeline: Timeline, clocks: tuple[Clock, ...], windows: Int64) -> dict[str, Any]:
    """The whole truth, ready for JSON. Times are ns; absolute ones by the true clock."""
    spec, job = timeline.job.spec, timeline.job
    communicates = (Do.COLLECTIVE, Do.SEND, Do.RECV)
    per_step = sum(op.do in communicates for lane in timeline.lanes for op in lane.ops)
    calls = per_step * spec.steps * job.width
    return {
        "schema": SCHEMA,
        "spec": dataclasses.asdict(spec),
        "planted": planted(job),
        "culprit": culprit(job),
        "steps": steps(timeline),
        "loss": loss(timeline),
        "clock": [
            {"rank": rank, "offset_ns": clock.offset_ns, "drift_ppm": clock.drift_ppm}
            for rank, clock in enumerate(clocks)
        ],
        "windows": [
            {"rank": rank, "start_ns": int(low), "end_ns": int(high)}
            for rank, (low, high) in enumerate(absolute(windows).tolist())
        ],
        "compute": compute(timeline),
        "bubbles": measures.bubbles(timeline),
        "contention": measures.contention(timeline),
        "experts": measures.experts(timeline),
        "collectives": measures.collectives(timeline) if calls <= MOST_ROWS else None,
    }


# -- what was planted --------------------------------------------------------------------


def planted(job: Job) -> list[dict[str, Any]]:
    """The faults as they stand in the manifest, each with its ranks and its cause."""
    return [
        {**item.truth(), "ranks": list(ranks(job, item)), "cause": _CAUSES[item.truth()["kind"]]}
        for item in job.spec.planted()
    ]


def ranks(job: Job, planted: fault.Fault) -> tuple[int, ...]:
    """The ranks that a fault makes slow or late."""
    match planted:
        case fault.SlowStage(stage, _):
            return tuple(job.ranks(stage))
        case fault.SlowLink(ends, _):
            return ends
        case fault.HotExpert(expert, _):
            holder = expert // (job.spec.experts // job.spec.ep)
            every = range(job.spec.world_size)
            return tuple(rank for rank in every if job.coordinate(rank, "ep") == holder)
        case _:
            return (planted.rank,)


def culprit(job: Job) -> dict[str, Any]:
    """Who is to blame: the set that holds exactly the ranks of all faults.

    ``sets`` names every kind of set with these members: first the kind that was planted, then
    from the smallest. Ranks that make up no set are named one by one.
    """
    faults = job.spec.planted()
    if not faults:
        return {"kind": "none", "members": [], "ranks": [], "cause": None, "sets": []}
    blamed = tuple(sorted({rank for item in faults for rank in ranks(job, item)}))
    causes = sorted({_CAUSES[item.truth()["kind"]] for item in faults})
    found = [
        {"kind": kind, "members": members} for kind, members, there in sets(job) if there == blamed
    ] or [{"kind": "rank", "members": list(blamed)}]
    if all(isinstance(item, fault.SlowLink) for item in faults):
        found = [{"kind": "link", "members": list(blamed)}]
    elif all(isinstance(item, fault.SlowStage) for item in faults):
        found.sort(key=lambda item: item["kind"] != "stage")
    return {
        **found[0],
        "ranks": list(blamed),
        "cause": causes[0] if len(causes) == 1 else causes,
        "sets": found,
    }


def sets(job: Job) -> Iterable[tuple[str, list[int], tuple[int, ...]]]:
    """Kind, members and ranks of every set that can be to blame, smallest kinds first."""
    size, spec = job.spec.world_size, job.spec
    for rank in range(size):
        yield "rank", [rank], (rank,)
    if spec.tp > 1:
        for group in job.groups:
            if group.axis == "tp":
                yield "tp_group", list(group.ranks), group.ranks
    for first in range(0, size, spec.ranks_per_host):
        members = tuple(range(first, min(first + spec.ranks_per_host, size)))
        if len(members) < size:
            yield "host", [first // spec.ranks_per_host], members
    if spec.pp > 1:
        for stage in range(spec.pp):
            yield "stage", [stage], tuple(job.ranks(stage))
    if spec.dp * spec.fsdp > 1:
        for replica in range(spec.dp * spec.fsdp):
            yield (
                "dp_replica",
                [replica],
                tuple(rank for rank in range(size) if _replica(job, rank) == replica),
            )


def _replica(job: Job, rank: int) -> int:
    return job.coordinate(rank, "dp") * job.spec.fsdp + job.coordinate(rank, "fsdp")


# -- time lost ---------------------------------------------------------------------------


def step_times(timeline: Timeline) -> Int64:
    """(steps,) from one step's end on the last rank to the next one's."""
    ends = timeline.step_ends()
    return np.diff(ends, prepend=timeline.step_starts()[0])


def steps(timeline: Timeline) -> list[dict[str, int]]:
    """When each step ran on the true clock, and how long the job took for it."""
    starts, ends = absolute(timeline.step_starts()), absolute(timeline.step_ends())
    return [
        {"step": step, "start_ns": start, "end_ns": end, "critical_ns": critical}
        for step, (start, end, critical) in enumerate(
            zip(starts.tolist(), ends.tolist(), step_times(timeline).tolist(), strict=True)
        )
    ]


def loss(timeline: Timeline) -> dict[str, Any]:
    """Against the clean twin: the same job, the same noise, without any fault.

    ``slowdown`` is over all steps but the first; ``rebalanced_slowdown`` is against the clean
    twin with all stages alike, each as long as the mean of them is now. ``each`` says of every
    fault what it costs alone, and what is won back when only it goes: two that hide behind
    each other win nothing.
    """
    faults = timeline.job.spec.faults
    actual = step_times(timeline)
    clean = _with(timeline.job.spec, ()) if faults else actual
    total, ideal = _counted(actual), _counted(clean)
    each = []
    for number, text in enumerate(faults):
        single = len(faults) == 1
        rest = faults[:number] + faults[number + 1 :]
        alone = total if single else _counted(_with(timeline.job.spec, (text,)))
        without = ideal if single else _counted(_with(timeline.job.spec, rest))
        each.append(
            {
                "fault": text,
                "alone_ns": alone - ideal,
                "slowdown": alone / ideal,
                "recovered_ns": total - without,
            }
        )
    return {
        "clean_critical_ns": clean.tolist(),
        "lost_ns": (actual - clean).tolist(),
        "slowdown": total / ideal,
        "waste_ratio": 1 - ideal / total,
        "rebalanced_slowdown": total / _counted(_rebalanced(timeline.job.spec)),
        "each": each,
    }


def _rebalanced(spec: Spec) -> Int64:
    """Step times of the job without faults, the work of its stages shared out evenly."""
    place = spec.pipeline().placement
    factors = list(spec.stage_factors or [1.0] * place.stages)
    for planted in spec.planted():
        if isinstance(planted, fault.SlowStage):
            for stage in place.stages_of(planted.stage):
                factors[stage] *= planted.factor
    mean = sum(factors) / len(factors)
    even = dataclasses.replace(spec, faults=(), stage_factors=(mean,) * place.stages)
    return step_times(engine.run(even))


def _counted(times: Int64) -> int:
    """Sum of the step times that a reader counts: all but the first, where there are more."""
    return int(times[1 if len(times) > 1 else 0 :].sum())


def _with(spec: Spec, faults: tuple[str, ...]) -> Int64:
    """Step times of the job with these faults instead of its own."""
    return step_times(engine.run(dataclasses.replace(spec, faults=faults)))


def compute(timeline: Timeline) -> list[dict[str, Any]]:
    """Per rank: time of its compute kernels in each step."""
    out = []
    for pp, lane in enumerate(timeline.lanes):
        sums = kernel_sums(timeline.job.spec, lane)
        for place, rank in enumerate(timeline.job.ranks(pp)):
            out.append({"rank": rank, "compute_ns": sums[:, place].tolist()})
    return out


def kernel_sums(spec: Spec, lane: Lane) -> Int64:
    """(steps, width) ns in compute kernels."""
    rows = [place for place, op in enumerate(lane.ops) if op.do is Do.COMPUTE]
    took = (lane.end - lane.start).reshape(spec.steps, len(lane.ops), -1)
    total: Int64 = took[:, rows].sum(axis=1)
    return total
