"""Transfers that take longer than those of sibling groups: a slow link, or a slow operation.

Siblings have the same axis, operation, size, dtype, number of members and span of hosts. What
their transfers should take is :func:`tracekit.core.stats.low_median` over the groups: the
lower median of four and more, the least of two or three.

All that crosses a slow link is slow. So where one operation of a group is slow, and another
of the same members that would show it is not, the operation is to blame: its algorithm,
protocol or buffers. A slow exchange of tokens among more than three ranks excuses no link by
a ring: the ring may not use the link.

Limits: what is slow in all sibling groups, or has none, looks healthy (:attr:`Found.unjudged`
says which these are). An exchange of tokens that never has the same size twice has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.core.collective import P2P_OP, Matching, bus_factor
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.stats import low_median, spread
from tracekit.core.trace import RankTrace

SIGNIFICANT = 4.0  # standard errors
LEAST_NS = 10_000.0  # differences below this are no link's fault
LEAST_RATIO = 0.1  # of the siblings' transfer
TRIFLE = 0.0003  # of the step, all transfers of a group together
_EXCUSES = 2.0  # times what counts as slow, that a healthy operation would show of a slow link
_RING = 3  # members up to which a ring uses every link

Bool = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class SlowTransfers:
    """A link or an operation whose transfers take too long.

    Attributes:
        kind: "link" or "op".
        label: the ends of the link, or the name of the operation.
        ranks: global ranks: the ends, or those in whose groups the operation is slow.
        lasting: slow in every step, not in some of them.
    """

    kind: str
    label: str
    ranks: tuple[int, ...]
    lasting: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What the comparison of sibling groups shows.

    Attributes:
        slow: largest loss first.
        unjudged: (nodes,) transfers that no sibling group tells the usual time of.
    """

    slow: tuple[SlowTransfers, ...]
    unjudged: Bool


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """The transfers of one kind among the same members; times in ns.

    Attributes:
        places: where they are among all transfers.
        volume: bytes that cross a link of a ring; 0 when not known.
        base, above: what siblings take; what these take longer, at the median.
        limit: from where on that counts.
    """

    members: tuple[int, ...]
    op: str
    places: Places
    volume: float
    base: float
    above: float
    limit: float

    @property
    def slow(self) -> bool:
        return self.above > self.limit

    def excuses_link_of(self, other: _Cell) -> bool:
        """Whether these would be slow if a link, not its operation, made the other slow."""
        if self.slow or self.volume <= 0 or other.volume <= 0 or other.op == P2P_OP:
            return False
        if other.op == "all_to_all" and self.op != other.op and len(self.members) > _RING:
            return False
        # A link adds the same to every transfer, or more to the larger ones.
        share = min(1.0, self.volume / other.volume)
        return other.above * share > _EXCUSES * self.limit


def slow_transfers(
    traces: Sequence[RankTrace], program: Program, matching: Matching,
    step_ns: float, removed: Float, owner: npt.NDArray[np.int32],
) -> Found:  # fmt: skip
    """Links and operations that are slower than in sibling groups.

    Marks what each takes too long in ``removed`` (ns per node) and ``owner``, where the k-th
    of ``Found.slow`` is number ``len(traces) + k``. Nothing is judged on a CPU, where the end
    of a transfer depends on who gets the cores.
    """
    nodes = np.flatnonzero(program.instance >= 0)
    unjudged = program.instance >= 0
    if len(nodes) == 0 or any(trace.device_type == "cpu" for trace in traces):
        return Found((), unjudged)
    took = program.gap_ns[nodes]
    cells = list(_cells(traces, matching, program.instance[nodes], took))
    by_members: dict[tuple[int, ...], list[_Cell]] = defaultdict(list)
    for cell in cells:
        unjudged[nodes[cell.places]] = False
        by_members[cell.members].append(cell)
    least_ns = TRIFLE * step_ns * program.window.steps
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    links: list[tuple[_Cell, Float]] = []
    for cell in cells:
        over = np.clip(took[cell.places] - cell.base, 0, cell.above)
        if not cell.slow or over.sum() <= least_ns:
            continue
        if any(other.excuses_link_of(cell) for other in by_members[cell.members]):
            found["op", cell.op].update(_pairs(nodes[cell.places], over))
            ranks["op", cell.op] |= set(cell.members)
        else:
            links.append((cell, over))
    healthy = _healthy_pairs(matching, program, {cell.members for cell, _ in links})
    for cell, over in links:
        ends = _ends(cell.members, healthy)
        key = "link", "-".join(map(str, ends))
        found[key].update(_pairs(nodes[cell.places], over))
        ranks[key] |= set(ends)
    ordered = sorted(found.items(), key=lambda item: -sum(item[1].values()))
    for place, (_, marks) in enumerate(ordered):
        at = list(marks)
        removed[at] = list(marks.values())
        owner[at] = len(traces) + place
    slow = tuple(SlowTransfers(*key, tuple(sorted(ranks[key]))) for key, _ in ordered)
    return Found(slow, unjudged)


