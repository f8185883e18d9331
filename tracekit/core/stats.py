"""Small robust statistics: quantiles with intervals, spread, permutation of signs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating[Any]]

P95_LEAST_N = 20
P99_LEAST_N = 100
_Z95 = 1.959964


class Quantile(NamedTuple):
    """An order statistic with a 95 % interval, all in the unit of the data."""

    value: float
    low: float
    high: float


def quantile(values: npt.ArrayLike, q: float) -> Quantile | None:
    """The q-quantile with its order-statistic interval; None where n is too small for it.

    The interval is between the order statistics at ``n q ± 1.96 sqrt(n q (1 - q))``: free of
    any assumption on the distribution. p95 needs 20 values, p99 needs 100.

    Source: Conover, Practical Nonparametric Statistics, section 3.2.
    """
    data = np.sort(np.asarray(values, dtype=np.float64))
    n = len(data)
    if n == 0 or (q > 0.95 and n < P99_LEAST_N) or (0.5 < q <= 0.95 and n < P95_LEAST_N):
        return None
    half = _Z95 * math.sqrt(n * q * (1 - q))
    low = max(0, math.floor(n * q - half))
    high = min(n - 1, math.ceil(n * q + half))
    return Quantile(float(np.quantile(data, q)), float(data[low]), float(data[high]))


def spread(values: npt.ArrayLike) -> float:
    """Robust standard deviation: 1.4826 × the median distance from the median; 0 without data."""
    data = np.asarray(values, dtype=np.float64)
    if len(data) == 0:
        return 0.0
    return 1.4826 * float(np.median(np.abs(data - np.median(data))))


def low_median(values: Float, axis: int = 0) -> Float:
    """What a healthy one of several peers shows, when some of them may be sick.

    The lower median of four and more; the least of up to three, where a median may be
    a sick one's. NaN are left out.

    Args:
        values: any shape; the peers lie along ``axis``.
        axis: the axis that is reduced.
    """
    data = np.moveaxis(np.asarray(values, dtype=np.float64), axis, 0)
    ordered = np.sort(data, axis=0)  # NaN last
    known = np.sum(~np.isnan(data), axis=0)
    place = np.where(known >= 4, (known - 1) // 2, 0)
    out: Float = np.take_along_axis(ordered, place[None], axis=0)[0]
    return out


def low_median_of_others(values: Float) -> Float:
    """(n,) the :func:`low_median` of all values but each one itself; NaN where it has no others."""
    known = ~np.isnan(values)
    order = np.argsort(values, kind="stable")  # NaN last
    turn = np.empty(len(values), dtype=np.intp)
    turn[order] = np.arange(len(values))
    others = known.sum() - known
    place = np.where(others >= 4, (others - 1) // 2, 0)
    place += known & (turn <= place)
    out: Float = np.full(len(values), np.nan)
    has = others > 0
    out[has] = values[order[place[has]]]
    return out


def median_by(values: Float, key: npt.NDArray[np.int64], size: int) -> Float:
    """(size,) median of the values of each key; NaN for keys without values."""
    out = np.full(size, np.nan)
    if len(values) == 0:
        return out
    order = np.lexsort((values, key))
    sorted_key, data = key[order], values[order]
    first = np.searchsorted(sorted_key, np.arange(size))
    count = np.searchsorted(sorted_key, np.arange(size), side="right") - first
    has = count > 0
    low = data[np.minimum(first + np.maximum(count - 1, 0) // 2, len(data) - 1)]
    high = data[np.minimum(first + count // 2, len(data) - 1)]
    out[has] = 0.5 * (low + high)[has]
    return out


def line(x: Float, y: Float, weights: Float) -> tuple[float, float, float]:
    """Weighted least squares ``y = a + b x``: a, b, and the share of variance explained."""
    total = weights.sum()
    mean_x, mean_y = (weights * x).sum() / total, (weights * y).sum() / total
    dx, dy = x - mean_x, y - mean_y
    slope = float((weights * dx * dy).sum() / (weights * dx * dx).sum())
    explained = 1 - float((weights * (dy - slope * dx) ** 2).sum() / (weights * dy * dy).sum())
    return float(mean_y - slope * mean_x), slope, explained


def fixed_effect(values: npt.ArrayLike) -> tuple[float, float]:
    """Median of repeated measurements, and its robust standard error."""
    data = np.asarray(values, dtype=np.float64)
    n = len(data)
    if n == 0:
        return 0.0, math.inf
    return float(np.median(data)), 1.2533 * spread(data) / math.sqrt(n)
