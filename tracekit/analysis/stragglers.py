"""Stragglers: which ranks make the others wait, how much that costs, and why.

Definition: each rank's own work (computing, and gaps in which its host is late) is compared
with that of peers of equal role in the same step; what clearly exceeds it, lastingly or in
episodes, is its *excess*. The run is then replayed as a graph of work, waits and transfers:
``slowdown = T / T_healthy`` with all excess removed, ``waste_ratio = 1 - 1 / slowdown``, and per
set of ranks ``share_recovered``, the part of that loss which removing its excess alone would
win back. The culprit is the smallest set that explains the loss; nobody is named for less
than 1 % of step time. ``late_ns`` is how late a rank arrives, whoever made it late;
``blame_ns`` is the time the others would wait less without its own excess.
``noise_floor`` is the slowdown that scatter alone would show, and ``persistence_p`` the chance
that ranks of equal role are so persistently slow, both by permutation within steps. Nobody
is named below the floor, and a name is only sure where p is at most 0.05, too.
``slowdown_even`` compares with a run in which every kernel takes the median of its class, as
in Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025): it counts all scatter as loss.
Limits: a slowness that all peers share has nothing to be compared with and is not seen.
An operation kind is named where it is slow in some steps and the others are not, or always
slower than in sibling groups of equal size and message while other operations of its group
are not; a link where all that crosses it is slower than in sibling groups, or, on a CPU,
where sends of both directions leave late while their hosts wait for them. What is slow in
every step and every group cannot be told from what is healthy. Where transfers without a
sibling group matter to the step, ``unjudged`` names them, and where nobody is named the status
is no more than partial. ``contention_factor`` of the collectives compares with a benchmark.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.collective import Matching
from tracekit.core.errors import MissingDataError
from tracekit.core.excess import Excess, excess
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.kerneltimes import kernels
from tracekit.core.permutation import SIGNIFICANT_P, noise_floor, persistence
from tracekit.core.program import Program, program, window
from tracekit.core.replay import Graph
from tracekit.core.roles import RankSet, Roles, roles
from tracekit.core.run import Run
from tracekit.core.slowops import slow_op, with_op
from tracekit.core.staged import staged
from tracekit.core.table import Column, Schema
from tracekit.core.timing import Timing, across, timing
from tracekit.core.verdict import LEAST_LOSS, NOBODY, Verdict, cause_of, marked_cause, verdict
from tracekit.core.whatif import WhatIf, ideals, recovered, saved_by_halving, what_if

LEAST_MATCHED = 0.5  # share of calls with known members below which there is no answer
WARN_ERROR, REFUSE_ERROR = 0.02, 0.05
LASTING = 0.75  # share of steps in which a culprit is slow, to call it lasting

PER_RANK = Schema(
    Column("rank", "int32", "", "Global rank."),
    Column("stage", "Int32", "", "Pipeline stage; null without stages."),
    Column(
        "late_ns", "int64", "ns", "Sum over calls of arrival after the median member, per step."
    ),
    Column("blame_ns", "int64", "ns", "Time others would wait less without its excess, per step."),
    Column("wait_ns", "int64", "ns", "Time it waited for the last to arrive, per step."),
    Column("busy_excess_ns", "int64", "ns", "Computing beyond its peers', per step."),
    Column("gap_excess_ns", "int64", "ns", "Host gaps beyond its peers', per step."),
    Column("slowdown", "float64", "", "Slowdown of the run if only this rank had its excess."),
    Column(
        "share_recovered", "float64", "ratio", "Part of the loss that its repair would recover."
    ),
    Column("cause", "str", "", "Why, where one cause makes 80 % of its excess; else empty."),
)
PER_STEP = Schema(
    Column("step", "int64", "", "Step number."),
    Column("step_ns", "int64", "ns", "From the last rank's end of the step before to its end."),
    Column("healthy_ns", "int64", "ns", "The same, replayed without excess."),
    Column(
        "last_rank", "Int32", "", "Rank most often last to arrive; null when nobody clearly is."
    ),
    Column("slow", "bool", "", "The step is long for all ranks alike: no rank's doing."),
)
LATENESS = Schema(
    Column("rank", "int32", "", "Global rank."),
    Column("step", "int64", "", "Step number."),
    Column("late_ns", "int64", "ns", "Sum over calls of arrival after the median member."),
)
WAITS = Schema(
    Column("waiter", "int32", "", "Rank that waited."),
    Column("last", "int32", "", "Rank that arrived last."),
    Column("wait_ns", "int64", "ns", "Time waited, per step, where the last is clear."),
)
SETS = Schema(
    Column("kind", "str", "", "rank, tp_group, stage, dp_replica, host, link or op."),
    Column("members", "str", "", "The ranks, or the number or name of the set."),
    Column(
        "share_recovered", "float64", "ratio", "Part of the loss that its repair would recover."
    ),
    Column("named", "bool", "", "This is the culprit."),
)


@dataclass(frozen=True, slots=True, eq=False)
class StragglersResult:
    """Who is slow, what it costs, why; ``status`` says how far to trust it."""

    per_rank: pd.DataFrame
    per_step: pd.DataFrame
    lateness: pd.DataFrame
    waits: pd.DataFrame
    sets: pd.DataFrame
    slowdown: float
    waste_ratio: float
    slowdown_even: float
    slowdown_rebalanced: float
    replay_error_ratio: float
    culprit_kind: str
    culprit_members: str
    culprit_ranks: tuple[int, ...]
    cause: str | None
    persistence: str | None
    persistence_p: float | None
    noise_floor: float
    status: str
    status_reason: str
    unjudged: str
    findings: tuple[Finding, ...]

    @property
    def clears_ranks(self) -> bool:
        """Whether certainly no rank makes the others wait; transfers may still be in doubt."""
        return self.culprit_kind == "none" and self.status_reason in ("", self.unjudged)


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """All that is known of a run before the verdict."""

    run: Run
    matching: Matching
    times: Timing
    program: Program
    who: Roles
    found: Excess
    what: WhatIf
    verdict: Verdict
    floor: float  # slowdown that scatter alone would show
    chance: float | None  # that chance makes the culprit so persistently slow
    unjudged: str  # transfers that may be slow in every step, and why nobody can tell

    @property
    def steps(self) -> int:
        return self.program.window.steps


def analyze(run: Run) -> StragglersResult:
    """Find the stragglers of a run.

    Raises:
        MissingDataError: the ranks cannot be compared; the message says why.
    """
    case = _case(run)
    what, found = case.what, case.verdict
    status, reason = _status(case)
    return StragglersResult(
        per_rank=_per_rank(case),
        per_step=_per_step(case),
        lateness=_lateness(case),
        waits=_waits(case),
        sets=_sets(case),
        slowdown=what.slowdown,
        waste_ratio=1 - 1 / what.slowdown,
        slowdown_even=what.observed_ns / what.even_ns,
        slowdown_rebalanced=what.observed_ns / what.rebalanced_ns,
        replay_error_ratio=what.error,
        culprit_kind=found.kind,
        culprit_members=found.members,
        culprit_ranks=found.ranks,
        cause=found.cause,
        persistence=_persistence(case),
        persistence_p=case.chance,
        noise_floor=case.floor,
        status=status,
        status_reason=reason,
        unjudged=case.unjudged,
        findings=_findings(case, status),
    )


def _case(run: Run) -> _Case:
    if len(run.traces) < 2:
        raise MissingDataError("one rank has nobody to be compared with; load the other ranks too")
    if not any(len(trace.calls) for trace in run.traces):
        raise MissingDataError("no communication in any trace; record a job of more than one rank")
    matching, clock = across(run)
    _check_matched(run, matching)
    run = dataclasses.replace(
        run, traces=tuple(map(staged, run.traces)), matching=matching, clock=clock
    )
    chosen = window(run.traces, clock)
    if chosen is None:
        raise MissingDataError(
            "no step is held whole by all ranks; record more steps, or all ranks at the same time"
        )
    times = timing(run.traces, matching, clock)
    made = program(run.traces, matching, clock, times, chosen)
    if made.graph is None:
        raise MissingDataError(
            "the calls contradict each other in time, so they cannot be replayed; "
            "the ranks' clocks or groups are not what the traces say"
        )
    who = roles(run.traces, run.topology, matching, clock)
    found = excess(run.traces, clock, made, matching, who)
    kernel = kernels(run.traces, clock, made)
    even, rebalanced = ideals(made, kernel.kernels, who, len(kernel.names))
    what = what_if(made, made.graph, found, who, clock, who.sets, run.ranks, even, rebalanced)
    if what.error > REFUSE_ERROR:
        raise MissingDataError(
            f"the replay misses the recorded time by {percent(what.error)}; "
            "what happened cannot be told from these traces"
        )

    plan = made.graph
    named = verdict(
        run.traces,
        found,
        what,
        who,
        lambda choices: recovered(made, plan, found, clock, what, choices),
    )
    own = _own_work(made, len(run.traces))
    healthy = own - found.busy_ns - found.gap_ns
    floor = noise_floor(healthy, who.role, float(np.median(what.healthy_step_ns)))
    if what.slowdown <= floor:
        named = NOBODY
    if named.kind == "none" and (slow := slow_op(run.traces, made, matching, times)) is not None:
        found = with_op(found, slow, len(run.traces))
        again = what_if(made, plan, found, who, clock, who.sets, run.ranks, even, rebalanced)
        if again.slowdown > floor and 1 - 1 / again.slowdown >= LEAST_LOSS:
            what = again
            named = Verdict("op", slow.name, slow.ranks, 1.0, None)
    chance = None
    if named.kind not in ("none", "diffuse", "link", "op"):
        places = [place for place, rank in enumerate(run.ranks) if rank in named.ranks]
        # What the host's own marks tell is known, not guessed from how often it happened.
        told = {marked_cause(run.traces[k], float(found.gap_ns[k].sum())) for k in places}
        if named.cause is None or told != {named.cause}:
            chance = persistence(own, who.role, places)
    unjudged = _unjudged(run, matching, made, plan, found, what)
    return _Case(run, matching, times, made, who, found, what, named, floor, chance, unjudged)


def _unjudged(
    run: Run, matching: Matching, made: Program, plan: Graph, found: Excess, what: WhatIf
) -> str:
    """The transfers that nothing is compared with, if the steps would gain from faster ones."""
    saved = saved_by_halving(made, plan, run.clock, what, found.unjudged)
    if saved < LEAST_LOSS:
        return ""
    axes = [group.axis or group.description for group in matching.groups]
    table = matching.instances
    total: dict[str, float] = defaultdict(float)
    for node in np.flatnonzero(found.unjudged).tolist():
        row = made.instance[node]
        total[f"{matching.names[table.op[row]]} over {axes[table.group[row]]}"] += made.gap_ns[node]
    longest = max(total, key=lambda name: total[name])
    more = f" and {len(total) - 1} more" if len(total) > 1 else ""
    on_cpu = any(trace.device_type == "cpu" for trace in run.traces)
    why = "transfers on a CPU are not compared" if on_cpu else "no other group does the same"
    see = "; collectives compares them with the benchmark" if run.baseline else ""
    return (
        f"whether {longest}{more} is always slow cannot be told, as {why}; "
        f"at half the time the steps would be {percent(saved)} shorter{see}"
    )


def _own_work(made: Program, traces: int) -> npt.NDArray[np.float64]:
    """(traces, steps) ns that each rank's own work took, without waiting."""
    out = np.zeros((traces, made.window.steps))
    inside = (made.trace >= 0) & (made.step >= 0)
    work = (made.busy_ns + made.gap_ns)[inside]
    np.add.at(out, (made.trace[inside], made.step[inside]), work)
    return out


