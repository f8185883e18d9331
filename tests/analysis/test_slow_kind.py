"""Simulated jobs in which one kind of kernel, or one operation, is always slow in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracekit import simulate
from tracekit.analysis.stragglers import StragglersResult, analyze
from tracekit.simulate import Spec, engine
from tracekit.simulate.costs import Costs
from tracekit.simulate.job import Job
from tracekit.simulate.program import Do


class Slow:
    """Makes what a test names slow in every simulation that follows.

    Args:
        stage: pipeline rank on which it is slow.
        name: of the kernels or of the operation.
        factor: how many times longer kernels take.
        group: of an operation: place of the tp group in the stage, and µs it takes longer.
    """

    def __init__(
        self, stage: int, name: str, factor: float = 1.0, group: tuple[int, int] = (0, 0)
    ) -> None:
        self.stage, self.name, self.factor, self.group = stage, name, factor, group

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        usual = engine.costs

        def costs(job: Job, pp: int, ops: Any, routing: Any) -> Costs:
            made = usual(job, pp, ops, routing)
            if pp != self.stage:
                return made
            for place, op in enumerate(ops):
                rows = slice(place, None, len(ops))
                if op.name != self.name:
                    continue
                if op.do is Do.COMPUTE:
                    made.work_ns[rows] = np.rint(made.work_ns[rows] * self.factor)
                elif op.axis == "tp":
                    number, extra_us = self.group
                    ranks = slice(number * job.spec.tp, (number + 1) * job.spec.tp)
                    made.work_ns[rows, ranks] += 1000 * extra_us
            return made

        patch.setattr(engine, "costs", costs)


def length_ns(spec: Spec) -> int:
    """Of all steps but the first."""
    return int(np.diff(engine.run(spec).step_ends()).sum())


def judged(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], *slow: Slow
) -> tuple[StragglersResult, float]:
    """What is found, and the true slowdown."""
    spec = simulate.made({"steps": 6, **fields})
    clean_ns = length_ns(spec)
    with monkeypatch.context() as patch:
        for item in slow:
            item.plant(patch)
        return analyze(simulate.load(spec)), length_ns(spec) / clean_ns


@pytest.mark.parametrize(
    ("fields", "kind", "ranks"),
    [
        ({"pp": 4}, "rank", (2,)),
        ({"pp": 4, "tp": 2}, "stage", (4, 5)),
        ({"pp": 3, "tp": 2, "offset_ms": 5, "seq_numbers": False}, "stage", (4, 5)),
        ({"pp": 4, "contention": {"*": 1.3}}, "rank", (2,)),
        ({"pp": 4, "dp": 2, "schedule": "zbv"}, "stage", (4, 5)),
    ],
    ids=str,
)
def test_one_kind_of_kernel_on_one_stage(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], kind: str, ranks: tuple[int, ...]
) -> None:
    result, slowdown = judged(monkeypatch, fields, Slow(2, "up", 1.6))
    assert (result.culprit_kind, result.culprit_ranks) == (kind, ranks)
    assert result.cause == "work"
    assert slowdown > 1.03
    assert result.slowdown == pytest.approx(slowdown, rel=0.02)


def test_kernels_beside_communication_accuse_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    # The inner stages communicate more, so contention makes more of their kernels slow.
    result, _ = judged(monkeypatch, {"pp": 4, "contention": {"*": 1.3}})
    assert result.culprit_kind == "none"
    assert result.slowdown == 1


def test_kernels_that_are_slow_on_every_stage_accuse_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = [Slow(stage, "up", 1.6) for stage in range(3)]
    result, slowdown = judged(monkeypatch, {"pp": 3, "tp": 2}, *slow)
    assert slowdown > 1.1
    assert result.culprit_kind == "none"


@pytest.mark.parametrize(
    "fields",
    [{"tp": 2, "dp": 4}, {"tp": 2, "pp": 2, "dp": 2}, {"tp": 4, "dp": 4, "offset_ms": 5}],
    ids=str,
)
def test_an_operation_slow_in_one_group(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    shape = {"sequence_parallel": True, **fields}
    result, slowdown = judged(monkeypatch, shape, Slow(0, "all_gather", group=(1, 150)))
    width = fields["tp"]
    assert (result.culprit_kind, result.culprit_members) == ("op", "all_gather")
    assert result.culprit_ranks == tuple(range(width, 2 * width))
    assert result.persistence == "lasting"
    assert slowdown > 1.05
    assert result.slowdown == pytest.approx(slowdown, rel=0.02)
    # Both operations slow: it is the link.
    both = [Slow(0, name, group=(1, 150)) for name in ("all_gather", "reduce_scatter")]
    result, slowdown = judged(monkeypatch, shape, *both)
    assert result.culprit_kind == "link"
    assert set(result.culprit_ranks) <= set(range(width, 2 * width))
    assert result.slowdown == pytest.approx(slowdown, rel=0.02)
