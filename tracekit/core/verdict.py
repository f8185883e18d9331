"""The verdict: the smallest set of ranks, or the link, that explains the loss; and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.core.excess import Excess
from tracekit.core.roles import Roles
from tracekit.core.trace import Phase, RankTrace
from tracekit.core.whatif import ENOUGH, PART, WhatIf

LEAST_LOSS = 0.01  # share of step time below which nobody is named
COVERAGE = 0.8  # share of the excess that a cause must make
# Of sets with equal members, the one to name: a whole stage before the groups it consists of.
_PREFERENCE = ("rank", "stage", "tp_group", "host", "dp_replica")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is to blame.

    Attributes:
        kind: "none", "diffuse", "link", or a kind of set.
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
    recovered: Callable[[Sequence[int]], float],
) -> Verdict:
    """Name the culprit, or nobody.

    Args:
        traces: all loaded ranks.
        found: their excess.
        what: the replays.
        who: sets that can be to blame.
        recovered: M of several owners together.
    """
    loss = 1 - 1 / what.slowdown
    if loss < LEAST_LOSS:
        return NOBODY
    chosen = _owners(what)
    share = recovered(chosen)
    if share < ENOUGH:
        return Verdict("diffuse", "", (), share, None)
    links = [number for number in chosen if number >= len(traces)]
    if links and len(links) >= len(chosen) / 2:
        ends, label = found.links[links[0] - len(traces)]
        if len(links) > 1:
            ends = tuple(sorted({r for k in links for r in found.links[k - len(traces)][0]}))
            label = ", ".join(found.links[k - len(traces)][1] for k in links)
        return Verdict("link", label, ends, share, "link")
    places = sorted(number for number in chosen if number < len(traces))
    ranks = tuple(traces[place].rank for place in places)
    same = [item for item in who.sets if item.ranks == ranks]
    same.sort(key=lambda item: _PREFERENCE.index(item.kind))
    kind, members = (
        (same[0].kind, same[0].members) if same else ("rank", ", ".join(map(str, ranks)))
    )
    causes = {cause_of(traces[place], place, found) for place in places}
    return Verdict(kind, members, ranks, share, causes.pop() if len(causes) == 1 else None)


def _owners(what: WhatIf) -> list[int]:
    """Whose excess alone makes a good part of the loss; the largest if nobody's does."""
    loss = what.slowdown - 1
    chosen = [
        number
        for number, alone, share in zip(what.owners, what.alone, what.recovered, strict=True)
        if alone - 1 >= PART * loss or share >= PART
    ]
    return chosen or list(what.owners[:1])


def cause_of(trace: RankTrace, place: int, found: Excess) -> str | None:
    """Why a rank is slow, where one cause makes most of its excess.

    "compute": all kernels slow alike. "experts": kernels between exchanges of tokens.
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
        if found.alike[place] >= COVERAGE:
            return "compute"
        first = found.by_name[place][0][1] if found.by_name[place] else 0.0
        whole = sum(value for _, value in found.by_name[place])
        return "work" if whole > 0 and first >= COVERAGE * whole else None
    if gap >= COVERAGE * total:
        marked = _marked(trace, gap)
        if marked is not None:
            return marked
        if found.episodic[place]:
            return "gc"
        return "dataloader" if found.begin_gap[place] >= COVERAGE else "host"
    return None


def _marked(trace: RankTrace, gap_ns: float) -> str | None:
    """What the host's own marks say it was at, when they cover most of the gap."""
    spans = trace.spans
    for phase, cause in ((Phase.GC, "gc"), (Phase.DATA, "dataloader")):
        chosen = spans.phase == phase
        if float((spans.end_ns - spans.start_ns)[chosen].sum()) >= COVERAGE * gap_ns:
            return cause
    return None
