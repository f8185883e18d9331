"""How much slower work runs while something else runs beside it: one stratified, robust fit.

Model: a piece of work takes d0 alone. While a share f of its time overlaps the other's, it
runs κ times slower, so ``d0 / d = 1 − f (1 − 1/κ)``. Pieces are compared inside strata of
equal work only: an unstratified ratio of medians measures where in a step overlap happens.
Fit: log d by Huber-weighted least squares on strata and on ``−log(1 − f σ)`` with
σ = 1 − 1/κ, where strata are coarse also on a straight trend over the step. Interval: 99 %, from
a bootstrap over blocks (parts of steps) of the one-step estimate, with Student's t.
Source: Huber, Robust Statistics, chapter 7; Cameron and Miller on few clusters (2015).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.grouped import mixed
from tracekit.core.trace import Int64

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LEAST = 5  # pieces alone, and overlapped
MOST = 20_000  # pieces of a class that are used; more say no more
_BINS = (8, 4, 2, 1)  # parts of a step
_COVERED = 0.5  # of the overlapped pieces must be in strata with a baseline
_MIXED = 0.25  # spread of the logarithm from which pieces alone are not of one kind
_WIDEST = 0.4  # half an interval of sigma beyond which it says nothing
_HUBER = 1.345
_STEEPEST = 0.95  # sigma of a slowdown of 20
_ROUNDS = 30
_RESAMPLED = 500
_Z99 = 2.575829
_LEAST_BLOCKS = 4
_MOST_BLOCKS = 400


class Slowdown(NamedTuple):
    """A factor with its 99 % interval, and what kind of strata it rests on."""

    value: float
    low: float
    high: float
    baseline: str  # "position", "action", or "1/8 of a step" and coarser


class Pieces(NamedTuple):
    """Pieces of work of one class.

    Attributes:
        ns: (n,) duration.
        share: (n,) of it that overlaps, in [0, 1].
        kind: (n,) pieces of different kinds are never compared.
        turn: (n,) place among the pieces of its kind in its rank's step.
        inner: (n,) the same inside the action that launched it; -1 where there are none.
        position: (n,) place in the step's time, in [0, 1].
        block: (n,) pieces of one block may be alike by more than their stratum.
    """

    ns: Int64
    share: Float
    kind: Int64
    turn: Int64
    inner: Int64
    position: Float
    block: Int64

    def take(self, rows: npt.NDArray[np.intp] | Bool) -> Pieces:
        """Some of the pieces."""
        return Pieces(
            self.ns[rows], self.share[rows], self.kind[rows], self.turn[rows],
            self.inner[rows], self.position[rows], self.block[rows],
        )  # fmt: skip


def slowdown(pieces: Pieces) -> Slowdown | None:
    """The slowdown under overlap; None without a baseline of equal work that runs alone."""
    pieces = pieces.take((pieces.ns > 0) & np.isfinite(pieces.share))
    if len(pieces.ns) > MOST:
        pieces = pieces.take(np.linspace(0, len(pieces.ns) - 1, MOST).astype(np.intp))
    alone = pieces.share == 0
    if alone.sum() < LEAST or (~alone).sum() < LEAST:
        return None
    for level in _levels(pieces):
        stratum = np.unique(mixed(pieces.kind, level.fine), return_inverse=True)[1].reshape(-1)
        used = _with_baseline(stratum, alone, level.least)
        weight = pieces.share[used].sum() / pieces.share.sum()
        enough = (alone & used).sum() >= LEAST and (~alone & used).sum() >= LEAST
        if enough and weight >= _COVERED:
            return _fitted(pieces.take(used), stratum[used], level)
    return None


class _Level(NamedTuple):
    """One way to form strata of equal work.

    Attributes:
        label: what is equal in them.
        fine: (n,) what tells strata of one kind apart.
        trend: whether pieces of a stratum lie at different places in the step.
        least: pieces alone that a stratum needs.
    """

    label: str
    fine: Int64
    trend: bool
    least: int


def _levels(pieces: Pieces) -> Iterator[_Level]:
    """Finest first."""
    yield _Level("position", pieces.turn, False, 2)
    if (pieces.inner >= 0).all():
        yield _Level("action", pieces.inner, True, 2)
    for bins in _BINS:
        part = np.minimum(pieces.position * bins, bins - 1).astype(np.int64)
        yield _Level("a whole step" if bins == 1 else f"1/{bins} of a step", part, True, LEAST)


def _with_baseline(stratum: Int64, alone: Bool, least: int) -> Bool:
    """(n,) whether a piece's stratum has pieces alone, and overlapped ones."""
    size = int(stratum.max()) + 1
    base = np.bincount(stratum[alone], minlength=size)
    other = np.bincount(stratum[~alone], minlength=size)
    used: Bool = ((base >= least) & (other > 0))[stratum]
    return used


