"""Gaps in a device's work, and what each of them waits for.

A gap ends where the next kernel begins. Where the host began to launch that kernel only
after the device had run dry, the device waited for the host: for data while the host
fetched some, for garbage collection, for a synchronisation that the host was in when the
device ran dry, else for the launches themselves. Where it was launched before, it waited
for another stream if its own had been idle already; else nothing here tells why.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.intervals import Intervals, intersect, subtract, union
from tracekit.core.trace import Int64, Phase, RankTrace

LAUNCH_NS = 50_000  # from the begin of a launch to its kernel's, at most
Mask = npt.NDArray[np.bool_]


class Cause(IntEnum):
    """Why a device stands idle."""

    HOST_BOUND = 0
    DEPENDENCY = 1
    DATALOADER = 2
    GC = 3
    SYNC = 4
    OTHER = 5


class Gaps(NamedTuple):
    """Idle stretches of one device between its first and last kernel, in order of time.

    Attributes:
        start_ns, end_ns: (n,) int64.
        before, after: (n,) rows in Kernels of the work that ends and begins there.
        late_ns: (n,) how long after the begin of the gap the next launch began; -1 where
            that is not recorded, 0 where it was launched before.
    """

    start_ns: Int64
    end_ns: Int64
    before: Int64
    after: Int64
    late_ns: Int64
    linked: Mask


def gaps(trace: RankTrace, chosen: Mask) -> Gaps:
    """The gaps between the chosen kernels of one device."""
    kernels = trace.kernels
    rows = np.flatnonzero(chosen & (kernels.end_ns > kernels.start_ns))
    order = rows[np.argsort(kernels.start_ns[rows], kind="stable")]
    if len(order) == 0:
        none = np.empty(0, dtype=np.int64)
        return Gaps(none, none, none, none, none, np.empty(0, dtype=np.bool_))
    reach = np.maximum.accumulate(kernels.end_ns[order])
    # The kernel that reaches furthest so far is the last one that set the maximum.
    grew = np.concatenate(([True], reach[1:] > reach[:-1]))
    furthest = order[np.maximum.accumulate(np.where(grew, np.arange(len(order)), 0))]
    opens = np.flatnonzero(kernels.start_ns[order[1:]] > reach[:-1]) + 1
    start, end = reach[opens - 1], kernels.start_ns[order[opens]]
    launch = kernels.launch_ns[order[opens]]
    linked = launch >= 0
    late = np.where(linked, np.clip(launch - start, 0, end - start), -1)
    return Gaps(
        start, end, furthest[opens - 1].astype(np.int64), order[opens].astype(np.int64),
        late, linked,
    )  # fmt: skip


def causes(trace: RankTrace, found: Gaps) -> dict[Cause, Intervals]:
    """When the device stood idle for each cause but OTHER; the sets are disjoint."""
    start, end = found.start_ns, found.end_ns
    late = found.linked & (found.late_ns > 0)
    dry = union(start[late], start[late] + found.late_ns[late])  # the host had not launched
    unknown = union(start[~found.linked], end[~found.linked])
    waiting = union(
        np.concatenate((dry.starts, unknown.starts)), np.concatenate((dry.ends, unknown.ends))
    )
    data = intersect(waiting, spans_of(trace, Phase.DATA))
    collecting = subtract(intersect(waiting, spans_of(trace, Phase.GC)), data)
    taken = union(
        np.concatenate((data.starts, collecting.starts)),
        np.concatenate((data.ends, collecting.ends)),
    )
    drained = late & _inside(spans_of(trace, Phase.SYNC), start)
    synchronised = subtract(union(start[drained], start[drained] + found.late_ns[drained]), taken)
    # A launch takes microseconds; what it waits for beyond that is not known.
    reached = np.minimum(start[late] + found.late_ns[late] + LAUNCH_NS, end[late])
    host = subtract(subtract(union(start[late], reached), taken), synchronised)
    kernels = trace.kernels
    other_stream = kernels.stream[found.before] != kernels.stream[found.after]
    waits = found.linked & (found.late_ns == 0) & other_stream
    return {
        Cause.HOST_BOUND: host,
        Cause.DEPENDENCY: union(start[waits], end[waits]),
        Cause.DATALOADER: data,
        Cause.GC: collecting,
        Cause.SYNC: synchronised,
    }


def spans_of(trace: RankTrace, phase: Phase) -> Intervals:
    """When the host was in this phase."""
    rows = trace.spans.phase == phase
    return union(trace.spans.start_ns[rows], trace.spans.end_ns[rows])


def _inside(spans: Intervals, times: Int64) -> Mask:
    """(n,) whether each moment lies in one of the spans, their ends included."""
    if len(spans.starts) == 0:
        return np.zeros(len(times), dtype=np.bool_)
    place = np.searchsorted(spans.starts, times, side="right") - 1
    out: Mask = (place >= 0) & (spans.ends[np.maximum(place, 0)] >= times)
    return out
