"""Whether microbatches take longer because their sequences are longer.

A longer sequence lengthens the forward and the backward of its microbatch alike; a slow device
lengthens those of all microbatches of a step. So the time of forwards and backwards is
compared over microbatches, each against the mean of its rank, stage and step: lengths are the
cause where they correlate with r >= 0.9 and vary by at least a tenth, CV >= 0.1.

Source: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
OSDI 2025, section 5.3. Needs marks of forwards and backwards; without them nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.core.replay import Float
from tracekit.core.stagework import StageWork, stage_work
from tracekit.core.trace import Int64, RankTrace

LEAST_R, LEAST_CV = 0.9, 0.1
_LEAST_PAIRS = 8
_COVERAGE = 0.8
_FORWARD = 0  # in stagework.KINDS


def lengths_explain(trace: RankTrace, peers: Sequence[RankTrace]) -> bool | None:
    """Whether longer sequences make this rank slower than peers of equal role.

    They do where its shortest microbatches take no longer than the peers' shortest ones: at
    least 80 % of its excess then lies in the others. None where the lengths of sequences do not
    set the time of its microbatches, or no peer has marks.
    """
    own = _work(trace)
    if not _differ(own):
        return None
    others = [work for work in map(_work, peers) if len(work)]
    if not others:
        return None
    least, mean = _least_and_mean(own)
    known = np.array([_least_and_mean(work) for work in others])
    over = mean / max(float(np.median(known[:, 1])), 1.0) - 1
    shortest = least / max(float(np.median(known[:, 0])), 1.0) - 1
    return over > 0 and shortest <= (1 - _COVERAGE) * over


def lengths_differ(trace: RankTrace) -> bool:
    """Whether the lengths of sequences set the time of this rank's microbatches."""
    return _differ(_work(trace))


def _work(trace: RankTrace) -> StageWork:
    return stage_work(trace, None, 0, waits_inside=True)


def _least_and_mean(work: StageWork) -> tuple[float, float]:
    forward = work.busy_ns[work.kind == _FORWARD]
    return (float(np.quantile(forward, 0.1)), float(forward.mean())) if len(forward) else (0.0, 0.0)


def _differ(work: StageWork) -> bool:
    if len(work) == 0:
        return False
    forward, backward = _pairs(work)
    if len(forward) < _LEAST_PAIRS or forward.std() == 0 or backward.std() == 0:
        return False
    r = float(np.corrcoef(forward, backward)[0, 1])
    return r >= LEAST_R and min(float(forward.std()), float(backward.std())) >= LEAST_CV


def _pairs(work: StageWork) -> tuple[Float, Float]:
    """Forward and backward of each microbatch, over the mean of its stage and step, less 1."""
    group = (work.step.astype(np.int64) << 20) + work.stage
    key = (group << 20) + work.microbatch
    is_forward = work.kind == _FORWARD
    busy = work.busy_ns.astype(np.float64)
    front_key, front = _sums(key[is_forward], busy[is_forward])
    back_key, back = _sums(key[~is_forward], busy[~is_forward])
    both, at_front, at_back = np.intersect1d(front_key, back_key, return_indices=True)
    group = both >> 20
    return _over_mean(front[at_front], group), _over_mean(back[at_back], group)


def _sums(key: Int64, values: Float) -> tuple[Int64, Float]:
    unique, place = np.unique(key, return_inverse=True)
    sums = np.bincount(place.reshape(-1), weights=values, minlength=len(unique))
    return unique, sums.astype(np.float64)


def _over_mean(values: Float, group: Int64) -> Float:
    """Over the mean of the group, less 1; groups of one say nothing and are left at 0."""
    _, place = np.unique(group, return_inverse=True)
    place = place.reshape(-1)
    count = np.bincount(place)
    mean = np.bincount(place, weights=values) / np.maximum(count, 1)
    out: Float = values / np.maximum(mean[place], 1e-9) - 1
    kept: Float = out[count[place] > 1]
    return kept