def _check_matched(run: Run, matching: Matching) -> None:
    """Whether enough calls are known across ranks to say who waits for whom."""
    calls = sum(len(trace.calls) for trace in run.traces)
    if len(matching.rows) >= LEAST_MATCHED * calls:
        return
    reasons = "; ".join(dict.fromkeys(item.reason for item in matching.refusals))
    if not reasons and run.missing_ranks:
        reasons = "the other members of their groups are not loaded"
    raise MissingDataError(
        f"{len(matching.rows)} of {calls} calls could be matched across ranks: "
        + (reasons or "their process groups are not recorded")
    )


def _status(case: _Case) -> tuple[str, str]:
    """How far the answer can be trusted, and why not further."""
    run = case.run
    parts = len({item.component for item in across(run)[1]})
    calls = len(case.program.arrive)
    open_calls = int((case.program.arrive_row < 0).sum())
    if parts > 1:
        return "not_comparable", (
            f"nothing connects the clocks of {parts} sets of ranks; "
            "only ranks within each are compared"
        )
    if run.missing_ranks:
        return "partial", (
            f"{len(run.missing_ranks)} of {run.topology.world_size} ranks are missing; "
            "one of them may be the slow one"
        )
    if open_calls > 0.02 * calls:
        return "partial", f"{percent(open_calls / calls)} of the calls could not be matched"
    if case.what.error > WARN_ERROR:
        return "partial", f"the replay misses the recorded time by {percent(case.what.error)}"
    if case.verdict.kind == "link" and len(case.verdict.ranks) > 2:
        return "partial", (
            "the slow link is inside this group; which pair it joins cannot be told from its "
            "collectives alone"
        )
    if case.verdict.kind == "link" and any(trace.device_type == "cpu" for trace in run.traces):
        return "partial", (
            "sends are held back where their host waits for them; what they are held back "
            "while it works is not seen, so the loss is at least this"
        )
    left_out = case.found.left_out_ns * case.steps / case.what.observed_ns
    if case.verdict.kind == "none" and left_out.max() >= LEAST_LOSS:
        return "partial", (
            f"rank {run.ranks[int(left_out.argmax())]} pauses for {percent(float(left_out.max()))} "
            "of step time in single steps; where ranks share cores, other programs may do that, "
            "so nobody is charged with it"
        )
    if not all(trace.steps_marked for trace in run.traces):
        return "partial", "steps are not marked, so the whole capture counts as one"
    if case.verdict.kind == "none" and case.unjudged:
        return "partial", case.unjudged
    return "ok", ""


