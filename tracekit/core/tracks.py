"""What a rank is at, moment by moment: one track of pieces that never overlap.

At any time a rank computes, computes while it communicates, transfers, waits for
another rank, or copies; the rest is idle. Work that runs beside other work of its
kind is shown by the one that began first. Long tracks are thinned: pieces shorter
than a threshold are merged with their neighbours, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tracekit.core.trace import Int64, KernelKind, RankTrace


class At(IntEnum):
    """What a piece of a track is."""

    COMPUTE = 0
    HIDING = 1  # compute beside communication
    TRANSFER = 2  # communication beside nothing
    WAIT = 3  # inside a collective that another rank has not entered
    MEMORY = 4


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """Pieces in order of time, on the rank's own clock.

    Attributes:
        kernel: (n,) row in the trace's kernels; of merged pieces, of the longest.
        count: (n,) pieces that were merged into this one.
    """

    start_ns: Int64
    end_ns: Int64
    at: Int64
    kernel: Int64
    count: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Track:
        return Track(*(getattr(self, name)[rows] for name in self.__slots__))


def track(trace: RankTrace, wait_until_ns: Int64, device: int | None = None) -> Track:
    """The track of a rank.

    Args:
        trace: the rank.
        wait_until_ns: (calls,) when the last member of each call arrived, on this rank's
            clock; anything before the call's start where that is not known.
        device: one device of several; all of them by default.
    """
    kernels = trace.kernels
    use = np.ones(len(kernels), dtype=np.bool_) if device is None else kernels.device == device
    waits = np.zeros(len(kernels), dtype=np.int64)
    until = np.minimum(wait_until_ns, kernels.end_ns[trace.calls.kernel])
    # A coalesced kernel waits for the last of its peers.
    np.maximum.at(waits, trace.calls.kernel, until)
    layers = [
        _flat(kernels.start_ns, kernels.end_ns, np.flatnonzero(use & (kernels.kind == kind)))
        for kind in (KernelKind.COMPUTE, KernelKind.COMMUNICATION, KernelKind.MEMORY)
    ]
    waited = layers[1][2]
    ends = np.clip(waits[waited], layers[1][0], layers[1][1])
    edges = np.unique(np.concatenate([*(part for one in layers for part in one[:2]), ends]))
    if len(edges) < 2:
        empty = np.empty(0, dtype=np.int64)
        return Track(empty, empty, empty, empty, empty)
    start, end = edges[:-1], edges[1:]
    compute, communication, memory = (_owner(one, start) for one in layers)
    waiting = (communication >= 0) & (start < waits[np.maximum(communication, 0)])
    at = np.select(
        [
            (compute >= 0) & (communication >= 0),
            compute >= 0,
            (communication >= 0) & waiting,
            communication >= 0,
            memory >= 0,
        ],
        [At.HIDING, At.COMPUTE, At.WAIT, At.TRANSFER, At.MEMORY],
        -1,
    )
    kernel = np.where(compute >= 0, compute, np.where(communication >= 0, communication, memory))
    pieces = Track(start, end, at.astype(np.int64), kernel, np.ones(len(start), dtype=np.int64))
    return _joined(pieces.take(at >= 0))


def cut(pieces: Track, start_ns: int, end_ns: int) -> Track:
    """The part of a track inside a window."""
    first = int(np.searchsorted(pieces.end_ns, start_ns, side="right"))
    last = int(np.searchsorted(pieces.start_ns, end_ns, side="left"))
    inside = pieces.take(np.arange(first, max(first, last)))
    return Track(
        np.maximum(inside.start_ns, start_ns),
        np.minimum(inside.end_ns, end_ns),
        inside.at,
        inside.kernel,
        inside.count,
    )


def thinned(pieces: Track, most: int) -> tuple[Track, int]:
    """At most about ``most`` pieces, and the threshold in ns below which they were merged.

    Pieces at least as long as the threshold stay as they are; runs of shorter ones
    without a long gap become one piece of what fills most of it.
    """
    if len(pieces) <= most:
        return pieces, 0
    span = int(pieces.end_ns[-1] - pieces.start_ns[0])
    threshold = max(1, span // (4 * most))
    while True:
        run = _runs(pieces, threshold)
        if run[-1] < most or threshold > span:
            return _merged(pieces, run), threshold
        threshold *= 2


def _flat(starts: Int64, ends: Int64, rows: npt.NDArray[np.intp]) -> tuple[Int64, Int64, Int64]:
    """Visible part of each interval, and its row: one that began first hides the others."""
    order = rows[np.lexsort((-ends[rows], starts[rows]))]
    start, end = starts[order], ends[order]
    if not len(order):
        return start, end, order.astype(np.int64)
    reached = np.maximum.accumulate(end)
    start = np.maximum(start, np.concatenate((start[:1], reached[:-1])))
    seen = end > start
    return start[seen], end[seen], order[seen].astype(np.int64)


def _owner(layer: tuple[Int64, Int64, Int64], times: Int64) -> Int64:
    """(times,) row of the interval of a layer that covers each time, -1 for none."""
    starts, ends, rows = layer
    if not len(starts):
        return np.full(len(times), -1, dtype=np.int64)
    place = np.searchsorted(starts, times, side="right") - 1
    covered = (place >= 0) & (times < ends[np.maximum(place, 0)])
    out: Int64 = np.where(covered, rows[np.maximum(place, 0)], -1)
    return out


def _joined(pieces: Track) -> Track:
    """Neighbours that are the same work in the same state become one piece."""
    if len(pieces) < 2:
        return pieces
    same = (
        (pieces.start_ns[1:] == pieces.end_ns[:-1])
        & (pieces.at[1:] == pieces.at[:-1])
        & (pieces.kernel[1:] == pieces.kernel[:-1])
    )
    first = np.concatenate(([True], ~same))
    last = np.concatenate((~same, [True]))
    kept = pieces.take(first)
    return Track(kept.start_ns, pieces.end_ns[last], kept.at, kept.kernel, kept.count)


def _runs(pieces: Track, threshold: int) -> Int64:
    """(n,) number of the run each piece belongs to."""
    long = (pieces.end_ns - pieces.start_ns) >= threshold
    gap = (pieces.start_ns[1:] - pieces.end_ns[:-1]) >= threshold
    out: Int64 = np.concatenate(([0], np.cumsum(gap | long[1:] | long[:-1]))).astype(np.int64)
    return out


def _merged(pieces: Track, run: Int64) -> Track:
    """One piece per run: its longest work, in the state that fills most of it."""
    size = int(run[-1]) + 1
    length = pieces.end_ns - pieces.start_ns
    time = np.zeros((size, len(At)), dtype=np.int64)
    np.add.at(time, (run, pieces.at), length)
    first = np.concatenate(([True], run[1:] != run[:-1]))
    last = np.concatenate((run[1:] != run[:-1], [True]))
    most = time.argmax(axis=1)
    # The longest piece among those in the state that the run is shown in.
    order = np.lexsort((-length, pieces.at != most[run], run))
    named = pieces.kernel[order][np.concatenate(([True], np.diff(run[order]) > 0))]
    count = np.bincount(run, weights=pieces.count, minlength=size).astype(np.int64)
    return Track(pieces.start_ns[first], pieces.end_ns[last], most, named, count)
