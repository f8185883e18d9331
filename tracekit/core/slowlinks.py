"""Links whose transfers take longer than those of their siblings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.core.collective import Matching
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.stats import low_median, spread
from tracekit.core.trace import RankTrace

SIGNIFICANT = 4.0  # standard errors
LEAST_NS = 10_000.0  # differences below this are no link's fault
LEAST_RATIO = 0.1  # of the siblings' transfer
TRIFLE = 0.0003  # of the step, all transfers of a group together


def slow_links(
    traces: Sequence[RankTrace], program: Program, matching: Matching,
    step_ns: float, removed: Float, owner: npt.NDArray[np.int32],
) -> tuple[tuple[tuple[int, ...], str], ...]:  # fmt: skip
    """Ranks and label of each slow link, largest loss first.

    Groups whose transfers take longer than their siblings' mark them in ``removed`` (ns per
    node) and ``owner``, where link k is number ``len(traces) + k``.

    Siblings have the same axis, operation, size and span of hosts.
    """
    slow = _slow_groups(traces, program, matching, step_ns)
    if not slow:
        return ()
    found: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    healthy = _pairs_of(matching, program, [number for number, _, _ in slow])
    for number, nodes, excess_ns in slow:
        members = matching.groups[number].ranks
        pairs = [
            (a, b) for i, a in enumerate(members) for b in members[i + 1 :] if (a, b) not in healthy
        ]
        ends = pairs[0] if len(pairs) == 1 else tuple(members)
        for node, value in zip(nodes.tolist(), excess_ns.tolist(), strict=True):
            found[ends][node] = value
    ordered = sorted(found.items(), key=lambda item: -sum(item[1].values()))
    for place, (_, nodes_of) in enumerate(ordered):
        for node, value in nodes_of.items():
            removed[node] = value
            owner[node] = len(traces) + place
    return tuple((ends, "-".join(map(str, ends))) for ends, _ in ordered)


def _slow_groups(
    traces: Sequence[RankTrace], program: Program, matching: Matching, step_ns: float
) -> list[tuple[int, npt.NDArray[np.intp], Float]]:
    """Group, its transfer nodes, and what each takes too long."""
    nodes = np.flatnonzero(program.instance >= 0)
    if len(nodes) == 0 or any(trace.device_type == "cpu" for trace in traces):
        return []
    instances = matching.instances
    instance = program.instance[nodes]
    took = program.gap_ns[nodes]
    host = {trace.rank: trace.host for trace in traces}
    spans = np.array(
        [len({host.get(rank) for rank in group.ranks}) > 1 for group in matching.groups],
        dtype=np.int64,
    )
    axis_codes: dict[tuple[Any, ...], int] = {}
    axis = np.array(
        [
            axis_codes.setdefault((g.axis, g.description == "p2p", len(g.ranks)), len(axis_codes))
            for g in matching.groups
        ],
        dtype=np.int64,
    )
    group = instances.group[instance].astype(np.int64)
    size = instances.bytes[instance]
    # An exchange of tokens never has the same size twice.
    uneven = matching.ops()[instance] == "all_to_all"
    size = np.where(uneven, np.log2(np.maximum(size, 1)).astype(np.int64), size)
    kind = np.stack(
        (axis[group], spans[group], instances.op[instance], instances.bytes[instance]), 1
    )
    _, kind_code = np.unique(kind, axis=0, return_inverse=True)
    out = []
    for code in np.unique(kind_code).tolist():
        mine = np.flatnonzero(kind_code.reshape(-1) == code)
        groups = _by_members(matching, np.unique(group[mine]))
        if len(groups) < 2:
            continue
        rows = [mine[np.isin(group[mine], numbers)] for numbers in groups]
        centre = np.array([np.median(took[part]) for part in rows])
        base = float(low_median(centre))
        error = [1.2533 * spread(took[part]) / max(len(part), 1) ** 0.5 for part in rows]
        for part, value, se in zip(rows, centre.tolist(), error, strict=True):
            if value - base > max(SIGNIFICANT * se, LEAST_RATIO * base, LEAST_NS):
                over = np.clip(took[part] - base, 0, value - base)
                if over.sum() > TRIFLE * step_ns * program.window.steps:
                    out.append((int(group[part[0]]), nodes[part], over))
    return out


def _by_members(matching: Matching, numbers: npt.NDArray[np.int64]) -> list[list[int]]:
    """Groups with equal members together: both directions of a pair are one link."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number in numbers.tolist():
        found[matching.groups[number].ranks].append(number)
    return list(found.values())


def _pairs_of(matching: Matching, program: Program, slow: Sequence[int]) -> set[tuple[int, int]]:
    """Pairs of ranks that some healthy group of at most eight contains."""
    bad = {matching.groups[number].ranks for number in slow}
    used = np.unique(matching.instances.group[program.instance[program.instance >= 0]])
    pairs = set()
    for number in used.tolist():
        members = matching.groups[number].ranks
        if members not in bad and len(members) <= 8:
            pairs |= {(a, b) for i, a in enumerate(members) for b in members[i + 1 :]}
    return pairs
