"""The stratified fit: planted slowdowns recovered, intervals that hold, refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tracekit.core.slowdown import Pieces, slowdown


@dataclasses.dataclass(frozen=True)
class Plan:
    """A class of kernels: a step after another, each with the same kernels in order."""

    factor: float
    seed: int = 0
    steps: int = 60
    per_step: int = 40
    trend: float = 0.03
    noise: float = 0.02
    tail: float = 0.03
    fixed: bool = False  # the same kernels overlap in every step

    def pieces(self) -> Pieces:
        random = np.random.default_rng(self.seed)
        step = np.repeat(np.arange(self.steps), self.per_step)
        turn = np.tile(np.arange(self.per_step), self.steps)
        position = (turn + 0.5) / self.per_step
        alone = 100_000 * (1 + self.trend * position) * random.lognormal(0, self.noise, len(step))
        alone[random.random(len(step)) < self.tail] *= 3
        # Late kernels overlap more often: an unstratified ratio would see the trend.
        over = turn % 3 == 0 if self.fixed else random.random(len(step)) < 0.2 + 0.6 * position
        part = np.where(over, random.random(len(step)), 0.0)  # of the work
        ns = alone * (1 - part) + alone * part * self.factor
        return Pieces(
            np.rint(ns).astype(np.int64), alone * part * self.factor / ns,
            np.zeros(len(step), np.int64), turn, np.full(len(step), -1), position,
            step * 8 + (position * 8).astype(np.int64),
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("factor", [1.25, 1.08, 1.0, 1.83])
def test_planted_slowdowns_are_recovered(factor: float, fixed: bool, seed: int) -> None:
    found = slowdown(Plan(factor, seed, fixed=fixed).pieces())
    assert found is not None
    assert found.value == pytest.approx(factor, abs=0.01)
    assert found.low <= factor <= found.high
    assert found.high - found.low < 0.04


def test_the_interval_of_no_slowdown_holds_one() -> None:
    inside = 0
    for seed in range(60):
        found = slowdown(Plan(1.0, seed, steps=12).pieces())
        assert found is not None
        inside += found.low <= 1 <= found.high
    assert inside >= 56


def test_the_plain_ratio_of_medians_would_be_wrong() -> None:
    pieces = Plan(1.0, trend=0.3, tail=0).pieces()
    over = pieces.share > 0
    ratio = np.median(pieces.ns[over]) / np.median(pieces.ns[~over])
    found = slowdown(pieces)
    assert ratio > 1.02
    assert found is not None
    assert found.value == pytest.approx(1, abs=0.01)


def test_work_that_never_runs_alone_has_no_baseline() -> None:
    pieces = Plan(1.25, tail=0).pieces()
    assert slowdown(pieces.take(pieces.share > 0)) is None
    few = np.concatenate((np.flatnonzero(pieces.share == 0)[:4], np.flatnonzero(pieces.share > 0)))
    assert slowdown(pieces.take(few)) is None


def test_other_work_is_no_baseline() -> None:
    """Kernels of one name that differ in what they do are not compared."""
    pieces = Plan(1.0, tail=0, fixed=True).pieces()
    kind = (pieces.share > 0).astype(np.int64)
    assert slowdown(pieces._replace(kind=kind)) is None
    random = np.random.default_rng(1)
    odd = np.where(random.random(len(kind)) < 0.5, pieces.ns, pieces.ns * 3)
    assert slowdown(pieces._replace(ns=odd)) is None


def test_order_and_unit_of_time_do_not_matter() -> None:
    pieces = Plan(1.25).pieces()
    shuffled = pieces.take(np.random.default_rng(0).permutation(len(pieces.ns)))
    longer = pieces._replace(ns=pieces.ns * 1000)
    first, second, third = (slowdown(item) for item in (pieces, shuffled, longer))
    assert first is not None
    assert second is not None
    assert third is not None
    assert second.value == pytest.approx(first.value, abs=1e-6)
    assert third.value == pytest.approx(first.value, abs=1e-4)
