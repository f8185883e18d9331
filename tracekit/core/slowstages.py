"""Stages whose kernels take longer than those of other stages.

Stages have no peers of equal role, so like is compared with like: kernels of equal name, both
alone or both beside communication, by their median length; healthy is
:func:`tracekit.core.stats.low_median` over the stages. A stage is slow where most of its time is
in kernels that take about equally longer. Else single names can be: those that a stage
launches as often, with equal grids and blocks, as the stages they are compared with.

Limits: single names are compared on GPUs only, where launches are recorded, and not where
experts exchange tokens, as then stages do unequal work under equal launches. What is slow on
every stage, or on half of them, cannot be told from what is healthy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.kerneltimes import PARTLY, Kernel
from tracekit.core.replay import Float
from tracekit.core.roles import Roles
from tracekit.core.stats import low_median, median_by
from tracekit.core.trace import Int64

SIGNIFICANT = 4.0  # standard errors
_LEAST = 0.012  # relative difference between whole stages that counts
_LEAST_OF_NAME = 0.05  # the same of a single name
_LEAST_KERNELS = 4  # whose scatter says something
_SPARED = 0.25  # of a stage's slowness, below which a name has no part in it
_MOST = 0.5  # of a stage's time, or a name's, that must be compared


@dataclass(frozen=True, slots=True, eq=False)
class _Classes:
    """Kernels of one name, shape and neighbourhood together; all but the first two by stage.

    Attributes:
        name, shape: (classes,) int64.
        typical_ns: (stages, classes) median length, NaN where there is none to compare.
        error: (stages, classes) relative standard error of that, on one rank.
        total_ns: (stages, classes) per step and rank.
        launches: (stages, classes) of the same name and shape, on one rank.
    """

    name: Int64
    shape: Int64
    typical_ns: Float
    error: Float
    total_ns: Float
    launches: Float


def whole_stages(kernel: Kernel, who: Roles, factor: Float) -> tuple[Float, npt.NDArray[np.bool_]]:
    """(traces,) how many times longer a rank's kernels take because its stage is slow.

    Also (traces, names) those of them that are compared and take no longer.

    Args:
        kernel: of all ranks.
        who: their stages.
        factor: (traces, names) what is already known of each rank; it is taken out.
    """
    out = np.ones(len(who.stage))
    spared = np.zeros(factor.shape, dtype=np.bool_)
    stages = np.array(who.stage)
    numbers = np.unique(stages)
    if len(numbers) < 2:
        return out, spared
    classes = _classes(kernel, stages, factor)
    ratio = _over_low_median(classes.typical_ns)
    mean = kernel.total_ns.mean(axis=1).sum(axis=1)
    for place, stage in enumerate(numbers.tolist()):
        use = np.isfinite(ratio[place])
        weight = classes.total_ns[place][use]
        if weight.sum() < _MOST * np.median(mean[stages == stage]) or not use.any():
            continue
        value = _weighted_median(ratio[place][use], weight)
        off = _weighted_median(np.abs(ratio[place][use] - value), weight)
        scatter = float(classes.error[place][use].min())
        if value - 1 > max(_LEAST, SIGNIFICANT * scatter, 2 * off):
            out[stages == stage] = value
            for name in np.unique(classes.name[use]).tolist():
                mine = use & (classes.name == name)
                as_often = classes.launches[:, mine] == classes.launches[place, mine]
                alike = as_often.sum(axis=0) > 1  # else the name may stand for other work
                if alike.all() and ratio[place][mine].max() - 1 < _SPARED * (value - 1):
                    spared[stages == stage, name] = True
    return out, spared


def single_names(kernel: Kernel, who: Roles, factor: Float, least_ns: float) -> Float:
    """(traces, names) how many times longer kernels take that one stage is slow at.

    Args:
        kernel, who, factor: as for whole stages.
        least_ns: per step, below which a name is not looked at.
    """
    out: Float = np.ones_like(factor)
    stages = np.array(who.stage)
    numbers = np.unique(stages)
    if len(numbers) < 2:
        return out
    classes = _classes(kernel, stages, factor)
    for place, name, value in _slow_names(classes):
        members = stages == numbers[place]
        total = np.median(kernel.total_ns[members, :, name].mean(axis=1))
        if total * (1 - 1 / value) >= least_ns:
            out[members, name] = value
    return out


def _slow_names(classes: _Classes) -> Iterator[tuple[int, int, float]]:
    """Place of the stage, name, and how many times longer its kernels take."""
    ratio = np.full(classes.typical_ns.shape, np.nan)
    for number in np.flatnonzero(classes.shape >= 0).tolist():
        launches = classes.launches[:, number]
        for count in np.unique(launches[launches >= _LEAST_KERNELS]).tolist():
            rows = launches == count
            ratio[rows, number] = _over_low_median(classes.typical_ns[rows][:, [number]])[:, 0]
    clear = ratio - 1 > np.maximum(_LEAST_OF_NAME, SIGNIFICANT * np.sqrt(2) * classes.error)
    for place in range(len(ratio)):
        for name in np.unique(classes.name[clear[place]]).tolist():
            mine = classes.name == name
            use = mine & np.isfinite(ratio[place])
            weight = classes.total_ns[place]
            if clear[place][use].all() and weight[use].sum() >= _MOST * weight[mine].sum():
                yield place, name, float(np.average(ratio[place][use], weights=weight[use]))


def _over_low_median(values: Float) -> Float:
    """(stages, n) over what is healthy; NaN where no two stages can be compared."""
    out = np.full(values.shape, np.nan)
    shared = np.isfinite(values).sum(axis=0) >= 2
    out[:, shared] = values[:, shared] / low_median(values[:, shared])[None, :]
    return out


def _weighted_median(values: Float, weights: Float) -> float:
    order = np.argsort(values, kind="stable")
    reach = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reach, 0.5 * reach[-1])])


def _classes(kernel: Kernel, stages: npt.NDArray[np.int64], factor: Float) -> _Classes:
    """The kernels of all ranks by class; names that are rare are left out."""
    shapes = 1 + max((int(item.max(initial=-1)) for item in kernel.shape), default=-1) + 1
    keys = []
    for (_, code, _), shape, beside in zip(
        kernel.kernels, kernel.shape, kernel.beside, strict=True
    ):
        key = (code * (shapes + 1) + shape + 1) * (PARTLY + 1) + beside
        keys.append(np.where(code < len(kernel.names) - 1, key, -1))
    known = np.unique(np.concatenate([np.unique(key) for key in keys]))
    known = known[known >= 0]
    size = len(known)
    name, shape = np.divmod(known // (PARTLY + 1), shapes + 1)
    typical = np.full((len(stages), size), np.nan)
    error = np.full((len(stages), size), np.inf)
    total, launches = np.zeros((len(stages), size)), np.zeros((len(stages), size))
    same_launch = np.unique(known // (PARTLY + 1), return_inverse=True)[1].reshape(-1)
    for place, key in enumerate(keys):
        length = kernel.kernels[place][2][key >= 0]
        at = np.searchsorted(known, key[key >= 0])
        count = np.bincount(at, minlength=size)
        middle = median_by(length, at, size)
        scatter = 1.4826 * median_by(np.abs(length - middle[at]), at, size)
        some = count >= _LEAST_KERNELS
        error[place, some] = (
            1.2533 * scatter[some] / np.maximum(middle[some], 1) / count[some] ** 0.5
        )
        typical[place] = middle / factor[place, name]
        total[place] = np.bincount(at, weights=length, minlength=size)
        launches[place] = np.bincount(same_launch, weights=count)[same_launch]
    typical[:, known % (PARTLY + 1) == PARTLY] = np.nan
    steps = kernel.total_ns.shape[1]
    groups = [stages == number for number in np.unique(stages)]
    return _Classes(
        name,
        shape - 1,
        np.array([low_median(typical[rows]) for rows in groups]),
        np.array([error[rows].min(axis=0) for rows in groups]),
        np.array([np.median(total[rows], axis=0) / steps for rows in groups]),
        np.array([np.median(launches[rows], axis=0) for rows in groups]),
    )
