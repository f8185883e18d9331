"""The share of all token assignments that each expert should get."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tracekit.core.errors import UsageError
from tracekit.core.fault import HotExpert

HOT_SHARE = 0.5  # of --routing hot:E, as in profile

Floats = npt.NDArray[np.float64]


def shares(routing: str, experts: int, hot: Iterable[HotExpert]) -> Floats:
    """(experts,) shares that sum to 1.

    Args:
        routing: "balanced", "zipf:A" or "hot:E".
        experts: number of them.
        hot: planted faults; each counts instead of the routing.

    Raises:
        UsageError: the routing is not known or does not fit.
    """
    weights = _weights(routing, experts)
    for planted in hot:
        weights = _hot(experts, planted.expert, planted.share)
    made: Floats = weights / weights.sum()
    return made


def _weights(routing: str, experts: int) -> Floats:
    kind, _, value = routing.partition(":")
    try:
        if kind == "balanced" and not value:
            return np.ones(experts)
        if kind == "zipf" and math.isfinite(float(value)) and float(value) >= 0:
            return np.asarray(np.arange(1, experts + 1) ** -float(value), dtype=np.float64)
        if kind == "hot" and 0 <= int(value) < experts:
            return _hot(experts, int(value), HOT_SHARE)
    except ValueError:
        pass
    raise UsageError(f"routing {routing!r} is not known; choose balanced, zipf:A or hot:E")


def _hot(experts: int, expert: int, share: float) -> Floats:
    weights = np.full(experts, (1 - share) / max(experts - 1, 1))
    weights[expert] = share
    return weights
