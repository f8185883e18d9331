"""Interval arithmetic against a brute force over single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.core.intervals import (
    Intervals,
    covered_within,
    intersect,
    length,
    subtract,
    union,
)

spans = st.lists(st.tuples(st.integers(-20, 60), st.integers(-3, 25)), max_size=12)


def made(pairs: list[tuple[int, int]]) -> Intervals:
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    lengths = np.array([size for _, size in pairs], dtype=np.int64)
    return union(starts, starts + lengths)


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {at for start, size in pairs for at in range(start, start + size)}


def points_of(intervals: Intervals) -> set[int]:
    return {
        at
        for start, end in zip(intervals.starts, intervals.ends, strict=True)
        for at in range(start, end)
    }


@given(spans)
def test_union_covers_each_point_once_and_is_sorted_and_disjoint(a: list[tuple[int, int]]) -> None:
    result = made(a)
    assert points_of(result) == points(a)
    assert length(result) == len(points(a))
    assert (result.starts[1:] > result.ends[:-1]).all()


@given(spans, spans)
def test_intersection_and_difference(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    both, only = intersect(made(a), made(b)), subtract(made(a), made(b))
    assert points_of(both) == points(a) & points(b)
    assert points_of(only) == points(a) - points(b)
    assert length(both) + length(only) == length(made(a))


@given(spans, spans)
def test_cover_of_windows_that_may_overlap(
    a: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    low = np.array([start for start, _ in windows], dtype=np.int64)
    high = low + np.array([abs(size) for _, size in windows], dtype=np.int64)
    expected = [
        len(points(a) & set(range(start, end))) for start, end in zip(low, high, strict=True)
    ]
    assert covered_within(made(a), low, high).tolist() == expected


def test_nanoseconds_of_the_epoch_stay_exact() -> None:
    base = 1_767_189_312_000_000_000
    a = union(np.array([base, base + 3]), np.array([base + 2, base + 4]))
    assert length(a) == 3
    assert covered_within(a, np.array([base + 1]), np.array([base + 4])).tolist() == [2]
