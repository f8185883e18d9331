"""Excess: what each rank's own work takes longer than its peers' does.

Peers are ranks of equal role in the same step. Three kinds of excess are told apart:
*busy*, by kernel name, where a rank's kernels take a larger share of time in step
after step; *gap*, where its host lets the device wait; *link*, where the transfers of
one group take longer than those of its siblings with equal operation and size. An
excess counts when it stands out of its own scatter over steps, by four standard
errors, and is more than a trifle of the step; a gap far beyond the scatter in single
steps is an *episode*.

What healthy looks like: the lower median of four and more peers, the least of two or
three (:func:`tracekit.core.stats.low_median`). Stages, which have no peers of equal
role, are compared by the length of equal kernels (:mod:`tracekit.core.slowstages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.collective import Matching
from tracekit.core.hostgaps import (
    CPU_LEAST,
    gap_excess,
    launched_late,
    local_excess,
    marked_over_peers,
    marked_pauses,
    removed_gaps,
    sums,
)
from tracekit.core.kerneltimes import Kernel
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.roles import Roles
from tracekit.core.sequences import lengths_explain
from tracekit.core.slowkernels import (
    alike,
    even_exchanges,
    evened_experts,
    expert_groups,
    factors,
    with_most_tokens,
)
from tracekit.core.slowlinks import SlowTransfers, slow_transfers
from tracekit.core.slowsends import slow_sends
from tracekit.core.staged import is_staged
from tracekit.core.trace import Int64, Phase, RankTrace

_PEERS = 8  # that a rank's sequences are compared with


@dataclass(frozen=True, slots=True, eq=False)
class Excess:
    """What would be removed from a program to make it healthy.

    Attributes:
        removed_ns: (nodes,) float64, what each node's work has too much.
        owner: (nodes,) int32, whose fault that is: a trace's place, or ``traces + k`` for
            link k; -1 where nothing is removed.
        busy_ns, gap_ns: (traces, steps) float64, the removed parts.
        alike: (traces,) share of the busy excess that lies in names slowed alike.
        by_name: per trace, (name, busy excess in ns) with the largest first.
        left_out_ns: (traces,) float64, pauses per step that may be the doing of other programs
            on shared cores, so that nobody is charged with them.
        episodic: (traces,) whether its gap excess comes in single steps.
        begin_gap: (traces,) share of the removed gap before a step's first kernel.
        exchanging: places of the traces whose busy excess is work on tokens of others.
        most_tokens: places of the traces that exchange far more tokens than their group.
        links: slow links and operations, longest excess first.
        unjudged: (nodes,) transfers of which nothing tells the usual time.
        stage_factor: per trace, how much slower its stage is than the others.
        lengths: per trace with busy excess, whether longer sequences explain it; None where
            they have no part in it.
        marked_ns: (2, traces) float64, pauses of the host for garbage collection and for data
            beyond the peers', by its own marks, over all steps.
    """

    removed_ns: Float
    owner: npt.NDArray[np.int32]
    busy_ns: Float
    gap_ns: Float
    left_out_ns: Float
    alike: Float
    by_name: tuple[tuple[tuple[str, float], ...], ...]
    episodic: npt.NDArray[np.bool_]
    begin_gap: Float
    exchanging: frozenset[int]
    most_tokens: frozenset[int]
    links: tuple[SlowTransfers, ...]
    unjudged: npt.NDArray[np.bool_]
    stage_factor: Float
    lengths: tuple[bool | None, ...]
    marked_ns: Float


def excess(
    traces: Sequence[RankTrace],
    clock: Sequence[ClockFit],
    program: Program,
    matching: Matching,
    who: Roles,
    kernel: Kernel,
) -> Excess:
    """All excess of a run's window, in which its ranks ran these kernels."""
    on_cpu = any(trace.device_type == "cpu" for trace in traces)
    step_ns = float(np.median(np.diff(program.window.bounds_ns, axis=1)))
    removed = np.zeros(len(program.busy_ns))
    owner = np.full(len(removed), -1, dtype=np.int32)
    gaps = sums(program, program.gap_ns, len(traces))
    busy = sums(program, program.busy_ns, len(traces))
    # Experts with unequal loads differ from stage to stage, and no launch shows it.
    single = not on_cpu and not (matching.ops() == "all_to_all").any()
    factor, stage_factor = factors(kernel, who, step_ns, single=single)
    experts = expert_groups(matching, traces, program.window.numbers)
    lender, exchanging = evened_experts(kernel, factor, experts)
    gap_ns, episodic = gap_excess(gaps, who, step_ns)
    left_out = np.zeros(len(traces))
    if on_cpu:
        # Cores are shared: which part of a rank's work was slowed says little, their sum more.
        keep = local_excess(busy + gaps, who, step_ns)
        lent = lender >= 0
        # A stage's marks are its own doing, whoever has the cores: sleeping takes none.
        told = np.array([is_staged(trace) for trace in traces])
        slow_stage = told & (stage_factor > 1 + CPU_LEAST)
        factor[~keep & ~(lent & keep[np.maximum(lender, 0)]) & ~slow_stage] = 1.0
        marked = marked_pauses(traces, clock, program, who, step_ns)
        sure = np.where(keep[:, None], gap_ns, np.minimum(marked, gaps))
        left_out = np.maximum(gap_ns - sure, 0.0).mean(axis=1)
        gap_ns = sure
    else:
        gap_ns = np.minimum(gap_ns, launched_late(traces, clock, program))
    by_name = []
    for place in range(len(traces)):
        node, code, length = kernel.kernels[place]
        amount = length * (1 - 1 / factor[place, code])
        share = _clipped_to_busy(program, node, length)
        np.add.at(removed, node, amount * share)
        by_name.append(_named(kernel.names, code, amount))
    mine = program.trace >= 0
    busy_out = sums(program, removed, len(traces))
    gap_out, begin = removed_gaps(traces, clock, program, who, gap_ns, removed)
    hit = (removed != 0) & mine
    owner[hit] = np.where(lender >= 0, lender, np.arange(len(traces)))[program.trace[hit]]
    even_exchanges(traces, program, matching, lender, removed, owner)
    transfers = slow_transfers(traces, program, matching, step_ns, removed, owner)
    links = transfers.slow
    if on_cpu:
        links = slow_sends(traces, clock, program, step_ns, removed, owner)
    return Excess(
        removed_ns=removed,
        owner=owner,
        busy_ns=busy_out,
        gap_ns=gap_out,
        left_out_ns=left_out,
        alike=alike(kernel, factor),
        by_name=tuple(by_name),
        episodic=episodic,
        begin_gap=begin,
        exchanging=exchanging,
        most_tokens=with_most_tokens(experts),
        links=links,
        unjudged=transfers.unjudged,
        stage_factor=stage_factor,
        lengths=tuple(
            lengths_explain(trace, [traces[p] for p in _peers(place, who)])
            if busy_out[place].any()
            else None
            for place, trace in enumerate(traces)
        ),
        marked_ns=np.array(
            [
                np.maximum(marked_over_peers(traces, clock, program, who, (phase,)), 0).sum(axis=1)
                for phase in (Phase.GC, Phase.DATA)
            ]
        ),
    )


def _peers(place: int, who: Roles) -> list[int]:
    """Some of those of equal role."""
    same = [p for p, role in enumerate(who.role) if role == who.role[place] and p != place]
    return same[:_PEERS]


def _named(names: Sequence[str], code: Int64, amount: Float) -> tuple[tuple[str, float], ...]:
    sums = np.bincount(code, weights=amount, minlength=len(names))
    order = np.argsort(-sums, kind="stable")
    return tuple((names[place], float(sums[place])) for place in order.tolist() if sums[place] > 0)


def _clipped_to_busy(program: Program, node: npt.NDArray[np.intp], length: Float) -> Float:
    """Per kernel: its part of its node's busy time, below 1 where kernels overlap."""
    whole = np.zeros(len(program.busy_ns))
    np.add.at(whole, node, length)
    out: Float = np.minimum(1.0, program.busy_ns[node] / np.maximum(whole[node], 1e-9))
    return out
