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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.permutation import SIGNIFICANT_P
from tracekit.core.roles import RankSet
from tracekit.core.run import Run
from tracekit.core.straggling import Case, case_of, lasts, status
from tracekit.core.table import Column, Schema
from tracekit.core.verdict import cause_of

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


def analyze(run: Run) -> StragglersResult:
    """Find the stragglers of a run.

    Raises:
        MissingDataError: the ranks cannot be compared; the message says why.
    """
    case = case_of(run)
    what, found = case.what, case.verdict
    certainty, reason = status(case)
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
        persistence=lasts(case),
        persistence_p=case.chance,
        noise_floor=case.floor,
        status=certainty,
        status_reason=reason,
        unjudged=case.unjudged,
        findings=_findings(case, certainty),
    )


# -- tables --------------------------------------------------------------------------


def _late(case: Case) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
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


def _per_rank(case: Case) -> pd.DataFrame:
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


def _per_step(case: Case) -> pd.DataFrame:
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


def _lateness(case: Case) -> pd.DataFrame:
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


def _waits(case: Case) -> pd.DataFrame:
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


def _sets(case: Case) -> pd.DataFrame:
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


def _findings(case: Case, status: str) -> tuple[Finding, ...]:
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
        if lasts(case) == "isolated":
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


def _advice(case: Case) -> str:
    key = case.verdict.cause or ""
    if case.verdict.kind == "op":
        key = "op" if lasts(case) == "lasting" else "op at times"
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
