"""Verdicts on jobs that were written apart from tracekit.simulate, from the trace format alone.

One generator's habits can hide a mistake that is made in both places: the jobs here share no
code with the simulator and none with what reads them. The first tests hold one case each that
was once told wrongly; the grid at the end asks for the same as that of ``tests/grid``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.independent.generate import Fault, Job, Spec
from tests.independent.kineto import write
from tracekit.analysis.stragglers import StragglersResult, analyze
from tracekit.core.run import Run


def load(job: Job, folder: Path) -> tuple[Run, list[tuple[float, float]]]:
    """The job's run as read from its traces, and per rank what its clock is wrong by.

    In ns, with the stated uncertainty, against the first rank that its clock is tied to.
    """
    offsets_us = write(job, folder)
    run = tracekit.load(folder)
    first: dict[int, Any] = {}
    errors = []
    for fit in run.clock:
        base = first.setdefault(fit.component, fit)
        true_ns = (offsets_us[fit.rank] - offsets_us[base.rank]) * 1000
        errors.append((abs(fit.offset_ns - base.offset_ns - true_ns), fit.uncertainty_ns))
    return run, errors


def load_tied(job: Job, folder: Path) -> Run:
    """The run, where all clocks are tied and right: to 5 µs where collectives tie them."""
    run, errors = load(job, folder)
    assert {fit.component for fit in run.clock} == {0}
    by_collectives = job.spec.norm or job.spec.pp == 1
    for error_ns, uncertainty_ns in errors:
        assert error_ns <= max(3 * uncertainty_ns, 1)
        assert error_ns <= 5000 or not by_collectives
    return run


def judged(spec: Spec, folder: Path) -> tuple[StragglersResult, float]:
    """The verdict on a job, and how much slower the job is than its clean twin."""
    job = Job(spec)
    result = analyze(load_tied(job, folder))
    steps = [int(step) for step in result.per_step["step"]]
    clean = Job(replace(spec, faults=()))
    return result, job.duration_us(steps) / clean.duration_us(steps)


def check_named(spec: Spec, folder: Path, cause: str | None = None) -> None:
    """All ranks with faults are named, and no other; the slowdown is theirs."""
    result, slowdown = judged(spec, folder)
    ranks = {rank for fault in spec.faults for rank in fault.ranks}
    assert set(result.culprit_ranks) == ranks
    assert result.slowdown == pytest.approx(slowdown, rel=0.02)
    if cause:
        assert result.cause == cause


def check_nobody_named(spec: Spec, folder: Path) -> None:
    result, _ = judged(spec, folder)
    assert result.culprit_ranks == ()
    assert result.culprit_kind in ("none", "diffuse")


def test_ranks_without_marks_of_forward_and_backward(tmp_path: Path) -> None:
    slow = Fault("slow", (0,), 1.25)
    check_named(Spec(dp=4, seed=3, faults=(slow,)), tmp_path, "compute")


def test_a_guessed_group_that_lacks_half_of_its_members_ties_no_clocks(tmp_path: Path) -> None:
    # Transfers that two of four ranks share do not end together with those of the others.
    shape = Spec(tp=2, pp=2, dp=2, microbatches=4, layers=1, described=False, numbered=False)
    slow = (Fault("slow", (1,), 1.3), Fault("slow", (2,), 1.3))
    job = Job(replace(shape, norm=False, late_sync=True, noise=0.01, seed=1, faults=slow))
    _, errors = load(job, tmp_path)
    assert max(error_ns for error_ns, _ in errors) < 5000


def test_a_pause_is_not_loading_where_every_rank_loads_as_long(tmp_path: Path) -> None:
    delay = Fault("delay", (2,), 3.0)
    spec = Spec(tp=4, layers=5, seed=5, steps=6, load_us=3000, faults=(delay,))
    check_named(spec, tmp_path, "host")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ranks_that_pause_by_turns_are_not_all_to_blame(tmp_path: Path, seed: int) -> None:
    check_nobody_named(Spec(dp=3, seed=seed, steps=8, noise=0.01, hiccups=0.3), tmp_path)


@pytest.mark.parametrize("seed", [1, 5])
def test_two_steps_are_enough_for_a_slow_rank(tmp_path: Path, seed: int) -> None:
    slow = Fault("slow", (1,), 1.25)
    spec = Spec(dp=4, seed=seed, steps=6, windows="steps", norm=False, late_sync=True)
    check_named(replace(spec, faults=(slow,)), tmp_path, "compute")


@pytest.mark.parametrize(("ranks", "seed"), [(2, 21), (4, 9), (4, 46)])
def test_few_calls_without_a_step_put_no_clock_off(tmp_path: Path, ranks: int, seed: int) -> None:
    # One rank's window holds no whole step, so nothing tells one step's calls from the next's.
    shape = Spec(tp=2, dp=ranks // 2, layers=2, windows="times", numbered=False)
    steps = 6 if seed == 46 else 5
    job = Job(replace(shape, offset_ms=2, noise=0.03, steps=steps, seed=seed))
    run, errors = load(job, tmp_path)
    assert not all(trace.steps_marked for trace in run.traces)
    assert all(error_ns <= 5000 for error_ns, _ in errors)
    assert len({fit.component for fit in run.clock}) == 2


@pytest.mark.parametrize("seed", [0, 1])
def test_experts_whose_kernels_are_named_as_any_others(tmp_path: Path, seed: int) -> None:
    hot = Fault("hot", (1,), 0.42)
    spec = Spec(ep=4, layers=3, seed=seed, token_names=False, faults=(hot,))
    check_named(spec, tmp_path, "experts")


@pytest.mark.parametrize(
    "shape",
    [Spec(tp=2, layers=2, steps=6, seed=35), Spec(tp=2, dp=2, layers=2, steps=5, seed=26)],
    ids=["tp2", "tp2 dp2"],
)
def test_calls_outside_of_all_steps_put_no_clock_off_by_a_step(tmp_path: Path, shape: Spec) -> None:
    seen = replace(shape, windows="times", offset_ms=2, noise=0.03, numbered=False)
    _, errors = load(Job(seen), tmp_path)
    assert max(error_ns for error_ns, _ in errors) < 5000


def test_a_hot_expert_in_windows_that_miss_steps(tmp_path: Path) -> None:
    hot = Fault("hot", (0,), 0.65)
    spec = Spec(ep=2, layers=3, seed=4, windows="steps", offset_ms=2, numbered=False)
    check_named(replace(spec, faults=(hot,)), tmp_path, "experts")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_stage_that_is_slow_at_matrix_products_only(tmp_path: Path, seed: int) -> None:
    slow = Fault("slow", (0,), 1.4, only="mm")
    check_named(Spec(pp=2, layers=1, microbatches=6, seed=seed, faults=(slow,)), tmp_path)


@pytest.mark.parametrize("factor", [1.15, 1.2])
def test_a_stage_that_is_slow_at_all_kernels_by_noisy_ones(tmp_path: Path, factor: float) -> None:
    slow = Fault("slow", (1,), factor)
    spec = Spec(pp=2, layers=1, microbatches=6, noise=0.04, faults=(slow,))
    check_named(spec, tmp_path, "compute")


def test_sends_that_leave_without_the_receiver_bind_no_clocks(tmp_path: Path) -> None:
    spec = Spec(pp=2, layers=1, microbatches=6, eager=True, numbered=False, noise=0.01, steps=6)
    load_tied(Job(replace(spec, norm=False, late_sync=True)), tmp_path)


@pytest.mark.parametrize(("steps", "seed"), [(6, 6), (8, 14)])
def test_stages_are_inferred_though_windows_miss_steps(
    tmp_path: Path, steps: int, seed: int
) -> None:
    slow = Fault("slow", (2,), 1.25)
    spec = Spec(pp=4, layers=1, microbatches=8, seed=seed, steps=steps, faults=(slow,))
    seen = replace(spec, described=False, numbered=False, windows="steps", offset_ms=2)
    check_named(seen, tmp_path, "compute")


@pytest.mark.parametrize("seed", [5, 17])
def test_one_step_of_stages_names_nobody(tmp_path: Path, seed: int) -> None:
    spec = Spec(pp=2, layers=1, microbatches=6, seed=seed, steps=4, windows="steps")
    check_nobody_named(replace(spec, load_us=3000), tmp_path)


@pytest.mark.parametrize("seed", [5, 14])
def test_two_ranks_that_load_unevenly_name_nobody(tmp_path: Path, seed: int) -> None:
    check_nobody_named(Spec(tp=2, seed=seed, load_us=3000), tmp_path)


def test_pauses_in_most_steps_are_still_garbage_collection(tmp_path: Path) -> None:
    pauses = Fault("gc", (2,), 5.93, every=2)
    spec = Spec(tp=4, layers=5, steps=8, noise=0.03, offset_ms=50, faults=(pauses,))
    check_named(spec, tmp_path, "gc")


# The grid.

SHAPES: dict[str, Spec] = {
    "tp4": Spec(tp=4),
    "dp3": Spec(dp=3),
    "dp4": Spec(dp=4),
    "pp2": Spec(pp=2, microbatches=6, layers=1),
    "pp4": Spec(pp=4, microbatches=8, layers=1),
    "ep4": Spec(ep=4),
    "tp2 pp2": Spec(tp=2, pp=2, microbatches=4, layers=1),
    "tp2 dp2": Spec(tp=2, dp=2),
    "ep2 dp2": Spec(ep=2, dp=2),
    "tp2 pp2 dp2": Spec(tp=2, pp=2, dp=2, microbatches=4, layers=1),
}
# What of a job is seen: its clocks, its numbers, its windows, its synchronisation.
VIEWS: tuple[dict[str, Any], ...] = (
    {"noise": 0.03},
    {"offset_ms": 2, "numbered": False, "late_sync": True},
    {"offset_ms": 50, "windows": "steps", "norm": False},
    {"offset_ms": 50, "windows": "steps", "numbered": False, "steps": 8, "noise": 0.01},
)


@dataclass(frozen=True)
class Case:
    shape: str
    faults: tuple[Fault, ...]
    view: int

    def spec(self) -> Spec:
        seed = len(self.shape) + 10 * self.view
        return replace(SHAPES[self.shape], seed=seed, faults=self.faults, **VIEWS[self.view])

    def __str__(self) -> str:
        faults = [f"{f.kind} {'-'.join(map(str, f.ranks))} x{f.size:g}" for f in self.faults]
        return f"{self.shape}: {' and '.join(faults) or 'none'}: view {self.view}"


def faults_of(shape: Spec) -> list[tuple[Fault, ...]]:
    """Every kind of fault that a shape can have and that can be told in it."""
    rank = shape.size // 2 + (shape.size > 2)
    found: list[tuple[Fault, ...]] = [(), (Fault("slow", (rank,), 1.25),)]
    found += [(Fault("delay", (rank,), 4.0),), (Fault("gc", (rank,), 8.0, every=2),)]
    found += [(Fault("data", (0,), 4.0),)]
    if shape.size > 2:
        found.append((Fault("slow", (0,), 1.3), Fault("slow", (rank,), 1.3)))
    if 1 < shape.pp < shape.size:
        found.append((Fault("slow", tuple(range(shape.stage_size)), 1.2),))
    if shape.pp > 1 and shape.size > 2:
        found.append((Fault("link", (0, shape.stage_size), 1000, axis="pp"),))
    if 1 < shape.tp < shape.size:
        found.append((Fault("link", tuple(range(shape.tp)), 300, axis="tp"),))
    if shape.ep > 1:
        hot = tuple(r for r in range(shape.size) if shape.place(r)[1] == 1)
        found.append((Fault("hot", hot, 0.42 if shape.ep == 4 else 0.65),))
    if shape.dp > 1:
        found.append((Fault("backward", (rank,), 200.0),))
    return found


def cases() -> list[Case]:
    return [
        Case(name, faults, view % len(VIEWS))
        for number, (name, shape) in enumerate(SHAPES.items())
        for at, faults in enumerate(faults_of(shape))
        for view in ((number + at, number + at + 1) if faults else range(len(VIEWS)))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=str)
def test_the_planted_fault_is_named_and_costed(case: Case, tmp_path: Path) -> None:
    result, slowdown = judged(case.spec(), tmp_path)
    ranks = {rank for fault in case.faults for rank in fault.ranks}
    named = set(result.culprit_ranks)
    assert result.slowdown == pytest.approx(slowdown, rel=0.02)
    if 1 - 1 / slowdown < 0.02:
        assert named in (set(), ranks)
    else:
        assert named == ranks
        assert (result.culprit_kind == "link") == (case.faults[0].kind == "link")
