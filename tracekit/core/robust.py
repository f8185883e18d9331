"""Robust fits with intervals: a line through points of which some are far off."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

_Z95 = 1.959964
_MOST_POINTS = 400  # the slopes of all pairs of more are taken from an even choice of them


class Slope(NamedTuple):
    """A slope with its 95 % interval."""

    value: float
    low: float
    high: float


def theil_sen(x: npt.ArrayLike, y: npt.ArrayLike) -> Slope | None:
    """The median of the slopes between all pairs of points; None without two different x.

    The interval is between the order statistics that Kendall's variance gives, ties in x
    taken into account.

    Source: Sen, Estimates of the regression coefficient based on Kendall's tau (1968).
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(xs) > _MOST_POINTS:
        order = np.argsort(xs, kind="stable")
        order = order[np.linspace(0, len(xs) - 1, _MOST_POINTS).astype(np.int64)]
        xs, ys = xs[order], ys[order]
    first, second = np.triu_indices(len(xs), 1)
    run = xs[second] - xs[first]
    use = run != 0
    if not use.any():
        return None
    slopes = np.sort((ys[second] - ys[first])[use] / run[use])
    n, count = len(xs), len(slopes)
    ties = np.unique(xs, return_counts=True)[1]
    variance = (_tau(n) - sum(_tau(tie) for tie in ties.tolist())) / 18
    half = _Z95 * math.sqrt(variance)
    low, high = math.floor((count - half) / 2), math.ceil((count + half) / 2)
    return Slope(
        float(np.median(slopes)),
        float(slopes[low]) if low >= 0 else -math.inf,
        float(slopes[high]) if high < count else math.inf,
    )


def _tau(n: int) -> int:
    """The term of Kendall's variance for n points, or for n ties."""
    return n * (n - 1) * (2 * n + 5)
