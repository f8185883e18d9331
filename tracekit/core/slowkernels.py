"""Kernels that take a rank longer than its peers, and tokens that it has too many.

The factor of a rank and kernel name is how many times longer they take than on healthy peers
of equal role, where that stands out of its scatter over steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.core.collective import Matching
from tracekit.core.kerneltimes import Kernel
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.roles import Roles
from tracekit.core.slowstages import SIGNIFICANT, single_names, whole_stages
from tracekit.core.stats import low_median, spread
from tracekit.core.trace import Int64, RankTrace

TRIFLE = 0.003  # share of the step below which an excess is not looked at
# Of each ep group: (members,) places of its traces, and bytes that each moved, NaN if not known.
ExpertGroups = Sequence[tuple[Int64, Float]]

_FAR_MORE = 1.1  # times the mean, from which more tokens are why a rank has more work
_MORE_TOKENS = 1.01  # times the mean of its group that a rank with too many tokens moves


def factors(kernel: Kernel, who: Roles, step_ns: float, *, single: bool) -> tuple[Float, Float]:
    """(traces, names) how many times longer each rank's kernels take; and each stage's part.

    Args:
        kernel: of all ranks.
        who: their roles.
        step_ns: what excess is measured by.
        single: whether stages are compared by single names, too.
    """
    traces, _, names = kernel.total_ns.shape
    factor: Float = np.ones((traces, names))
    role = np.array(who.role)
    for number in np.unique(role).tolist():
        members = np.flatnonzero(role == number)
        if len(members) < 2:
            continue
        total = kernel.total_ns[members]
        centre = np.median(total, axis=0, keepdims=True)
        # A name that a rank does not use has no ratio: 1 is as good as any.
        relative = np.where(centre > 0, total / np.maximum(centre, 1e-9), 1.0)
        middle = np.median(relative, axis=1)
        healthy = low_median(middle)
        ratio = np.where(healthy > 0, middle / np.where(healthy > 0, healthy, 1.0), 1.0)
        error = _step_error(relative, kernel, members)
        length = np.median(total, axis=1)
        clear = (ratio - 1 > SIGNIFICANT * np.sqrt(2) * error) & (length > 0)
        trifle = (ratio - 1) / ratio * length < 0.1 * TRIFLE * step_ns
        factor[members] = np.where(clear & ~trifle, ratio, 1.0)
    factor = _without_trifles(kernel, factor, step_ns)
    stage, spared = whole_stages(kernel, who, factor)
    factor = factor * np.where(spared, 1.0, stage[:, None])
    if single:
        factor = factor * single_names(kernel, who, factor, TRIFLE * step_ns)
    return factor, stage


def expert_groups(matching: Matching, traces: Sequence[RankTrace], numbers: Int64) -> ExpertGroups:
    """The ep groups of which at least two ranks are loaded, in the steps of these numbers."""
    place_of = {trace.rank: place for place, trace in enumerate(traces)}
    found = []
    for group in matching.groups:
        members = [place_of[rank] for rank in group.ranks if rank in place_of]
        if group.axis == "ep" and len(members) > 1:
            moved = [moved_bytes(traces[place], numbers) for place in members]
            found.append((np.array(members, dtype=np.int64), np.array(moved)))
    return found


def evened_experts(
    kernel: Kernel, factor: Float, groups: ExpertGroups
) -> tuple[npt.NDArray[np.int64], frozenset[int]]:
    """Corrects the factors of ranks that exchange tokens; (traces,) whose excess one bears.

    Tokens that one rank has too many are missing on the others of its ep group, so there
    healthy is the mean: members below it get more work once the excess is gone, which is
    the doing of the group's busiest rank. Only kernels that are not slowed like all others
    count as tokens' work. Also returned: who has too many.
    """
    exchanging: set[int] = set()
    lender = np.full(len(factor), -1, dtype=np.int64)
    same = alike(kernel, factor)
    mean = kernel.total_ns.mean(axis=1)
    for members, moved in groups:
        # A rank that moves no more than the others has no more tokens, however slow it is.
        more = moved > _MORE_TOKENS * moved.mean() if not np.isnan(moved).any() else True
        odd = members[more & (factor[members] > 1).any(axis=1) & (same[members] < 0.5)]
        if len(odd) == 0:
            continue
        names = np.flatnonzero((factor[odd] > 1).any(axis=0) & (mean[members].min(axis=0) > 0))
        busiest = int(odd[np.argmax((mean[odd] * (1 - 1 / factor[odd])).sum(axis=1))])
        for name in names.tolist():
            factor[members, name] = mean[members, name] / mean[members, name].mean()
        others = members[~np.isin(members, odd)]
        lender[others] = busiest
        exchanging |= set(odd.tolist())
    return lender, frozenset(exchanging)


def with_most_tokens(groups: ExpertGroups) -> frozenset[int]:
    """Places of the traces that exchange far more than the mean of their ep group."""
    found: set[int] = set()
    for members, moved in groups:
        found |= set(members[moved > _FAR_MORE * moved.mean()].tolist())
    return frozenset(found)


def moved_bytes(trace: RankTrace, numbers: Int64 | None = None) -> float:
    """Bytes a rank hands to and gets from exchanges of tokens; NaN where a size is not known.

    Only in the steps of these numbers, where steps are marked: ranks may hold more of them.
    Each token comes and goes once in the dispatch and once in the combine, so among ranks
    of equal batches who moves more has more tokens.
    """
    calls = trace.calls
    rows = trace.calls_of({"all_to_all"})
    if numbers is not None and trace.steps_marked:
        step = trace.kernels.step[calls.kernel]
        rows &= (step >= 0) & np.isin(np.append(trace.steps.number, -1)[step], numbers)
    sizes = np.concatenate((calls.in_bytes[rows], calls.out_bytes[rows]))
    return float(sizes.sum()) if len(sizes) and (sizes >= 0).all() else math.nan


def _step_error(relative: Float, kernel: Kernel, members: npt.NDArray[np.intp]) -> Float:
    """(names,) standard error of a rank's median over steps, pooled over the ranks."""
    steps = relative.shape[1]
    if steps >= 3:
        centre = np.median(relative, axis=1, keepdims=True)
        deviation = np.abs(relative - centre)
        # The median of few deviations is low by chance: take the mean over ranks.
        pooled = 1.4826 * np.mean(np.median(deviation, axis=1), axis=0)
        rough = np.mean(np.mean(deviation, axis=1), axis=0)
        error: Float = 1.2533 * np.maximum(pooled, rough) / np.sqrt(steps)
        return error
    # One or two steps: from the scatter of single kernels.
    out = np.full(relative.shape[2], np.inf)
    for name in range(relative.shape[2]):
        paired = [kernel.kernels[p][2][kernel.kernels[p][1] == name] for p in members.tolist()]
        if len(paired[0]) >= 4 and len({len(mine) for mine in paired}) == 1:
            # The k-th kernel of a name is the same work on all ranks, whatever its size.
            lengths = np.array(paired)
            ratio = lengths / np.maximum(np.median(lengths, axis=0), 1.0)
            out[name] = 1.2533 * max(map(spread, ratio)) / np.sqrt(lengths.shape[1])
            continue
        ratios, least = [], np.inf
        for place in members.tolist():
            _, code, length = kernel.kernels[place]
            mine = length[code == name]
            if len(mine) >= 4:
                ratios.append(spread(mine) / max(float(np.median(mine)), 1.0))
                least = min(least, len(mine))
        if ratios:
            out[name] = 1.2533 * max(ratios) / np.sqrt(least)
    return out


