"""Equations without their matrix give what the matrix gives."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit import simulate
from tracekit.core import clock
from tracekit.core.conjugate import solved


def test_equations_are_solved() -> None:
    random = np.random.default_rng(0)
    half = random.normal(size=(40, 40)) * 10.0 ** random.uniform(-3, 3, 40)
    matrix = half.T @ half + np.diag(np.abs(half).sum(axis=0))
    right = random.normal(size=40)
    found = solved(lambda x: matrix @ x, np.diag(matrix), right, np.zeros(40))
    assert found == pytest.approx(np.linalg.solve(matrix, right), rel=1e-8)


def test_what_stands_alone_stays() -> None:
    matrix = np.diag([2.0, 0.0])
    found = solved(lambda x: matrix @ x, np.diag(matrix), np.array([4.0, 0.0]), np.ones(2))
    assert found.tolist() == [2, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"tp": 2, "pp": 2, "dp": 2, "offset_ms": 50.0},
        {"tp": 2, "dp": 3, "offset_ms": 5.0, "drift_ppm": 40.0, "steps": 40},
        {"pp": 6, "offset_ms": 50.0, "host_clocks": True},
    ],
    ids=str,
)
def test_clocks_are_the_same_with_and_without_the_matrix(
    fields: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulate.load(simulate.made({"steps": 4, **fields}))
    assert run.matching is not None
    at_once = clock.fit(run.traces, run.matching)
    monkeypatch.setattr(clock, "_MOST_EQUATIONS", 0)
    stepwise = clock.fit(run.traces, run.matching)
    assert any(item.offset_ns for item in at_once)
    for one, other in zip(at_once, stepwise, strict=True):
        assert other.offset_ns == pytest.approx(one.offset_ns, abs=0.01)
        assert other.drift_ppb == pytest.approx(one.drift_ppb, abs=0.01)
        assert other.uncertainty_ns == pytest.approx(one.uncertainty_ns, rel=1e-6)
        assert other.component == one.component
