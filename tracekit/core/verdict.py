"""The verdict: the smallest set of ranks, or the link, that explains the loss; and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.core.excess import Excess
from tracekit.core.roles import Roles
from tracekit.core.trace import Phase, RankTrace
from tracekit.core.whatif import WhatIf

LEAST_LOSS = 0.01  # share of step time below which nobody is named
ENOUGH = 0.5  # M from which a set explains the loss
PART = 0.1  # of the loss, from which a further owner of excess belongs to the culprits
LEAST_PART = 0.05  # of the loss, that an owner must make alone to be looked at
COVERAGE = 0.8  # share of the excess that a cause must make
# Of sets with equal members, the one to name: a whole stage before the groups it consists of.
_PREFERENCE = ("rank", "stage", "tp_group", "host", "dp_replica")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is to blame.

    Attributes:
        kind: "none", "diffuse", "link", "op", or a kind of set.
        members: what the set is called.
        ranks: global ranks.
        share: part of the loss that its repair recovers.
        cause: why, None when no cause covers enough.
    """

    kind: str
    members: str
    ranks: tuple[int, ...]
    share: float
    cause: str | None


NOBODY = Verdict("none", "", (), 0.0, None)


def verdict(
    traces: Sequence[RankTrace],
    found: Excess,
    what: WhatIf,
    who: Roles,
    recovered: Callable[[Sequence[Sequence[int]]], Sequence[float]],
) -> Verdict:
    """Name the culprit, or nobody.

    Args:
        traces: all loaded ranks.
        found: their excess.
        what: the replays.
        who: sets that can be to blame.
        recovered: M of each of several lists of owners, each list together.
    """
    loss = 1 - 1 / what.slowdown
    if loss < LEAST_LOSS:
        return NOBODY
    chosen, share = _culprits(what, recovered)
    if share < ENOUGH:
        return Verdict("diffuse", "", (), share, None)
    shared = [found.links[number - len(traces)] for number in chosen if number >= len(traces)]
    if shared and len(shared) >= len(chosen) / 2:
        kind = shared[0].kind
        alike = [item for item in shared if item.kind == kind]
        ranks = tuple(sorted({rank for item in alike for rank in item.ranks}))
        label = ", ".join(item.label for item in alike)
        return Verdict(kind, label, ranks, share, "link" if kind == "link" else None)
    places = sorted(number for number in chosen if number < len(traces))
    ranks = tuple(traces[place].rank for place in places)
    same = [item for item in who.sets if item.ranks == ranks]
    same.sort(key=lambda item: _PREFERENCE.index(item.kind))
    kind, members = (
        (same[0].kind, same[0].members) if same else ("rank", ", ".join(map(str, ranks)))
    )
    causes = {cause_of(traces[place], place, found) for place in places}
    return Verdict(kind, members, ranks, share, causes.pop() if len(causes) == 1 else None)


def _culprits(
    what: WhatIf, recovered: Callable[[Sequence[Sequence[int]]], Sequence[float]]
) -> tuple[list[int], float]:
    """The fewest owners of excess that explain the loss together, and their M.

    The largest alone come first, until half of the loss is recovered: of two that are equally
    slow in one group neither recovers anything without the other. Then those that recover
    a further part of it one by one.
    """
    loss = what.slowdown - 1
    order = sorted(range(len(what.owners)), key=lambda k: -what.alone[k])
    ranked = [what.owners[k] for k in order if what.alone[k] - 1 >= LEAST_PART * loss]
    if not ranked:
        return [], 0.0
    shares = recovered([ranked[: size + 1] for size in range(len(ranked))])
    size = next((k + 1 for k, share in enumerate(shares) if share >= ENOUGH), len(ranked))
    chosen, share = ranked[:size], shares[size - 1]
    rest = ranked[size:]
    if rest:
        further = recovered([[*chosen, number] for number in rest])
        chosen += [n for n, more in zip(rest, further, strict=True) if more - share >= PART]
        share = recovered([chosen])[0]
    return chosen, share


def cause_of(trace: RankTrace, place: int, found: Excess) -> str | None:
    """Why a rank is slow, where one cause makes most of its excess.

    "compute": all kernels slow alike. "experts": kernels between exchanges of tokens.
    "sequence": its microbatches take longer where their sequences are longer.
    "work": a few kernel names. "dataloader": late at the begin of steps. "gc": late in single
    steps. "host": late in every step.
    """
    mine = (found.owner == place) & (found.removed_ns > 0)
    busy = float(np.maximum(found.busy_ns[place], 0).sum())
    gap = float(found.gap_ns[place].sum())
    total = busy + gap
    if total <= 0:
        return "experts" if mine.any() else None
    if busy >= COVERAGE * total:
        if place in found.exchanging:
            return "experts"
        if found.lengths[place] is not None:
            return "sequence" if found.lengths[place] else None
        if found.alike[place] >= COVERAGE:
            return "compute"
        if place in found.most_tokens:
            return "experts"
        first = found.by_name[place][0][1] if found.by_name[place] else 0.0
        whole = sum(value for _, value in found.by_name[place])
        return "work" if whole > 0 and first >= COVERAGE * whole else None
    if gap >= COVERAGE * total:
        told = marked_cause(place, found)
        if told is not None:
            return told
        if found.episodic[place]:
            return "gc"
        # Where data loading is marked, a late begin that the marks do not cover is something else.
        data_marked = (trace.spans.phase == Phase.DATA).any()
        early = found.begin_gap[place] >= COVERAGE
        return "dataloader" if early and not data_marked else "host"
    return None


def marked_cause(place: int, found: Excess) -> str | None:
    """What the host's own marks say it was at, when they cover most of its gap.

    Only what it spends there beyond its peers: every rank loads data.
    """
    gap = float(found.gap_ns[place].sum())
    for number, cause in enumerate(("gc", "dataloader")):
        if gap > 0 and found.marked_ns[number, place] >= COVERAGE * gap:
            return cause
    return None
