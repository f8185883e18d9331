"""How fast the process groups of one mesh axis transfer, against each other.

Groups of one axis do the same work, so the same operation of the same size should
take them equally long. ``slowdown`` of a group: over its operations, the median of
(its median transfer / median of the other groups' medians); None where no other
group does the same, or too rarely. ``slowdown_low`` takes the lower end of its median's 95 %
interval over the upper end of the others': above 1, the group is slower beyond doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.collective import Matching, bus_factor
from tracekit.core.stats import Quantile, quantile
from tracekit.core.timing import Timing
from tracekit.core.topology import Group

LEAST_N = 5  # instances of an operation in a group

Float = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
Kind = tuple[int, int, int]  # operation, dtype, bytes


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """One process group, or one pair of ranks, with what it transferred.

    Attributes:
        n: instances whose wait and transfer are known.
        total: instances in all.
        transfer_p50_ns, wait_p50_ns: medians over those instances; None without one.
        busbw_p50_gbps: median bus bandwidth in GB/s; None where sizes are not known.
        slowdown: against the other groups of its axis; None where that is unknown.
        slowdown_low: the least that it can be, by the medians' intervals.
    """

    group: Group
    n: int
    total: int
    transfer_p50_ns: float | None
    wait_p50_ns: float | None
    busbw_p50_gbps: float | None
    slowdown: float | None
    slowdown_low: float | None


def group_times(matching: Matching, known: Timing) -> tuple[GroupTimes, ...]:
    """Every group that communicated, in the order of the matching."""
    instances = matching.instances
    waits = _mean_waits(matching, known)
    medians: dict[int, dict[Kind, Quantile]] = {}
    found = []
    for number, group in enumerate(matching.groups):
        rows = np.flatnonzero(instances.group == number)
        if not len(rows):
            continue
        use = rows[known.comparable[rows] & (known.transfer[rows] >= 0)]
        medians[number] = _by_kind(matching, known, use)
        found.append((number, group, len(rows), use))
    ratios = _slowdowns(matching.groups, medians)
    return tuple(
        GroupTimes(
            group,
            len(use),
            total,
            _median(known.transfer[use].tolist()),
            _median(waits[use].tolist()),
            _bandwidth(matching, known, use),
            *ratios.get(number, (None, None)),
        )
        for number, group, total, use in found
    )


def _mean_waits(matching: Matching, known: Timing) -> Float:
    """(instances,) mean wait of the members of each instance, in ns."""
    size = len(matching.instances)
    own = np.maximum(known.wait_ns, 0)
    total = np.bincount(matching.rows.instance, weights=own, minlength=size)
    out: Float = total / np.maximum(np.bincount(matching.rows.instance, minlength=size), 1)
    return out


def _by_kind(matching: Matching, known: Timing, rows: Rows) -> dict[Kind, Quantile]:
    """Median transfer of each operation that is frequent enough."""
    instances = matching.instances
    values: dict[Kind, list[int]] = {}
    for row in rows.tolist():
        kind = (int(instances.op[row]), int(instances.dtype[row]), int(instances.bytes[row]))
        values.setdefault(kind, []).append(int(known.transfer[row]))
    return {
        kind: middle
        for kind, times in values.items()
        if len(times) >= LEAST_N and (middle := quantile(times, 0.5)) is not None
    }


def _slowdowns(
    groups: tuple[Group, ...], medians: Mapping[int, Mapping[Kind, Quantile]]
) -> dict[int, tuple[float, float]]:
    """Slowdown of each group that has peers, groups of the same axis and size; and its least."""
    classes: dict[tuple[str | None, int], list[int]] = {}
    for number in medians:
        group = groups[number]
        classes.setdefault((group.axis, len(group.ranks)), []).append(number)
    out = {}
    for members in classes.values():
        for number in members:
            ratios = list(_ratios(number, members, medians))
            if ratios:
                ratio, least = np.median(ratios, axis=0).tolist()
                out[number] = (ratio, least)
    return out


def _ratios(
    number: int, members: Iterable[int], medians: Mapping[int, Mapping[Kind, Quantile]]
) -> Iterable[tuple[float, float]]:
    for kind, own in medians[number].items():
        others = [medians[m][kind] for m in members if m != number and kind in medians[m]]
        if others:
            middle, high = (
                float(np.median([getattr(other, end) for other in others]))
                for end in ("value", "high")
            )
            if middle > 0:
                yield own.value / middle, own.low / high


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def _bandwidth(matching: Matching, known: Timing, rows: Rows) -> float | None:
    instances = matching.instances
    ops = matching.ops()
    rates = [
        bus_factor(str(ops[row]), int(instances.members[row]))
        * int(instances.bytes[row])
        / int(known.transfer[row])
        for row in rows.tolist()
        if instances.bytes[row] > 0 and known.transfer[row] > 0
    ]
    return _median(rates)