def _pairs(nodes: Places, over: Float) -> Iterable[tuple[int, float]]:
    return zip(nodes.tolist(), over.tolist(), strict=True)


def _cells(
    traces: Sequence[RankTrace], matching: Matching, instance: npt.NDArray[np.int32], took: Float
) -> Iterator[_Cell]:
    """The transfers of each kind and group that has siblings; both directions of a pair are one.

    Args:
        traces: for the hosts of their ranks.
        matching: of all calls.
        instance: (transfers,) rows of its instances.
        took: (transfers,) ns.
    """
    kind, member = _kinds(traces, matching, instance)
    order = np.lexsort((member, kind))
    new_kind = np.diff(kind[order]) != 0
    new_cell = new_kind | (np.diff(member[order]) != 0)
    parts = np.split(order, np.flatnonzero(new_cell) + 1)
    kinds = np.split(np.arange(len(parts)), np.flatnonzero(new_kind[new_cell]) + 1)
    table = matching.instances
    for siblings in kinds:
        if len(siblings) < 2:
            continue
        first = instance[parts[siblings[0]][0]]
        op, size = matching.names[table.op[first]], max(int(table.bytes[first]), 0)
        centre = np.array([np.median(took[parts[number]]) for number in siblings])
        base = float(low_median(centre))
        for number, value in zip(siblings.tolist(), centre.tolist(), strict=True):
            part = parts[number]
            members = matching.groups[table.group[instance[part[0]]]].ranks
            error = 1.2533 * spread(took[part]) / len(part) ** 0.5
            yield _Cell(
                members=members,
                op=op,
                places=part,
                volume=size * bus_factor(op, len(members)),
                base=base,
                above=value - base,
                limit=max(SIGNIFICANT * error, LEAST_RATIO * base, LEAST_NS),
            )


def _kinds(
    traces: Sequence[RankTrace], matching: Matching, instance: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(transfers,) number of what each is compared by, and number of its members."""
    host = {trace.rank: trace.host for trace in traces}
    shapes: dict[tuple[Any, ...], int] = {}
    members: dict[tuple[int, ...], int] = {}
    shape, member = [], []
    for group in matching.groups:
        hosts = {host.get(rank) for rank in group.ranks}
        alike = (group.axis, group.description == P2P_OP, len(group.ranks), len(hosts) > 1)
        shape.append(shapes.setdefault(alike, len(shapes)))
        member.append(members.setdefault(group.ranks, len(members)))
    table = matching.instances
    number = table.group[instance]
    columns = (
        np.array(shape, dtype=np.int64)[number],
        table.op[instance].astype(np.int64),
        table.dtype[instance].astype(np.int64),
        table.bytes[instance],
    )
    _, kind = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    return kind.reshape(-1).astype(np.int64), np.array(member, dtype=np.int64)[number]


def _ends(members: tuple[int, ...], healthy: set[tuple[int, int]]) -> tuple[int, ...]:
    """The pair that a slow link among these joins, where only one can be; else all of them."""
    pairs = [
        (a, b) for i, a in enumerate(members) for b in members[i + 1 :] if (a, b) not in healthy
    ]
    return pairs[0] if len(pairs) == 1 else members


def _healthy_pairs(
    matching: Matching, program: Program, slow: set[tuple[int, ...]]
) -> set[tuple[int, int]]:
    """Pairs of ranks that some group of at most eight without a slow link contains."""
    used = np.unique(matching.instances.group[program.instance[program.instance >= 0]])
    pairs = set()
    for number in used.tolist():
        members = matching.groups[number].ranks
        if members not in slow and len(members) <= 8:
            pairs |= {(a, b) for i, a in enumerate(members) for b in members[i + 1 :]}
    return pairs
