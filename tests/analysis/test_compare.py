"""Two runs: conditions first, then verdicts that agree with what was planted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.report import made
from tracekit.analysis import _compare
from tracekit.analysis._compare import Subject, Verdict, compare, interval, judge, own_noise
from tracekit.analysis._contract import analyzers, apply
from tracekit.core.conditions import Status, differences
from tracekit.core.run import Run

MS = made.MS


def subject(run: Run) -> Subject:
    return Subject(run, [apply(item, run) for item in analyzers().values()])


def job(
    by_ms: float = 0.0, jitter: Sequence[float] = (0.0, 0.1, 0.2, 0.05), **about: object
) -> Run:
    return made.run(*(made.longer(made.trace(r, 9), by_ms, jitter) for r in range(2)), **about)  # type: ignore[arg-type]


def verdicts(base: Run, new: Run, **options: object) -> dict[str, str]:
    found = compare(subject(base), subject(new), **options).verdicts  # type: ignore[arg-type]
    return dict(zip(found["metric"], found["verdict"], strict=True))


def test_longer_compute_is_a_regression_of_compute_and_step() -> None:
    found = compare(subject(job()), subject(job(2.0, name="new")))
    rows = found.verdicts.set_index("metric")
    assert rows.loc["step", "verdict"] == "regression"
    assert rows.loc["step", "difference_ns"] == pytest.approx(2 * MS)
    assert rows.loc["compute", "difference_ns"] == pytest.approx(2 * MS)
    assert rows.loc["step", "low_ns"] <= 2 * MS <= rows.loc["step", "high_ns"]
    assert rows.loc["exposed_comm", "verdict"] == "equivalent"
    assert found.regressions == ("step", "compute", "compute of the slowest rank")
    by_rank = found.per_rank.query("metric == 'compute'")["difference_ns"]
    assert by_rank.tolist() == pytest.approx([2.0 * MS] * 2)


def test_the_sign_turns_with_the_order() -> None:
    back = verdicts(job(2.0), job())
    assert back["step"] == back["compute"] == "improvement"


def test_a_run_equals_itself() -> None:
    assert set(verdicts(job(), job()).values()) == {"equivalent"}


def test_a_difference_within_the_noise_is_no_verdict() -> None:
    wild = (0.0, 3.0, 1.0, 4.0)
    assert verdicts(job(0.0, wild), job(0.8, wild))["step"] == "inconclusive"


def test_too_few_steps_are_inconclusive() -> None:
    few = made.run(*(made.trace(rank, 3) for rank in range(2)))
    more = made.run(*(made.longer(made.trace(rank, 3), 5.0) for rank in range(2)))
    assert set(verdicts(few, more).values()) == {"inconclusive"}


def test_repeats_of_the_base_widen_the_noise() -> None:
    base, new = job(), job(2.0)
    again = subject(job(3.0))
    assert verdicts(base, new)["step"] == "regression"
    assert verdicts(base, new, repeats=[again])["step"] == "equivalent"


def test_the_same_runs_give_the_same_numbers() -> None:
    one, two = (compare(subject(job()), subject(job(2.0))).verdicts for _ in range(2))
    assert one.equals(two)


def test_ranks_that_only_one_run_has_are_left_out() -> None:
    three = made.run(*(made.trace(rank, 9) for rank in range(3)))
    frame = compare(subject(three), subject(job()), force=True).per_rank
    assert set(frame["rank"]) == {0, 1}


# -- conditions ----------------------------------------------------------------------


def test_unequal_conditions_forbid_and_are_named() -> None:
    other = job(2.0, conditions=made.changed("workload", layers=8))
    found = compare(subject(job()), subject(other))
    assert not found.comparable
    assert [item.field for item in found.obstacles] == ["workload.layers"]
    assert (found.obstacles[0].base, found.obstacles[0].new) == ("4", "8")
    assert set(found.verdicts["verdict"]) == {"inconclusive"}
    forced = compare(subject(job()), subject(other), force=True)
    assert forced.forced
    assert "regression" in set(forced.verdicts["verdict"])
    allowed = compare(subject(job()), subject(other), allowed=["workload"])
    assert allowed.comparable
    assert not allowed.forced


def test_what_is_always_different_is_no_news() -> None:
    other = job(conditions={**made.CONDITIONS, "when": "later", "command": "other", "seed": 1})
    assert [(d.field, d.status) for d in differences(job(), other)] == [("seed", Status.NOTED)]


def test_unknown_is_neither_equal_nor_different() -> None:
    found = differences(job(), job(conditions=made.changed("hardware", count=None)))
    assert [(item.field, item.status) for item in found] == [("hardware.count", Status.UNKNOWN)]
    bare = compare(subject(job(conditions={})), subject(job(2.0, conditions={})))
    assert bare.comparable


def test_other_ranks_are_another_job() -> None:
    wide = made.run(*(made.trace(rank, 9) for rank in range(4)), conditions={})
    found = compare(subject(job(conditions={})), subject(wide))
    assert {item.field for item in found.obstacles} == {"mesh", "parallel.world_size"}


# -- statistics ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("difference", "low", "high", "noise", "verdict"),
    [
        (5.0, 3.0, 7.0, 2.0, Verdict.REGRESSION),
        (-5.0, -7.0, -3.0, 2.0, Verdict.IMPROVEMENT),
        (0.5, -1.0, 2.0, 2.0, Verdict.EQUIVALENT),
        (1.0, 0.5, 1.5, 2.0, Verdict.EQUIVALENT),
        (5.0, -1.0, 9.0, 2.0, Verdict.INCONCLUSIVE),
        (1.5, 0.5, 3.0, 2.0, Verdict.INCONCLUSIVE),
    ],
)
def test_judge(difference: float, low: float, high: float, noise: float, verdict: Verdict) -> None:
    assert judge(difference, low, high, noise) is verdict


def test_equal_runs_seldom_regress(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 pairs of equal runs: at most 3 % regress; of runs 5 % apart most do."""
    monkeypatch.setattr(_compare, "RESAMPLES", 300)
    monkeypatch.setattr(_compare, "SPLITS", 100)
    rng = np.random.default_rng(1)

    def share(shift: float) -> float:
        hits = 0
        for _ in range(200):
            left = 100 * np.exp(rng.normal(0, 0.02, 8))
            right = 100 * (1 + shift) * np.exp(rng.normal(0, 0.02, 8))
            noise = max(own_noise(left), own_noise(right), 1.0)
            apart = float(np.median(right) - np.median(left))
            hits += judge(apart, *interval(left, right), noise) is Verdict.REGRESSION
        return hits / 200

    assert share(0.0) <= 0.03
    assert share(0.05) >= 0.7


def test_many_steps_stay_cheap() -> None:
    data = np.random.default_rng(0).normal(100, 1, 4_000)
    low, high = interval(data, data + 1)
    assert low <= 1 <= high
