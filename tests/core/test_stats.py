"""Quantiles, their intervals and where there are none; what healthy peers show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.core.stats import line, low_median, low_median_of_others, median_by, quantile


def test_tails_need_enough_values() -> None:
    assert quantile(range(19), 0.95) is None
    assert quantile(range(20), 0.95) is not None
    assert quantile(range(99), 0.99) is None
    assert quantile(range(100), 0.99) is not None
    assert quantile([], 0.5) is None


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        found = quantile(rng.exponential(size=41), 0.5)
        assert found is not None
        inside += found.low <= np.log(2) <= found.high
    assert inside / 400 > 0.93


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=200))
def test_values_lie_inside_their_interval(values: list[int]) -> None:
    found = quantile(values, 0.5)
    assert found is not None
    assert found.low <= found.value <= found.high


def test_healthy_is_the_least_of_three_and_the_lower_median_of_four() -> None:
    assert low_median(np.array([3.0, 9.0])) == 3
    assert low_median(np.array([3.0, 9.0, 9.0])) == 3
    assert low_median(np.array([3.0, 4.0, 9.0, 9.0])) == 4
    assert low_median(np.array([3.0, np.nan, 9.0])) == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100)), min_size=1, max_size=60))
def test_medians_by_key_agree_with_numpy(rows: list[tuple[int, int]]) -> None:
    key = np.array([k for k, _ in rows])
    value = np.array([v for _, v in rows], dtype=np.float64)
    found = median_by(value, key, 6)
    for k in range(6):
        mine = value[key == k]
        assert np.isnan(found[k]) if len(mine) == 0 else found[k] == np.median(mine)


def test_a_line_is_found_exactly() -> None:
    x = np.array([1.0, 2.0, 8.0])
    assert line(x, 5 + 3 * x, np.ones(3)) == pytest.approx((5, 3, 1))


@pytest.mark.parametrize("count", range(1, 12))
def test_the_low_median_of_others_leaves_each_one_out(count: int) -> None:
    random = np.random.default_rng(count)
    for _ in range(20):
        values = random.integers(0, 6, count).astype(np.float64)
        values[random.random(count) < 0.2] = np.nan
        expected = [
            low_median(np.delete(values, place)) if count > 1 else np.nan for place in range(count)
        ]
        assert low_median_of_others(values) == pytest.approx(expected, nan_ok=True)
