"""The three interval sets every analysis starts from: compute, communication, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.intervals import Intervals, union
from tracekit.core.trace import KernelKind, RankTrace


class Activity(NamedTuple):
    """When one device was busy, by kind of work."""

    compute: Intervals
    communication: Intervals
    memory: Intervals


def devices(trace: RankTrace) -> Iterator[tuple[int, Activity]]:
    """Each device of a rank, ascending, with its activity; usually there is one."""
    for device in np.unique(trace.kernels.device):
        yield int(device), activity(trace, trace.kernels.device == device)


def activity(trace: RankTrace, chosen: npt.NDArray[np.bool_]) -> Activity:
    """The activity of the chosen kernels.

    Args:
        trace: one rank.
        chosen: (kernels,) mask.
    """
    return Activity(
        *(
            kernel_union(trace, chosen & (trace.kernels.kind == kind))
            for kind in (KernelKind.COMPUTE, KernelKind.COMMUNICATION, KernelKind.MEMORY)
        )
    )


def kernel_union(trace: RankTrace, chosen: npt.NDArray[np.bool_]) -> Intervals:
    """The time covered by the chosen kernels."""
    return union(trace.kernels.start_ns[chosen], trace.kernels.end_ns[chosen])
