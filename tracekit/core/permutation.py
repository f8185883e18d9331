"""What chance alone would show: permutation tests for slow ranks.

Null hypothesis: in each step it is chance which of the ranks of equal role is slow, so their
values may change places within the step. *Persistence*: whether the ranks named are slow in
step after step; the statistic is their mean place among their peers, so one long pause
counts as one step. That the ranks were chosen for being slow is allowed for: the null takes
the best choice, too, and all roles looked at. *Noise floor*: the slowdown which scatter alone
makes some rank seem to have, its lasting excess being taken out first.

Source: Ernst, "Permutation Methods", Statistical Science 19 (2004); Westfall and Young on
the maximum statistic (1993).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.core.replay import Float
from tracekit.core.stats import low_median

SIGNIFICANT_P = 0.05
_FLOOR_QUANTILE = 0.95
_DRAWS = 2_000
_LEAST_DRAWS = 200
_MOST_CELLS = 4_000_000  # draws × ranks × steps


def persistence(values: Float, role: Sequence[int], named: Sequence[int]) -> float | None:
    """Probability that chance would make some ranks as persistently slow as those named.

    Args:
        values: (traces, steps) own work of each rank.
        role: per trace, equal for comparable ranks.
        named: places of the traces in question.

    Returns:
        None where those named have no peers of equal role beside them.
    """
    number = np.array(role)
    chosen = np.zeros(len(number), dtype=np.bool_)
    chosen[list(named)] = True
    sizes = [int((number == k).sum()) for k in np.unique(number)]
    looked_at = sum(size > 1 for size in sizes)
    worst: float | None = None
    for k in np.unique(number[chosen]).tolist():
        members = number == k
        mine = chosen[members]
        if mine.all():
            return None
        p = _one_role(values[members], mine)
        worst = p if worst is None else max(worst, p)
    return None if worst is None else min(1.0, worst * looked_at)


def _one_role(values: Float, mine: npt.NDArray[np.bool_]) -> float:
    scores = _places(values)
    seen = float(scores[mine].mean())
    count, hits, draws = int(mine.sum()), 0, _draws(scores.size)
    random = np.random.default_rng(0)
    for _ in range(draws):
        mean = random.permuted(scores, axis=0).mean(axis=1)
        best = np.partition(mean, len(mean) - count)[-count:].mean()
        hits += bool(best >= seen - 1e-12)
    return (1 + hits) / (1 + draws)


def _places(values: Float) -> Float:
    """(ranks, steps) place among the ranks of each step, in [0, 1]; ties share theirs."""
    out = np.empty(values.shape)
    for step in range(values.shape[1]):
        column = values[:, step]
        ordered = np.sort(column)
        low = np.searchsorted(ordered, column, side="left")
        high = np.searchsorted(ordered, column, side="right") - 1
        out[:, step] = 0.5 * (low + high) / (len(column) - 1)
    return out


def noise_floor(values: Float, role: Sequence[int], step_ns: float) -> float:
    """Slowdown that scatter makes some rank seem to have, in 19 of 20 cases at most.

    Args:
        values: (traces, steps) ns, own work of each rank without its excess.
        role: per trace, equal for comparable ranks.
        step_ns: length of a step.
    """
    if values.size == 0 or step_ns <= 0:
        return 1.0
    number = np.array(role)
    groups = [np.flatnonzero(number == k) for k in np.unique(number)]
    over = [
        np.asarray(values[m] - low_median(values[m])[None, :], dtype=np.float64)
        for m in groups
        if len(m) > 1
    ]
    if not over:
        return 1.0
    random = np.random.default_rng(0)
    seen = []
    for _ in range(_draws(values.size)):
        lasting = [np.median(random.permuted(part, axis=0), axis=1).max() for part in over]
        seen.append(max(0.0, float(max(lasting))))
    return 1.0 + float(np.quantile(seen, _FLOOR_QUANTILE)) / step_ns


def _draws(size: int) -> int:
    return max(_LEAST_DRAWS, min(_DRAWS, _MOST_CELLS // max(size, 1)))
