"""Stages against stages, by lengths of kernels written down here."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.core.kerneltimes import ALONE, BESIDE, PARTLY, Kernel
from tracekit.core.roles import Roles
from tracekit.core.slowstages import single_names, whole_stages

NAMES = ("gemm", "norm", "")
STEPS = 2
# Of each kernel of a rank, in any order: name, length in ns, shape, neighbourhood.
Launch = tuple[str, int, int, int]


def kernel(*ranks: list[Launch]) -> Kernel:
    """These kernels in each of two steps, with a little scatter."""
    total = np.zeros((len(ranks), STEPS, len(NAMES)))
    count = np.zeros(total.shape, dtype=np.int64)
    kernels, shapes, besides = [], [], []
    for place, launches in enumerate(ranks):
        code = np.array([NAMES.index(name) for name, *_ in launches] * STEPS)
        length = np.array([float(ns) for _, ns, *_ in launches] * STEPS)
        length += np.arange(len(length)) % 3
        step = np.repeat(np.arange(STEPS), len(launches))
        np.add.at(total[place], (step, code), length)
        np.add.at(count[place], (step, code), 1)
        kernels.append((np.zeros(len(code), dtype=np.intp), code.astype(np.int64), length))
        shapes.append(np.array([shape for *_, shape, _ in launches] * STEPS, dtype=np.int64))
        besides.append(np.array([beside for *_, beside in launches] * STEPS, dtype=np.int64))
    return Kernel(NAMES, total, count, tuple(kernels), tuple(shapes), tuple(besides))


def stage(
    gemm_ns: int, norm_ns: int = 1_000, *, shape: int = 0, beside: int = ALONE
) -> list[Launch]:
    """Three gemms and three norms."""
    return [("gemm", gemm_ns, shape, beside), ("norm", norm_ns, 1, beside)] * 3


def stages(count: int) -> Roles:
    numbers = tuple(range(count))
    return Roles(numbers, numbers, (), inferred=False)


def whole(found: Kernel) -> list[float]:
    count = len(found.kernels)
    factor, _ = whole_stages(found, stages(count), np.ones((count, len(NAMES))))
    return factor.round(2).tolist()


def single(found: Kernel, least_ns: float = 0.0) -> list[list[float]]:
    count = len(found.kernels)
    factor = np.ones((count, len(NAMES)))
    return single_names(found, stages(count), factor, least_ns).round(2).tolist()


HEALTHY = [[1, 1, 1]] * 3


def test_a_stage_is_slow_where_all_its_kernels_are() -> None:
    slow = kernel(stage(4_000), stage(6_000, 1_500), stage(4_000))
    assert whole(slow) == [1, 1.5, 1]
    assert whole(kernel(stage(4_000), stage(4_000), stage(4_000))) == [1, 1, 1]


def test_what_is_known_of_ranks_is_taken_out_first() -> None:
    slow = kernel(stage(4_000), stage(6_000, 1_500), stage(4_000))
    known = np.array([[1.0, 1, 1], [1.5, 1.5, 1.5], [1, 1, 1]])
    assert whole_stages(slow, stages(3), known)[0].round(2).tolist() == [1, 1, 1]
    assert single_names(slow, stages(3), known, 0.0).round(2).tolist() == HEALTHY


def test_one_name_that_is_slow_on_a_stage() -> None:
    # Most of the time is in norms, which are as fast as elsewhere.
    slow = kernel(stage(400), stage(800), stage(400))
    assert whole(slow) == [1, 1, 1]
    assert single(slow) == [[1, 1, 1], [2, 1, 1], [1, 1, 1]]
    # 2,400 of 5,400 ns in a step, half of it too long.
    assert single(slow, least_ns=1_150.0)[1][0] == 2
    assert single(slow, least_ns=1_250.0) == HEALTHY


@pytest.mark.parametrize(
    "other",
    [
        stage(800, shape=7),  # another grid: other work
        stage(800, shape=-1),  # not recorded
        [*stage(800), ("gemm", 800, 0, ALONE)],  # more launches: another part of the model
        stage(800, beside=BESIDE),  # slower beside communication, as anywhere
        stage(800, beside=PARTLY),
    ],
)
def test_unlike_kernels_are_not_compared(other: list[Launch]) -> None:
    assert single(kernel(stage(400), other, stage(400))) == HEALTHY


def test_kernels_beside_communication_are_compared_with_their_like() -> None:
    usual = stage(400) + stage(600, 1_500, beside=BESIDE)
    contended = stage(600, 1_500, beside=BESIDE)
    assert whole(kernel(usual, contended, usual)) == [1, 1, 1]
    slow = stage(800) + stage(1_200, 1_500, beside=BESIDE)
    assert single(kernel(usual, slow, usual)) == [[1, 1, 1], [2, 1, 1], [1, 1, 1]]


def test_slow_on_half_of_the_stages_looks_healthy() -> None:
    two = kernel(stage(800), stage(800), stage(400))
    assert single(two)[0][0] == 2  # of three the fastest is healthy
    four = kernel(stage(800), stage(800), stage(800), stage(400))
    assert single(four) == [[1, 1, 1]] * 4