def _fitted(pieces: Pieces, stratum: Int64, level: _Level) -> Slowdown | None:
    fit = _Fit(pieces, stratum, level.trend)
    if fit.alone_spread() > _MIXED:
        return None
    sigma = fit.solve()
    error = fit.error()
    if error is None or error > _WIDEST:
        return None
    return Slowdown(_factor(sigma), _factor(sigma - error), _factor(sigma + error), level.label)


def _factor(sigma: float) -> float:
    return 1 / (1 - min(sigma, _STEEPEST))


class _Fit:
    """The iterated fit of one class."""

    def __init__(self, pieces: Pieces, stratum: Int64, with_trend: bool) -> None:
        self.log = np.log(pieces.ns.astype(np.float64))
        self.share, self.block = pieces.share, pieces.block
        self.stratum = np.unique(stratum, return_inverse=True)[1].reshape(-1)
        self.size = int(self.stratum.max()) + 1
        self.trend = pieces.position if with_trend else None
        self.sigma = self.slope = 0.0
        self.weight = np.ones(len(self.log))

    def alone_spread(self) -> float:
        """Robust spread of the logarithm of the pieces alone inside their strata."""
        alone = self.share == 0
        away = self.log[alone] - _medians(self.log[alone], self.stratum[alone], self.size)
        low, high = np.quantile(away, (0.25, 0.75))
        return float(high - low) / 1.349

    def solve(self) -> float:
        """Newton steps with Huber weights until nothing moves."""
        for _ in range(_ROUNDS):
            rest, z, u = self._centred()
            scale = max(1.4826 * float(np.median(np.abs(rest))), 1e-9)
            self.weight = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(rest), 1e-12))
            rest, z, u = self._centred()
            z, slope_part = self._without_trend(z, u)
            total = float((self.weight * z * z).sum())
            step = float((self.weight * z * rest).sum()) / total if total > 0 else 0.0
            before = self.sigma
            self.sigma = min(_STEEPEST, max(-1.0, self.sigma + step))
            if u is not None:
                squares = float((self.weight * u * u).sum())
                moved = rest - step * (z + slope_part)
                self.slope += float((self.weight * u * moved).sum()) / squares if squares else 0.0
            if abs(self.sigma - before) < 1e-7:
                break
        return self.sigma

    def _centred(self) -> tuple[Float, Float, Float | None]:
        """Residual, derivative by sigma, and trend, each less its stratum's weighted mean."""
        left = 1 - self.share * self.sigma
        rest = self.log + np.log(left)
        if self.trend is not None:
            rest = rest - self.slope * self.trend
        u = None if self.trend is None else self._less_mean(self.trend)
        return self._less_mean(rest), self._less_mean(self.share / left), u

    def _less_mean(self, values: Float) -> Float:
        total = np.bincount(self.stratum, self.weight, self.size)
        mean = np.bincount(self.stratum, self.weight * values, self.size) / total
        out: Float = values - mean[self.stratum]
        return out

    def _without_trend(self, z: Float, u: Float | None) -> tuple[Float, Float]:
        """The part of z that a trend does not explain, and the part it does."""
        if u is None:
            return z, np.zeros_like(z)
        squares = float((self.weight * u * u).sum())
        explained = u * (float((self.weight * u * z).sum()) / squares if squares else 0.0)
        return z - explained, explained

    def error(self) -> float | None:
        """Half the 99 % interval of sigma; None with too few blocks."""
        rest, z, u = self._centred()
        z, _ = self._without_trend(z, u)
        scale = max(1.4826 * float(np.median(np.abs(rest))), 1e-9)
        block = np.unique(self.block, return_inverse=True)[1].reshape(-1)
        count = int(block.max()) + 1
        if count > _MOST_BLOCKS:  # neighbours together
            block, count = block * _MOST_BLOCKS // count, _MOST_BLOCKS
        if count < _LEAST_BLOCKS:
            return None
        score = np.bincount(block, self.weight * z * rest, count)
        inner = np.abs(rest) <= _HUBER * scale
        curve = np.bincount(block, z * z * inner, count)
        if curve.sum() <= 0:
            return None
        random = np.random.default_rng(0)
        drawn = random.multinomial(count, np.full(count, 1 / count), size=_RESAMPLED)
        below = np.maximum(drawn @ curve, 0.25 * curve.sum())
        spread = float(np.std((drawn @ score) / below))
        # What the strata's own means and the blocks' have used up.
        left = max(1, len(rest) - self.size - 2)
        lost = np.sqrt(len(rest) / left * count / (count - 1))
        return _student(count - 1) * spread * float(lost)


def _medians(values: Float, key: npt.NDArray[np.intp], size: int) -> Float:
    """(n,) median of each value's group."""
    order = np.lexsort((values, key))
    first = np.searchsorted(key[order], np.arange(size))
    count = np.bincount(key, minlength=size)
    place = np.minimum(first + np.maximum(count - 1, 0) // 2, len(values) - 1)
    out: Float = values[order][place][key]
    return out


def _student(freedom: int) -> float:
    """The 99.5 % quantile of Student's t, by its expansion around the normal one.

    Source: Abramowitz and Stegun 26.7.5.
    """
    z = _Z99
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