def _without_trifles(kernel: Kernel, factor: Float, step_ns: float) -> Float:
    """Factors of ranks whose whole busy excess is a trifle become 1."""
    mean = kernel.total_ns.mean(axis=1)
    whole = (mean * (1 - 1 / factor)).sum(axis=1)
    out: Float = factor.copy()
    out[whole < TRIFLE * step_ns] = 1.0
    return out


def alike(kernel: Kernel, factor: Float) -> Float:
    """(traces,) share of a rank's kernel time in names slowed about as much as the whole."""
    mean = kernel.total_ns.mean(axis=1)
    healthy = mean / factor
    whole = mean.sum(axis=1) / np.maximum(healthy.sum(axis=1), 1e-9) - 1
    near = np.abs(factor - 1 - whole[:, None]) <= 0.5 * np.maximum(whole, 1e-9)[:, None]
    out: Float = (healthy * near).sum(axis=1) / np.maximum(healthy.sum(axis=1), 1e-9)
    return out


def even_exchanges(
    traces: Sequence[RankTrace], program: Program, matching: Matching,
    lender: npt.NDArray[np.int64], removed: Float, owner: npt.NDArray[np.int32],
) -> None:  # fmt: skip
    """Removes from exchanges of tokens what their busiest rank makes them take longer."""
    if not (lender >= 0).any():
        return
    place_of = {trace.rank: place for place, trace in enumerate(traces)}
    nodes = np.flatnonzero(program.instance >= 0)
    instance = program.instance[nodes]
    instances = matching.instances
    exchange = (matching.ops()[instance] == "all_to_all") & (instances.bytes[instance] > 0)
    group = instances.group[instance]
    for number in np.unique(group[exchange]).tolist():
        members = [place_of[rank] for rank in matching.groups[number].ranks if rank in place_of]
        whose = [int(lender[place]) for place in members if lender[place] >= 0]
        if not whose:
            continue
        mine = np.flatnonzero(exchange & (group == number))
        took = program.gap_ns[nodes[mine]]
        latency = float(took.min())
        part = instances.least_bytes[instance[mine]] / instances.bytes[instance[mine]]
        removed[nodes[mine]] = (took - latency) * (1 - part)
        owner[nodes[mine]] = whose[0]
