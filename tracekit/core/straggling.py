"""The case of a run: whose work is in excess, what that costs, who is to blame, how surely."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.core.collective import Matching
from tracekit.core.errors import MissingDataError
from tracekit.core.excess import Excess, excess
from tracekit.core.finding import percent
from tracekit.core.hostgaps import sums
from tracekit.core.kerneltimes import kernels
from tracekit.core.permutation import SIGNIFICANT_P, noise_floor, persistence
from tracekit.core.program import Program, program, window
from tracekit.core.replay import Graph
from tracekit.core.roles import Roles, roles
from tracekit.core.run import Run
from tracekit.core.slowops import slow_op, with_op
from tracekit.core.staged import staged
from tracekit.core.timing import Timing, across, timing
from tracekit.core.verdict import (
    ENOUGH,
    LEAST_LOSS,
    NOBODY,
    Verdict,
    cause_of,
    marked_cause,
    verdict,
)
from tracekit.core.whatif import WhatIf, ideals, recovered, saved_by_halving, what_if

LEAST_MATCHED = 0.5  # share of calls with known members below which there is no answer
WARN_ERROR, REFUSE_ERROR = 0.02, 0.05
LASTING = 0.75  # share of steps in which a culprit is slow, to call it lasting


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """All that is known of a run, up to who is to blame."""

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


def case_of(run: Run) -> Case:
    """Compare the ranks of a run and find who is to blame.

    Raises:
        MissingDataError: the ranks cannot be compared; the message says why.
    """
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
    kernel = kernels(run.traces, clock, made)
    found = excess(run.traces, clock, made, matching, who, kernel)
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
    own = sums(made, made.busy_ns + made.gap_ns, len(run.traces))
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
        told = {marked_cause(place, found) for place in places}
        lasting = persistence(own, who.role, places)
        if named.cause is None or told != {named.cause}:
            chance = lasting
        if named.kind == "rank" and len(places) > 1 and _by_turns(lasting, found, who, places):
            alone = _one_for_all(run, found, what, places, made, plan)
            named = alone or Verdict("diffuse", "", (), named.share, None)
            places = [place for place, rank in enumerate(run.ranks) if rank in named.ranks]
            chance = persistence(own, who.role, places) if alone else None
    unjudged = _unjudged(run, matching, made, plan, found, what)
    return Case(run, matching, times, made, who, found, what, named, floor, chance, unjudged)


def _by_turns(chance: float | None, found: Excess, who: Roles, places: Sequence[int]) -> bool:
    """Whether several ranks were only slow by turns, so that no set of them is the culprit.

    Where all of a role are slow at some time there is nobody left who is healthy.
    """
    chosen = set(places)
    if len(chosen) == len(who.role):
        return True
    members = [{p for p, own in enumerate(who.role) if own == who.role[place]} for place in places]
    if any(len(mine) > 1 and mine <= chosen for mine in members):
        return True
    over = (found.busy_ns + found.gap_ns)[list(places)]
    often = (over > 0.5 * over.max(axis=1, keepdims=True)).mean(axis=1)
    return bool((often < LASTING).all()) and (chance is None or chance > SIGNIFICANT_P)


def _one_for_all(
    run: Run, found: Excess, what: WhatIf, places: Sequence[int], made: Program, plan: Graph
) -> Verdict | None:
    """The one of several ranks that explains the loss alone, if there is one."""
    shares = recovered(made, plan, found, run.clock, what, [[place] for place in places])
    best = int(np.argmax(shares))
    if shares[best] < ENOUGH:
        return None
    place = places[best]
    rank = run.ranks[place]
    return Verdict(
        "rank", str(rank), (rank,), shares[best], cause_of(run.traces[place], place, found)
    )


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


def status(case: Case) -> tuple[str, str]:
    """How far the answer can be trusted, and why not further."""
    run = case.run
    parts = len({item.component for item in run.clock})
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
            "of step time more than its peers, but not steadily; where ranks share cores, other "
            "programs may do that, so nobody is charged with it"
        )
    if not all(trace.steps_marked for trace in run.traces):
        return "partial", "steps are not marked, so the whole capture counts as one"
    if case.steps == 1 and case.verdict.kind != "none":
        return "partial", "only one step is whole on all ranks; what is slow in it may be chance"
    if case.verdict.kind == "none" and case.unjudged:
        return "partial", case.unjudged
    return "ok", ""


def lasts(case: Case) -> str | None:
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
