"""The clock offset between two ranks from their calls alone, by a vote of pairs.

Every pair of equal calls of the two ranks proposes the difference of their end
times as the offset. Pairs that are one collective agree to microseconds, since
its members end together; wrong pairs scatter by the noise of the steps. Where
the steps are too regular for that, several offsets win alike and there is no
answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.trace import Int64

LEAST_MARGIN = 1.3  # votes of the best offset ÷ votes of the next one
LEAST_VOTES = 3
LEAST_BLIND_VOTES = 8  # where no step says which calls can be the same at all
_SAMPLES = 64  # calls of the first rank that vote; more only cost time


class Vote(NamedTuple):
    """The winner; ``margin`` is infinite when no other offset had a vote."""

    offset_ns: int  # to add to the first rank's times to get the second's
    votes: int
    margin: float


def vote(
    first: tuple[Int64, Int64],
    second: tuple[Int64, Int64],
    width_ns: int,
    limit_ns: int | None = None,
    least: int = LEAST_VOTES,
) -> Vote | None:
    """The offset most pairs agree on; None without enough pairs.

    Args:
        first: (n,) fingerprints and (n,) int64 ns end times of one rank's calls.
        second: the same of the other rank.
        width_ns: differences this close are one offset.
        limit_ns: offsets beyond this are impossible, where that is known.
        least: votes that an offset needs to win.
    """
    differences = _differences(first, second)
    if limit_ns is not None:
        differences = differences[np.abs(differences) <= limit_ns]
    if len(differences) < least:
        return None
    counts = np.searchsorted(differences, differences + width_ns, side="right") - np.arange(
        len(differences)
    )
    best = int(counts.argmax())
    votes = int(counts[best])
    if votes < least:
        return None
    inside = differences[best : best + votes]
    offset = int(np.median(inside))
    apart = np.abs(differences - offset) > 2 * width_ns
    rival = int(counts[apart].max()) if apart.any() else 0
    return Vote(offset, votes, votes / rival if rival else np.inf)


def _differences(first: tuple[Int64, Int64], second: tuple[Int64, Int64]) -> Int64:
    """Sorted end-time differences of pairs with equal fingerprints, rare ones first."""
    kind, end = second
    order = np.lexsort((end, kind))
    kind, end = kind[order], end[order]
    chosen = _sample(*first)
    low = np.searchsorted(kind, first[0][chosen], side="left")
    high = np.searchsorted(kind, first[0][chosen], side="right")
    count = high - low
    owner = np.repeat(np.arange(len(chosen)), count)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    out: Int64 = np.sort(end[low[owner] + place] - first[1][chosen][owner])
    return out


def _sample(kind: Int64, end: Int64) -> npt.NDArray[np.intp]:
    """Calls that vote: all, or a number of them spread over the capture, rare kinds first."""
    if len(kind) <= _SAMPLES:
        return np.arange(len(kind))
    _, inverse, count = np.unique(kind, return_inverse=True, return_counts=True)
    rare = np.flatnonzero(count[inverse] <= max(4, len(kind) // 50))[: _SAMPLES // 2]
    spread = np.linspace(0, len(kind) - 1, _SAMPLES - len(rare)).astype(np.intp)
    return np.unique(np.concatenate((rare, np.argsort(end, kind="stable")[spread])))
