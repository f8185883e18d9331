"""Permutation tests against chance, and against what they must not mistake."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.core.permutation import noise_floor, persistence


def scatter(ranks: int, steps: int, seed: int = 0) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).normal(1000.0, 20.0, (ranks, steps))


def test_slow_in_every_step_is_no_chance() -> None:
    values = scatter(8, 10)
    values[3] += 100
    p = persistence(values, [0] * 8, [3])
    assert p is not None
    assert p < 0.005


def test_one_long_pause_is() -> None:
    values = scatter(8, 10)
    values[3, 4] += 5000
    p = persistence(values, [0] * 8, [3])
    assert p is not None
    assert p > 0.1


def test_the_slowest_of_equals_is_found_significant_as_rarely_as_stated() -> None:
    hits = 0
    for seed in range(100):
        values = scatter(6, 8, seed)
        p = persistence(values, [0] * 6, [int(values.mean(axis=1).argmax())])
        assert p is not None
        hits += p <= 0.05
    assert hits <= 10


def test_ties_and_missing_peers() -> None:
    assert persistence(np.ones((4, 5)), [0] * 4, [1]) == 1.0
    assert persistence(scatter(4, 5), [0, 1, 2, 3], [1]) is None
    assert persistence(scatter(4, 5), [0, 0, 1, 1], [0, 1]) is None


def test_two_at_once() -> None:
    values = scatter(8, 10)
    values[[1, 6]] += 100
    p = persistence(values, [0] * 8, [1, 6])
    assert p is not None
    assert p < 0.005


def test_the_floor_follows_the_scatter() -> None:
    calm = noise_floor(1000 + 0.1 * (scatter(8, 10) - 1000), [0] * 8, 1000.0)
    rough = noise_floor(scatter(8, 10), [0] * 8, 1000.0)
    assert 1 < calm < rough < 1.06
    assert noise_floor(scatter(3, 10), [0, 1, 2], 1000.0) == 1.0
