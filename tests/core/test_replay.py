"""The replay engine against a plain recursion."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.core.replay import graph, replay


def test_a_join_waits_for_the_later_of_two() -> None:
    plan = graph(4, [0, 1, 2], [2, 2, 3])
    assert plan is not None
    work = np.array([[10.0, 10.0], [30.0, 5.0], [1.0, 1.0], [2.0, 2.0]])
    times = replay(plan, np.array([0.0, 0.0, 0.0, 0.0]), work)
    assert times.tolist() == [[10, 10], [30, 5], [31, 11], [33, 13]]


def test_a_circle_is_no_graph() -> None:
    assert graph(3, [0, 1, 2], [1, 2, 0]) is None


edges = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40)


@given(edges, st.lists(st.integers(0, 1000), min_size=12, max_size=12))
def test_agrees_with_a_plain_recursion(pairs: list[tuple[int, int]], work: list[int]) -> None:
    forward = sorted({(a, b) for a, b in pairs if a < b})
    plan = graph(12, [a for a, _ in forward], [b for _, b in forward])
    assert plan is not None
    begin = np.arange(12.0)
    times = replay(plan, begin, np.array(work, dtype=np.float64)[:, None])[:, 0]
    for node in range(12):
        before = [times[a] for a, b in forward if b == node]
        assert times[node] == (max(before) if before else begin[node]) + work[node]
