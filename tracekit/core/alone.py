"""What a transfer takes when nothing else runs, read off a benchmark of the links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.core.collective import P2P_OP
from tracekit.core.run import LinkLatency

NO_BASELINE = "no tracekit bench beside the run"
_P2P_BENCH = "send_recv"


def alone_ns(
    baseline: Sequence[LinkLatency], op: str, group_size: int, size_bytes: int
) -> tuple[float | None, str]:
    """Median time of this operation, group size and message; or None and why.

    Between two measured sizes on a straight line of the logarithms; never beyond them.
    A transfer between two ranks is the same in a group of any size.
    """
    if not baseline:
        return None, NO_BASELINE
    pair = op == P2P_OP
    op = _P2P_BENCH if pair else op
    measured = [row for row in baseline if row.op == op and row.bytes > 0]
    if pair and measured:
        group_size = min(row.group_size for row in measured)
    points = {row.bytes: row.p50_ns for row in measured if row.group_size == group_size}
    if not points:
        return None, f"{op} over {group_size} ranks was not benchmarked"
    sizes = sorted(points)
    if size_bytes < 0:
        return None, "message size not recorded"
    if not sizes[0] <= size_bytes <= sizes[-1]:
        return None, f"benchmarked from {sizes[0]} to {sizes[-1]} bytes only"
    x, y = np.log(sizes), np.log([points[size] for size in sizes])
    return float(np.exp(np.interp(np.log(size_bytes), x, y))), ""
