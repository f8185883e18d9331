"""Which ranks form a pipeline, in order of stage, and how long data takes between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.core.clock import ClockFit
from tracekit.core.collective import P2P_OP, Matching
from tracekit.core.pipelines import Plan
from tracekit.core.roles import roles
from tracekit.core.run import Run
from tracekit.core.stagework import KINDS, StageWork
from tracekit.core.timing import Timing


def pipelines_of(run: Run, matching: Matching, clock: Sequence[ClockFit]) -> list[tuple[int, ...]]:
    """Places (in run.traces) of the ranks of each pipeline, in order of stage."""
    place = {trace.rank: number for number, trace in enumerate(run.traces)}
    stages = _first_stages(run, matching, clock)
    sets = {
        tuple(sorted(group.ranks))
        for group in (*run.topology.groups, *matching.groups)
        if group.axis == "pp" and len(group.ranks) > 1 and group.description != P2P_OP
    }
    if not sets:
        sets = _connected(matching)
    if not sets and len({stage for stage in stages if stage >= 0}) > 1:
        sets = {run.ranks}
    found = []
    for ranks in sorted(sets):
        here = [place[rank] for rank in ranks if rank in place]
        if len(here) > 1 and len({stages[number] for number in here}) == len(here):
            found.append(tuple(sorted(here, key=lambda number: stages[number])))
    return found


def on_one_clock(run: Run, places: Sequence[int], clock: Sequence[ClockFit]) -> bool:
    """Whether times of these ranks can be compared: by fit, or because they share a host."""
    hosts = {run.traces[place].host for place in places}
    return len({clock[place].component for place in places}) == 1 or (
        len(hosts) == 1 and None not in hosts
    )


def _first_stages(run: Run, matching: Matching, clock: Sequence[ClockFit]) -> list[int]:
    """First stage of each trace: by its markers, else by its place in the pipeline."""
    by_group = roles(run.traces, run.topology, matching, clock).stage
    marked = [
        int(trace.spans.stage[trace.spans.stage >= 0].min())
        if (trace.spans.stage >= 0).any()
        else -1
        for trace in run.traces
    ]
    return marked if all(stage >= 0 for stage in marked) else list(by_group)


def _connected(matching: Matching) -> set[tuple[int, ...]]:
    """Ranks that p2p transfers connect."""
    parts: list[set[int]] = []
    used = set(matching.instances.group[matching.p2p()].tolist())
    for number in sorted(used):
        ranks = set(matching.groups[number].ranks)
        touching = [part for part in parts if part & ranks]
        parts = [part for part in parts if not part & ranks] + [ranks.union(*touching)]
    return {tuple(sorted(part)) for part in parts if len(part) > 1}


def measured_latency(places: Sequence[int], matching: Matching, times: Timing) -> float | None:
    """Median transfer of the p2p between these ranks; None without matched ones."""
    rows = matching.rows
    mine = np.isin(rows.trace, places)
    both = np.bincount(rows.instance[mine], minlength=len(matching.instances)) == 2
    chosen = matching.p2p() & both & times.comparable
    return float(np.median(times.transfer[chosen])) if chosen.any() else None


def apparent_latency(works: Sequence[StageWork], plan: Plan) -> float:
    """Median time from an input's end to the begin of an action that waits for it."""
    lags: list[int] = []
    last = plan.pipeline.placement.stages - 1
    ends: dict[tuple[int, bool, int, int], int] = {}
    for work in works:
        for row in range(len(work)):
            kind = KINDS[work.kind[row]].value
            if kind != "W":
                key = (int(work.step[row]), kind == "F", int(work.stage[row]),
                       int(work.microbatch[row]))  # fmt: skip
                ends[key] = int(work.end_ns[row])
    for rank, work in enumerate(works):
        for row in range(1, len(work)):
            kind, stage = KINDS[work.kind[row]].value, int(work.stage[row])
            forward = kind == "F"
            before = stage - 1 if forward else stage + 1
            if kind == "W" or not 0 <= before <= last or work.step[row] != work.step[row - 1]:
                continue
            if plan.pipeline.placement.rank_of(before) == rank:
                continue
            ready = ends.get((int(work.step[row]), forward, before, int(work.microbatch[row])))
            if ready is not None and work.end_ns[row - 1] < ready:
                lags.append(int(work.begin_ns[row]) - ready)
    return max(0.0, float(np.median(lags))) if lags else 0.0