def _persistence(case: _Case) -> str | None:
    """Whether the culprit is slow throughout, again and again, or was so once."""
    named = case.verdict
    if named.kind in ("none", "diffuse"):
        return None
    if named.kind in ("link", "op"):
        lasting = all(item.lasting for item in case.found.links if item.kind == named.kind)
        return "lasting" if lasting else "recurring"
    places = [place for place, trace in enumerate(case.run.traces) if trace.rank in named.ranks]
    over = (case.found.busy_ns + case.found.gap_ns)[places].max(axis=0)
    hit = over > 0.5 * over.max()
    by_chance = case.chance is not None and case.chance > SIGNIFICANT_P
    if by_chance and hit.mean() < 1:
        return "recurring" if hit.sum() > 1 else "isolated"
    if hit.mean() >= LASTING or (case.steps == 1 and not case.found.episodic[places].any()):
        return "lasting"
    return "recurring" if hit.sum() > 1 else "isolated"


# -- tables --------------------------------------------------------------------------


def _late(case: _Case) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(rows,) ns after the median arrival, and place of the row's step in the window or -1."""
    rows, times = case.matching.rows, case.times
    size = len(case.matching.instances)
    order = np.lexsort((times.arrival_ns, rows.instance))
    count = np.bincount(rows.instance, minlength=size)
    first = np.cumsum(count) - count
    middle = times.arrival_ns[order][first + np.maximum(count - 1, 0) // 2]
    late = np.maximum(times.arrival_ns - middle[rows.instance], 0)
    late[~times.comparable[rows.instance]] = 0
    bounds = case.program.window.bounds_ns
    step = np.full(len(rows), -1, dtype=np.int64)
    for place in range(len(case.run.traces)):
        mine = rows.trace == place
        at = np.searchsorted(bounds[place], times.arrival_ns[mine], side="right") - 1
        step[mine] = np.where(at < bounds.shape[1] - 1, at, -1)
    return late, step


def _per_rank(case: _Case) -> pd.DataFrame:
    run, what, found = case.run, case.what, case.found
    count, steps = len(run.traces), case.steps
    late, step = _late(case)
    inside = step >= 0
    trace = case.matching.rows.trace
    owner = {number: place for place, number in enumerate(what.owners)}
    apart = [owner.get(place) for place in range(count)]
    wait = np.maximum(case.times.wait_ns, 0)
    return table(
        PER_RANK,
        {
            "rank": run.ranks,
            "stage": pd.array(
                [s if max(case.who.stage) > 0 else None for s in case.who.stage], dtype="Int32"
            ),
            "late_ns": _sums(trace[inside], late[inside], count) // steps,
            "blame_ns": [0 if k is None else round(what.blame_ns[k] / steps) for k in apart],
            "wait_ns": _sums(trace[inside], wait[inside], count) // steps,
            "busy_excess_ns": np.rint(found.busy_ns.mean(axis=1)).astype(np.int64),
            "gap_excess_ns": np.rint(found.gap_ns.mean(axis=1)).astype(np.int64),
            "slowdown": [1.0 if k is None else what.alone[k] for k in apart],
            "share_recovered": [0.0 if k is None else what.recovered[k] for k in apart],
            "cause": [
                (cause_of(run.traces[place], place, found) or "")
                if apart[place] is not None
                else ""
                for place in range(count)
            ],
        },
    )


def _sums(
    key: npt.NDArray[np.int32], values: npt.NDArray[np.int64], size: int
) -> npt.NDArray[np.int64]:
    out = np.zeros(size, dtype=np.int64)
    np.add.at(out, key, values)
    return out


def _per_step(case: _Case) -> pd.DataFrame:
    """Steps, with the rank that was last most often, and those slow for everybody."""
    rows, times = case.matching.rows, case.times
    _, step = _late(case)
    last = times.last[times.last >= 0]
    names: list[int | None] = []
    for number in range(case.steps):
        there = rows.trace[last[step[last] == number]]
        counts = np.bincount(there, minlength=len(case.run.traces))
        clear = len(there) > 0 and counts.max() > 0.5 * counts.sum()
        names.append(case.run.ranks[int(counts.argmax())] if clear else None)
    healthy = case.what.healthy_step_ns
    typical = float(np.median(healthy))
    scatter = 1.4826 * float(np.median(np.abs(healthy - typical)))
    slow = healthy - typical > np.maximum(0.05 * typical, 5 * scatter)
    return table(
        PER_STEP,
        {
            "step": case.program.window.numbers,
            "step_ns": np.rint(case.what.step_ns).astype(np.int64),
            "healthy_ns": np.rint(healthy).astype(np.int64),
            "last_rank": pd.array(names, dtype="Int32"),
            "slow": slow,
        },
    )


def _lateness(case: _Case) -> pd.DataFrame:
    count, steps = len(case.run.traces), case.steps
    late, step = _late(case)
    inside = step >= 0
    sums = np.zeros((count, steps), dtype=np.int64)
    np.add.at(sums, (case.matching.rows.trace[inside], step[inside]), late[inside])
    return table(
        LATENESS,
        {
            "rank": np.repeat(case.run.ranks, steps),
            "step": np.tile(case.program.window.numbers, count),
            "late_ns": sums.reshape(-1),
        },
    )


def _waits(case: _Case) -> pd.DataFrame:
    """Who waited for whom, where the last to arrive is clear."""
    rows, times = case.matching.rows, case.times
    _, step = _late(case)
    last = times.last[rows.instance]
    use = (last >= 0) & (step >= 0) & (times.wait_ns > 0)
    ranks = np.array(case.run.ranks, dtype=np.int64)
    key = ranks[rows.trace[use]] << 32 | ranks[rows.trace[last[use]]]
    pairs, place = np.unique(key, return_inverse=True)
    total = _sums(place.reshape(-1).astype(np.int32), times.wait_ns[use], len(pairs)) // case.steps
    keep = total > 0
    return table(
        WAITS,
        {
            "waiter": (pairs >> 32)[keep],
            "last": (pairs & 0xFFFFFFFF)[keep],
            "wait_ns": total[keep],
        },
    )


def _sets(case: _Case) -> pd.DataFrame:
    """All sets with a part in the loss, and the culprit itself."""
    named = case.verdict
    rows: list[tuple[str, str, float]] = [
        (item.kind, item.members, share)
        for item, share in zip(case.who.sets, case.what.sets, strict=True)
    ]
    count = len(case.run.traces)
    rows += [
        (item.kind, item.label, case.what.recovered[case.what.owners.index(count + number)])
        for number, item in enumerate(case.found.links)
        if count + number in case.what.owners
    ]
    if named.kind not in ("none", "diffuse") and not any(
        (kind, members) == (named.kind, named.members) for kind, members, _ in rows
    ):
        rows.append((named.kind, named.members, named.share))
    rows.sort(key=lambda row: -row[2])
    return table(
        SETS,
        {
            "kind": [row[0] for row in rows],
            "members": [row[1] for row in rows],
            "share_recovered": [row[2] for row in rows],
            "named": [(row[0], row[1]) == (named.kind, named.members) for row in rows],
        },
    )


# -- findings ------------------------------------------------------------------------


def _findings(case: _Case, status: str) -> tuple[Finding, ...]:
    """The culprit, or a loss that no small set explains."""
    found, what = case.verdict, case.what
    loss = what.observed_ns - what.healthy_ns
    if found.kind == "none":
        return ()
    share = loss * max(found.share, 0.0) / what.observed_ns
    sure = case.chance is None or case.chance <= SIGNIFICANT_P
    chance = "" if case.chance is None else f"; by chance with p = {case.chance:.3g}"
    who = name_of(found.kind, found.members, found.ranks)
    if found.kind == "diffuse":
        title = (
            f"{percent(1 - 1 / what.slowdown)} of step time is lost to slow ranks, "
            "but no small set of them explains half of it"
        )
        share = 1 - 1 / what.slowdown
    else:
        because = f" ({found.cause})" if found.cause else ""
        if _persistence(case) == "isolated":
            because += ", by a single pause"
        title = f"{who} costs {percent(share)} of step time{because}"
    return (
        Finding(
            analysis="stragglers",
            title=title,
            lost_ns_per_step=round(share * what.observed_ns / case.steps),
            lost_ratio=share,
            ranks=found.ranks,
            evidence=f"replay of {case.steps} steps of {len(case.run.traces)} ranks, "
            f"{percent(what.error)} off the record; repairing it recovers "
            f"{percent(found.share)} of the loss; scatter alone would show "
            f"{percent(case.floor - 1)}{chance}",
            confidence=(
                Confidence.HIGH if status == "ok" and case.steps >= 3 and sure else Confidence.LOW
            ),
            advice=ADVICE[_advice(case)],
        ),
    )


def _advice(case: _Case) -> str:
    key = case.verdict.cause or ""
    if case.verdict.kind == "op":
        key = "op" if _persistence(case) == "lasting" else "op at times"
    return key if key in ADVICE else ""


def name_of(kind: str, members: str, ranks: Sequence[int]) -> str:
    """ "Stage 2 (ranks 4, 5)", "Rank 3", "The link 1-2"."""
    listed = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    if kind == "rank":
        return f"Rank{'s' * (len(ranks) > 1)} {members}"
    if kind == "link":
        return f"The link {members}" if len(ranks) == 2 else f"A link among ranks {listed}"
    if kind == "op":
        return f"The operation {members} (ranks {listed})"
    words = {
        "tp_group": "Tensor-parallel group", "stage": "Stage", "dp_replica": "Replica",
        "host": "Host",
    }  # fmt: skip
    if kind == "tp_group":
        return f"{words[kind]} of ranks {listed}"
    return f"{words.get(kind, kind)} {members} (ranks {listed})"


ADVICE = {
    "": "look at this rank's trace beside a peer's in the same step",
    "compute": "all its kernels are slow alike: check clocks, power and temperature of the "
    "device, or move the rank; a whole stage may hold too many layers",
    "work": "one kind of kernel takes longer: it has more or other work than its peers",
    "sequence": "its microbatches hold longer sequences: balance them by length over the ranks",
    "op": "its transfers take longer than in sibling groups, whose links are no better: compare "
    "NCCL's algorithm, protocol and channels, and the buffers, with those of a sibling",
    "op at times": "its transfers take longer in some steps only: look at what else used the "
    "network then",
    "experts": "its experts get more tokens than others: balance the routing, or place hot "
    "experts apart",
    "host": "its host launches late: look for CPU contention, synchronisation, logging",
    "gc": "its host pauses now and then: collect garbage by hand, at one time on all ranks",
    "dataloader": "its next batch comes late: more loader workers, prefetching, faster storage",
    "link": "transfers over it take longer than over its siblings: check NIC, cable, switch, "
    "NUMA binding",
}

ANALYZER = Analyzer(
    name="stragglers",
    question="Which ranks make the others wait, and what would a repair win?",
    analyze=analyze,
    result=StragglersResult,
    tables={
        "per_rank": PER_RANK,
        "per_step": PER_STEP,
        "lateness": LATENESS,
        "waits": WAITS,
        "sets": SETS,
    },
    scalars=(
        Column("slowdown", "float64", "", "Time of the run ÷ time without any excess."),
        Column(
            "waste_ratio", "float64", "ratio", "Share of time lost to excess: 1 - 1 / slowdown."
        ),
        Column("slowdown_even", "float64", "", "Against every kernel at the median of its class."),
        Column("slowdown_rebalanced", "float64", "", "The same with all stages equally long."),
        Column("replay_error_ratio", "float64", "ratio", "How far the replay misses the record."),
        Column("culprit_kind", "str", "", "Kind of the set to blame; none, or diffuse."),
        Column("culprit_members", "str", "", "What the set is called; empty for none."),
        Column("culprit_ranks", "object", "", "Global ranks of the culprit."),
        Column("cause", "str", "", "Why, where one cause makes 80 % of the excess; else null."),
        Column("persistence", "str", "", "lasting, recurring, or isolated: one step's episode."),
        Column(
            "persistence_p",
            "float64",
            "",
            "Probability that chance makes ranks so persistently slow; null without peers "
            "and where the host's own marks tell.",
        ),
        Column("noise_floor", "float64", "", "Slowdown that scatter alone would show."),
        Column("status", "str", "", "ok, partial or not_comparable."),
        Column("status_reason", "str", "", "Why the status is not ok; else empty."),
        Column("unjudged", "str", "", "Transfers nothing is compared with; empty if no matter."),
    ),
)

__all__ = ["ANALYZER", "RankSet", "StragglersResult", "analyze", "name_of"]
