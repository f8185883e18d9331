"""Summaries of many small groups of values at once, exactly and without a loop per group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.stats import P95_LEAST_N
from tracekit.core.trace import Int64

Float = npt.NDArray[np.float64]


class Summary(NamedTuple):
    """One value per group; quantiles are NaN where the group is too small for them."""

    n: Int64
    total: Int64
    p50: Float
    p95: Float
    largest: Int64  # 0 for an empty group


def summaries(values: Int64, key: Int64, size: int) -> Summary:
    """Count, sum, median, 95 % quantile and largest value of each key.

    Args:
        values: (n,) int64.
        key: (n,) int64 in [0, size).
        size: number of groups.
    """
    order = np.lexsort((values, key))
    values, key = values[order], key[order]
    first = np.searchsorted(key, np.arange(size + 1))
    n = np.diff(first)
    running = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)))
    largest = np.zeros(size, dtype=np.int64)
    has = n > 0
    largest[has] = values[first[1:][has] - 1]
    p95 = _quantile(values, first[:-1], n, 0.95)
    p95[n < P95_LEAST_N] = np.nan
    return Summary(
        n=n.astype(np.int64),
        total=running[first[1:]] - running[first[:-1]],
        p50=_quantile(values, first[:-1], n, 0.5),
        p95=p95,
        largest=largest,
    )


def _quantile(values: Int64, first: Int64, n: Int64, q: float) -> Float:
    """Linear between order statistics, as numpy's default; NaN without values."""
    out = np.full(len(n), np.nan)
    has = n > 0
    place = (n[has] - 1) * q
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, n[has] - 1)
    below = values[first[has] + low]
    above = values[first[has] + high]
    out[has] = below + (above - below) * (place - low)
    return out


class Codes:
    """One numbering of texts over all ranks."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def of(self, names: Sequence[str]) -> Int64:
        """(names + 1,) code of each name; the last entry, which -1 selects, is -1."""
        codes = [self._codes.setdefault(name, len(self._codes)) for name in names]
        return np.array([*codes, -1], dtype=np.int64)

    def texts(self) -> tuple[str, ...]:
        """The texts by code."""
        return tuple(self._codes)


def turns(key: Int64) -> Int64:
    """(n,) place of each row among those of equal key, in order."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(order)]
    number = np.arange(len(order))
    turn = np.empty(len(order), dtype=np.int64)
    turn[order] = number - np.maximum.accumulate(np.where(first, number, 0))
    return turn


def mixed(*columns: Int64) -> Int64:
    """(n,) one 64-bit number for each row of the columns, equal for equal rows."""
    out = np.zeros(len(columns[0]), dtype=np.uint64)
    for values in columns:
        out = (out ^ values.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        out ^= out >> np.uint64(29)
    return out.astype(np.int64)
