"""Exact arithmetic on sets of half-open time intervals, in int64 nanoseconds.

A *set* here is a pair ``(starts, ends)`` of sorted, disjoint, non-touching
intervals, as made by :func:`union`. All operations are O(n log n) or better
and never pass through floating point.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Sorted, disjoint intervals ``[start, end)``: two (n,) int64 ns arrays."""

    starts: Int64
    ends: Int64


def union(starts: Int64, ends: Int64) -> Intervals:
    """Merge intervals in any order into a set; empty and negative ones vanish.

    Args:
        starts: (n,) int64 ns.
        ends: (n,) int64 ns.
    """
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if len(starts) == 0:
        return Intervals(starts, ends)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    closes = np.concatenate((np.flatnonzero(opens)[1:] - 1, [len(starts) - 1]))
    return Intervals(starts[opens], reach[closes])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The times covered by both sets."""
    if len(a.starts) == 0 or len(b.starts) == 0:
        empty = np.empty(0, dtype=np.int64)
        return Intervals(empty, empty)
    # For every interval of a: the run of intervals of b that touch it.
    first = np.searchsorted(b.ends, a.starts, side="right")
    last = np.searchsorted(b.starts, a.ends, side="left")
    counts = np.maximum(last - first, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    other = first[owner] + offset
    return Intervals(
        np.maximum(a.starts[owner], b.starts[other]), np.minimum(a.ends[owner], b.ends[other])
    )


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The times covered by ``a`` and not by ``b``."""
    if len(a.starts) == 0:
        return a
    low = int(min(a.starts[0], b.starts[0] if len(b.starts) else a.starts[0]))
    high = int(max(a.ends[-1], b.ends[-1] if len(b.ends) else a.ends[-1]))
    gaps_start = np.concatenate((np.array([low], dtype=np.int64), b.ends))
    gaps_end = np.concatenate((b.starts, np.array([high], dtype=np.int64)))
    keep = gaps_end > gaps_start
    return intersect(a, Intervals(gaps_start[keep], gaps_end[keep]))


def length(a: Intervals) -> int:
    """Total time covered, in ns."""
    return int((a.ends - a.starts).sum())


def covered_within(a: Intervals, window_starts: Int64, window_ends: Int64) -> Int64:
    """Time of ``a`` inside each window; windows may overlap and come in any order.

    Args:
        a: the set.
        window_starts: (w,) int64 ns.
        window_ends: (w,) int64 ns, each >= its start.

    Returns:
        (w,) int64 ns.
    """
    return _covered_before(a, window_ends) - _covered_before(a, window_starts)


def _covered_before(a: Intervals, times: Int64) -> Int64:
    """Time of ``a`` before each of ``times``: (t,) int64 ns."""
    cumulative = np.concatenate(
        (np.zeros(1, dtype=np.int64), np.cumsum(a.ends - a.starts, dtype=np.int64))
    )
    index = np.searchsorted(a.starts, times, side="right")
    # The last interval opened may still be open: take back what lies after the time.
    previous = np.maximum(index - 1, 0)
    if len(a.ends) == 0:
        return np.zeros(len(times), dtype=np.int64)
    excess = np.where(index > 0, np.maximum(a.ends[previous] - times, 0), 0)
    return cumulative[index] - excess
