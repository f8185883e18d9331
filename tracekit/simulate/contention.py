"""Kernels that run slower while communication runs on the same rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.core.trace import Int64


def stretched(
    begin: Int64, work: Int64, spans: Sequence[tuple[Int64, Int64]], factor: float
) -> Int64:
    """When a kernel ends that goes on at 1/factor of its speed inside the spans.

    Args:
        begin: (n,) int64 ns, of the kernel on each rank.
        work: (n,) int64 ns, its time alone.
        spans: starts and ends of communication, (n,) int64 ns each; they may overlap.
        factor: slowdown, at least 1.

    Returns:
        (n,) int64 ns.
    """
    if not spans or factor == 1:
        return begin + work
    edges = np.concatenate(
        [np.stack((np.maximum(a, begin), np.maximum(b, begin))) for a, b in spans]
    )
    deltas = np.tile(np.array([[1], [-1]]), (len(spans), 1)) * np.ones_like(begin)
    order = np.argsort(edges, axis=0, kind="stable")
    edges = np.take_along_axis(edges, order, axis=0)
    covered = np.cumsum(np.take_along_axis(deltas, order, axis=0), axis=0) > 0
    at, left = begin.astype(np.float64), work.astype(np.float64)
    slow = np.zeros(len(begin), dtype=np.bool_)
    for edge, inside in zip(edges, covered, strict=True):
        speed = np.where(slow, 1 / factor, 1.0)
        done = np.minimum(left, (edge - at) * speed)
        at = at + done / speed
        left = left - done
        # A kernel that is over stays where it is.
        at = np.where(left > 0, np.maximum(at, edge), at)
        slow = inside
    return np.rint(at + left * np.where(slow, factor, 1.0)).astype(np.int64)
