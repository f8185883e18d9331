"""Pipeline bubbles: how long each stage stands idle inside the pipeline, and why.

Definition, per rank and step: the pipeline's window goes from the first action's begin on
any rank of the same pipeline to the last one's end (``step_ns``; data loading and optimizer
lie outside). ``busy`` = compute and in-stage collectives of the rank's actions, and
``bubble = step − busy``: the time inside a receive that waits is bubble, not communication.
Expected: the schedule's own list of actions is replayed with the measured median time of
each kind of action. ``schedule`` = bubble with every stage at the mean and transfers that
take no time; ``imbalance`` = what each stage's own times add, so that
``expected_bubble = schedule + imbalance``; ``p2p`` = what transfers add; ``jitter`` = the rest, the
gaps inside actions included. The four sum to the bubble exactly, and each may be negative.
Phases: warm-up up to a rank's first backward, cool-down from its last forward, steady between.
Transfer time: a p2p's end less its last arrival, as median; on a CPU, where posted
transfers are no more than a bound, the time from an input's end to the begin of an action
that waits for it.
Sources, best first: the runner's markers; torch's names (``PP:1F0``), whose waits are taken
out; else the k-th transfer opens or closes microbatch k, which is marked ``inferred``.
Source of the formulas: arXiv 2104.04473, 2401.10241; DeepSeek's DualPipe.
Limits: needs the ranks of a pipeline on one clock. Without all its ranks there is nothing
to replay. On a CPU all of an action's span is busy, the host's own work included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.clock import ClockFit
from tracekit.core.collective import Matching
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.inferred import inferred_work
from tracekit.core.intervals import Intervals, covered_within, subtract, union
from tracekit.core.pipelineranks import (
    apparent_latency,
    measured_latency,
    on_one_clock,
    pipelines_of,
)
from tracekit.core.pipelines import (
    Costs,
    Expected,
    Plan,
    common_sequences,
    costs,
    expected,
    plan_of,
)
from tracekit.core.run import Run
from tracekit.core.stagework import KINDS, StageWork, stage_work
from tracekit.core.table import Column, Schema
from tracekit.core.timing import Timing, across, timing
from tracekit.core.trace import Int64, RankTrace

_LEAST_SHARE = 0.005  # of the step, for a cause to be a finding

_PARTS = ("schedule_ns", "imbalance_ns", "p2p_ns", "jitter_ns")
_REPLAYED = "null where it cannot be replayed."
PER_STAGE = Schema(
    Column("stage", "int32", "", "Place of the rank in its pipeline."),
    Column("rank", "int32", "", "Global rank."),
    Column("step", "int64", "", "Step number."),
    Column("step_ns", "int64", "ns", "The pipeline's part of the step, equal on all its ranks."),
    Column("busy_ns", "int64", "ns", "Compute and in-stage collectives of its actions."),
    Column("bubble_ns", "int64", "ns", "step_ns - busy_ns."),
    Column("bubble_ratio", "float64", "ratio", "bubble_ns / step_ns."),
    Column("expected_bubble_ns", "Int64", "ns", f"schedule_ns + imbalance_ns; {_REPLAYED}"),
    Column("schedule_ns", "Int64", "ns", f"Bubble of the schedule with equal stages; {_REPLAYED}"),
    Column("imbalance_ns", "Int64", "ns", f"What unequal stages add; {_REPLAYED}"),
    Column("p2p_ns", "Int64", "ns", f"What transfers between stages add; {_REPLAYED}"),
    Column("jitter_ns", "Int64", "ns", f"The rest of bubble_ns; {_REPLAYED}"),
    Column("warmup_ns", "int64", "ns", "Bubble before the rank's first backward."),
    Column("steady_ns", "int64", "ns", "Bubble between."),
    Column("cooldown_ns", "int64", "ns", "Bubble after its last forward."),
    Column("recv_wait_ns", "Int64", "ns", "Bubble in transfers whose other end has not arrived."),
    Column("transfer_ns", "Int64", "ns", "Bubble in transfers that move data."),
    Column("counted", "bool", "", "Used in statistics."),
)
COSTS = Schema(
    Column("stage", "int32", "", "Stage of the whole pipeline."),
    Column("rank", "int32", "", "Global rank that holds it."),
    Column("action", "str", "", "F forward, B backward, I and W its halves by input and weight."),
    Column("n", "int64", "count", "Actions in all complete steps."),
    Column("p50_ns", "float64", "ns", "Median busy time of one."),
)
ACTIONS = Schema(
    Column("pipeline", "int32", "", "Number of the pipeline."),
    Column("rank", "int32", "", "Global rank."),
    Column("step", "int64", "", "The step that is shown: the counted one of median length."),
    Column("stage", "int32", "", "Stage of the whole pipeline."),
    Column("action", "str", "", "F forward, B backward, I and W its halves by input and weight."),
    Column("microbatch", "int32", "", "Number of the microbatch."),
    Column("start_ns", "int64", "ns", "Begin, from the begin of the pipeline's window."),
    Column("length_ns", "int64", "ns", "From begin to end."),
    Column("busy_ns", "int64", "ns", "Part of it in compute and in-stage collectives."),
)


@dataclass(frozen=True, slots=True, eq=False)
class PipelineResult:
    """Bubbles of every stage; ratios are over counted steps and all ranks."""

    per_stage: pd.DataFrame
    costs: pd.DataFrame
    actions: pd.DataFrame
    schedule: str
    recognised: bool
    source: str
    microbatches: int | None
    bubble_ratio: float
    expected_bubble_ratio: float | None
    closed_form_ratio: float | None
    p2p_latency_ns: float | None
    skipped_count: int
    findings: tuple[Finding, ...]


def analyze(run: Run) -> PipelineResult:
    """Measure the bubbles of all pipelines of a run.

    Raises:
        MissingDataError: there is no pipeline, or nothing tells its actions.
    """
    matching, clock = across(run)
    groups = pipelines_of(run, matching, clock)
    source = _source(run)
    if not groups:
        raise MissingDataError(_why_not(run, groups))
    times = timing(run.traces, matching, clock)
    together = [places for places in groups if on_one_clock(run, places, clock)]
    if not together:
        raise MissingDataError(
            "the ranks of a pipeline are on different hosts and their transfers could not be "
            "matched, so their clocks cannot be brought together; record them with their peers"
        )
    found = [
        made
        for number, places in enumerate(together)
        if (made := _Pipeline.of(run, number, places, clock, matching, times, source)) is not None
    ]
    if not found:
        raise MissingDataError(_why_not(run, groups))
    per_stage = pd.concat([item.per_stage for item in found], ignore_index=True)
    return _result(run, found, per_stage, source)


def _why_not(run: Run, groups: Sequence[Sequence[int]]) -> str:
    if groups and _source(run) == "inferred":
        return (
            "stages exchange data, but no marker tells which microbatch they work on, and their "
            "transfers do not name their peers or follow neither GPipe nor 1F1B; record with "
            "`tracekit profile`, or with a torch schedule that names its actions (PP:1F0)"
        )
    if groups:
        return "no step holds all actions of a pipeline; record whole steps of all its ranks"
    if any(len(trace.spans) and (trace.spans.stage >= 0).any() for trace in run.traces):
        return "only one rank of a pipeline is here; give the traces of all its ranks"
    return (
        "no pipeline: no stage markers, no process group called pp and no transfers between "
        "known ranks; record a pipeline-parallel job with `tracekit profile`"
    )


def _source(run: Run) -> str:
    """Where actions come from."""
    if not any((trace.spans.microbatch >= 0).any() for trace in run.traces):
        return "inferred"
    told = any(item.code == "spans-include-waits" for item in run.diagnostics)
    return "torch names" if told else "markers"


# -- one pipeline ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Pipeline:
    """One pipeline, measured."""

    number: int
    traces: tuple[RankTrace, ...]
    works: tuple[StageWork, ...]  # step is the number
    plan: Plan | None
    costs: Costs
    expected: Expected | None
    latency_ns: float | None
    skipped: int
    per_stage: pd.DataFrame

    @classmethod
    def of(
        cls,
        run: Run,
        number: int,
        places: Sequence[int],
        clock: Sequence[ClockFit],
        matching: Matching,
        times: Timing,
        source: str,
    ) -> _Pipeline | None:
        traces = tuple(run.traces[place] for place in places)
        # Ranks of one host that nothing else connects have its clock in common.
        joined = len({clock[place].component for place in places}) == 1
        clocks = [clock[place] if joined else None for place in places]
        all_works: Sequence[StageWork] | None
        if source == "inferred":
            all_works = inferred_work(traces, clocks, _given(run))
        else:
            all_works = [
                stage_work(trace, fit, stage, source != "markers")
                for stage, (trace, fit) in enumerate(zip(traces, clocks, strict=True))
            ]
        if all_works is None:
            return None
        works, steps, skipped = common_sequences(
            all_works, [trace.steps.number.tolist() for trace in traces]
        )
        if not steps:
            return None
        first = [work.take(work.step == steps[0]) for work in works]
        plan = plan_of(first, _given(run))
        own = costs(works)
        cpu = any(trace.device_type == "cpu" for trace in traces)
        latency = None if cpu else measured_latency(places, matching, times)
        if latency is None and plan is not None:
            latency = apparent_latency(works, plan)
        implied = None if plan is None else expected(plan, own, latency or 0.0)
        exposed = [_exposed(place, run.traces[place], matching, times) for place in places]
        per_stage = pd.concat(
            [
                _per_stage(stage, trace, works, implied, steps, exposed[stage])
                for stage, trace in enumerate(traces)
            ],
            ignore_index=True,
        )
        return cls(number, traces, tuple(works), plan, own, implied, latency, skipped, per_stage)


def _given(run: Run) -> str | None:
    parallel = run.conditions.get("parallel")
    value = parallel.get("schedule") if isinstance(parallel, Mapping) else None
    return value if isinstance(value, str) else None


class _Exposed(NamedTuple):
    """Transfers of one rank, on the common clock: waiting for the other end, and moving data."""

    waiting: Intervals
    moving: Intervals


def _exposed(place: int, trace: RankTrace, matching: Matching, times: Timing) -> _Exposed | None:
    """None where no transfer of this rank could be matched, or they are upper bounds."""
    rows = matching.rows
    mine = np.flatnonzero(
        (rows.trace == place) & matching.p2p()[rows.instance] & times.comparable[rows.instance]
    ) if len(rows) else np.empty(0, dtype=np.intp)  # fmt: skip
    if len(mine) == 0 or trace.device_type == "cpu":
        return None
    start, end = times.arrival_ns[mine], times.end_ns[mine]
    last = np.minimum(start + times.wait_ns[mine], end)
    moving = union(last, end)
    return _Exposed(subtract(union(start, last), moving), moving)


def _per_stage(
    stage: int,
    trace: RankTrace,
    works: Sequence[StageWork],
    implied: Expected | None,
    steps: Sequence[int],
    exposed: _Exposed | None,
) -> pd.DataFrame:
    """One row per step of one rank."""
    number = np.array(steps, dtype=np.int64)
    low, high = _windows(works, number)
    own = works[stage]
    busy = _by_step(own.busy_ns, own.step, number)
    bubble = high - low - busy
    parts = _parts(stage, implied, bubble)
    warmup, cooldown = _phases(own, number, low, high)
    working = union(own.begin_ns, own.end_ns)
    inside = (
        (None, None)
        if exposed is None
        else tuple(
            covered_within(subtract(part, working), low, high)
            for part in (exposed.waiting, exposed.moving)
        )
    )
    use = dict(zip(trace.steps.number.tolist(), trace.statistic_steps().tolist(), strict=True))
    unknown = pd.array([None] * len(number), dtype="Int64")
    return table(
        PER_STAGE,
        {
            "stage": np.full(len(number), stage),
            "rank": np.full(len(number), trace.rank),
            "step": number,
            "step_ns": high - low,
            "busy_ns": busy,
            "bubble_ns": bubble,
            "bubble_ratio": bubble / (high - low),
            **parts,
            "warmup_ns": warmup,
            "steady_ns": bubble - warmup - cooldown,
            "cooldown_ns": cooldown,
            "recv_wait_ns": unknown if inside[0] is None else inside[0],
            "transfer_ns": unknown if inside[1] is None else inside[1],
            "counted": [use[step] for step in steps],
        },
    )


def _windows(works: Sequence[StageWork], number: Int64) -> tuple[Int64, Int64]:
    """Begin and end of the pipeline in each step."""
    low = np.full(len(number), np.iinfo(np.int64).max)
    high = np.full(len(number), np.iinfo(np.int64).min)
    for work in works:
        place = np.searchsorted(number, work.step)
        np.minimum.at(low, place, work.begin_ns)
        np.maximum.at(high, place, work.end_ns)
    return low, high


def _by_step(values: Int64, step: npt.NDArray[np.int32], number: Int64) -> Int64:
    total = np.zeros(len(number), dtype=np.int64)
    np.add.at(total, np.searchsorted(number, step), values)
    return total


def _parts(stage: int, implied: Expected | None, bubble: Int64) -> dict[str, npt.ArrayLike]:
    """The four parts, and the expected bubble; null where nothing could be replayed."""
    if implied is None:
        unknown = pd.array([None] * len(bubble), dtype="Int64")
        return dict.fromkeys(("expected_bubble_ns", *_PARTS), unknown)
    known = [round(part[stage]) for part in (implied.schedule, implied.unequal, implied.linked)]
    same = np.ones(len(bubble), dtype=np.int64)
    return {
        "expected_bubble_ns": known[1] * same,
        "schedule_ns": known[0] * same,
        "imbalance_ns": (known[1] - known[0]) * same,
        "p2p_ns": (known[2] - known[1]) * same,
        "jitter_ns": bubble - known[2],
    }


def _phases(work: StageWork, number: Int64, low: Int64, high: Int64) -> tuple[Int64, Int64]:
    """Bubble before the first backward, and after the last forward or first backward."""
    place = np.searchsorted(number, work.step)
    forward = work.kind == 0
    first_backward = high.copy()
    np.minimum.at(first_backward, place[~forward], work.begin_ns[~forward])
    last_forward = low.copy()
    np.maximum.at(last_forward, place[forward], work.end_ns[forward])
    turn = np.maximum(first_backward, last_forward)
    before = work.begin_ns < first_backward[place]
    after = work.begin_ns >= turn[place]
    warm_busy = _by_step(work.busy_ns[before], work.step[before], number)
    cool_busy = _by_step(work.busy_ns[after], work.step[after], number)
    return first_backward - low - warm_busy, high - turn - cool_busy


# -- the result ----------------------------------------------------------------------------------


def _result(
    run: Run, found: Sequence[_Pipeline], per_stage: pd.DataFrame, source: str
) -> PipelineResult:
    counted = per_stage[per_stage.counted]
    counted = counted if len(counted) else per_stage
    plans = [item.plan for item in found if item.plan is not None]
    implied = [item.expected for item in found if item.expected is not None]
    forms = [item.closed_form for item in implied if item.closed_form is not None]
    latencies = [item.latency_ns for item in found if item.latency_ns is not None]
    return PipelineResult(
        per_stage=per_stage,
        costs=pd.concat([_cost_rows(item) for item in found], ignore_index=True),
        actions=pd.concat([_action_rows(item) for item in found], ignore_index=True),
        schedule=plans[0].schedule if plans else "unknown",
        recognised=bool(plans) and all(plan.recognised for plan in plans),
        source=source,
        microbatches=plans[0].pipeline.microbatches if plans else None,
        bubble_ratio=float(counted.bubble_ns.sum() / counted.step_ns.sum()),
        expected_bubble_ratio=float(np.mean([item.ratio for item in implied])) if implied else None,
        closed_form_ratio=float(np.mean(forms)) if forms else None,
        p2p_latency_ns=float(np.median(latencies)) if latencies else None,
        skipped_count=sum(item.skipped for item in found),
        findings=_findings(run, found, counted, source),
    )


def _cost_rows(item: _Pipeline) -> pd.DataFrame:
    rows = []
    for trace, work in zip(item.traces, item.works, strict=True):
        for place, kind in enumerate(KINDS):
            for stage in sorted(set(work.stage[work.kind == place].tolist())):
                n = int(((work.kind == place) & (work.stage == stage)).sum())
                rows.append((stage, trace.rank, kind.value, n, item.costs[kind, stage]))
    columns = list(zip(*rows, strict=True))
    return table(COSTS, dict(zip(COSTS.names, map(list, columns), strict=True)))


def _action_rows(item: _Pipeline) -> pd.DataFrame:
    """The actions of the counted step whose window is of median length."""
    frame = item.per_stage.drop_duplicates("step")
    usual = frame[frame.counted] if frame.counted.any() else frame
    order = usual.sort_values("step_ns", kind="stable")
    step = int(order.step.iloc[(len(order) - 1) // 2])
    low = _windows(item.works, np.array([step]))[0] if len(usual) == 1 else None
    parts = [work.take(work.step == step) for work in item.works]
    begin = int(low[0]) if low is not None else min(int(part.begin_ns.min()) for part in parts)
    frames = [
        table(
            ACTIONS,
            {
                "pipeline": np.full(len(part), item.number),
                "rank": np.full(len(part), trace.rank),
                "step": np.full(len(part), step),
                "stage": part.stage,
                "action": [KINDS[kind].value for kind in part.kind],
                "microbatch": part.microbatch,
                "start_ns": part.begin_ns - begin,
                "length_ns": part.end_ns - part.begin_ns,
                "busy_ns": part.busy_ns,
            },
        )
        for trace, part in zip(item.traces, parts, strict=True)
    ]
    return pd.concat(frames, ignore_index=True)


# -- findings ------------------------------------------------------------------------------------


def _findings(
    run: Run, found: Sequence[_Pipeline], counted: pd.DataFrame, source: str
) -> tuple[Finding, ...]:
    """One for each cause of bubbles that costs at least half a per cent of the step."""
    step_ns = _mean_step(run)
    if step_ns <= 0:
        return ()
    if counted.schedule_ns.isna().any():
        lost = float(counted.bubble_ns.mean())
        return (
            _finding(run, counted, step_ns, lost, source,
                     f"{percent(lost / step_ns)} of step time is pipeline bubble",
                     "record all ranks of the pipeline to see why"),
        )  # fmt: skip
    made = []
    for part, title, advice in _causes(found, counted):
        lost = float(counted[part].mean())
        if lost >= _LEAST_SHARE * step_ns and not _uncertain(counted, part):
            words = f"{percent(lost / step_ns)} of step time is {title}"
            made.append(_finding(run, counted, step_ns, lost, source, words, advice))
    return tuple(made)


def _mean_step(run: Run) -> float:
    lengths = [
        trace_ns
        for trace in run.traces
        for trace_ns in (trace.steps.end_ns - trace.steps.start_ns)[trace.statistic_steps()]
    ]
    return float(np.mean(lengths)) if lengths else 0.0


def _uncertain(counted: pd.DataFrame, part: str) -> bool:
    """Whether a part that differs between steps may as well be nothing."""
    by_step = counted.groupby("step")[part].mean().astype(float)
    if len(by_step) < 3:
        return False
    error = float(by_step.std(ddof=1)) / np.sqrt(len(by_step))
    return bool(by_step.mean() < 2 * error)


def _causes(found: Sequence[_Pipeline], counted: pd.DataFrame) -> Iterator[tuple[str, str, str]]:
    """Column, words and advice of each cause."""
    plan = next((item.plan for item in found if item.plan is not None), None)
    count = plan.pipeline.microbatches if plan else 0
    ranks = plan.pipeline.placement.ranks if plan else 0
    name = plan.schedule if plan else "unknown"
    yield (
        "schedule_ns",
        f"the bubble that the schedule itself implies ({name}, {ranks} stages, "
        f"{count} microbatches)",
        "use more microbatches, or a schedule with less bubble (interleaved, zero bubble)",
    )
    busy = counted.groupby("stage").busy_ns.mean()
    slow, ratio = int(busy.idxmax()), float(busy.max() / busy.mean())
    yield (
        "imbalance_ns",
        f"lost because stages differ: stage {slow} works {percent(ratio - 1)} more than the mean",
        f"move layers away from stage {slow}; embedding and loss count as layers, too",
    )
    yield (
        "p2p_ns",
        "spent on transfers between stages",
        "place neighbouring stages on one host; send earlier or smaller activations",
    )
    yield (
        "jitter_ns",
        "pipeline bubble beyond what stages and transfers explain",
        "look at launch gaps inside actions and for a rank that pauses now and then",
    )


def _finding(
    run: Run,
    counted: pd.DataFrame,
    step_ns: float,
    lost: float,
    source: str,
    title: str,
    advice: str,
) -> Finding:
    steps, ranks = counted.step.nunique(), counted["rank"].nunique()
    replayed = "replay of the schedule with measured medians; "
    return Finding(
        analysis="pipeline",
        title=title,
        lost_ns_per_step=round(lost),
        lost_ratio=lost / step_ns,
        ranks=tuple(sorted(set(counted["rank"].tolist()))) if run.missing_ranks else (),
        evidence=f"{replayed if 'replay' not in title else ''}{steps} steps of {ranks} ranks, "
        f"actions from {source}",
        confidence=Confidence.LOW if source == "inferred" else Confidence.HIGH,
        advice=advice,
    )


ANALYZER = Analyzer(
    name="pipeline",
    question="How long do pipeline stages stand idle, and why?",
    analyze=analyze,
    result=PipelineResult,
    tables={"per_stage": PER_STAGE, "costs": COSTS, "actions": ACTIONS},
    scalars=(
        Column("schedule", "str", "", "Schedule that the actions follow, or that was given."),
        Column("recognised", "bool", "", "The order of actions is exactly that schedule's."),
        Column("source", "str", "", '"markers", "torch names" or "inferred".'),
        Column("microbatches", "int64", "count", "Microbatches per step."),
        Column("bubble_ratio", "float64", "ratio", "Bubble over the pipelines' time, all ranks."),
        Column("expected_bubble_ratio", "float64", "ratio", "The same of the replayed schedule."),
        Column("closed_form_ratio", "float64", "ratio", "The same by formula, equal stages."),
        Column("p2p_latency_ns", "float64", "ns", "Median time of a transfer between stages."),
        Column("skipped_count", "int64", "count", "Steps left out: actions are missing in them."),
    ),
)
