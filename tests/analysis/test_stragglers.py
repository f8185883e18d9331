"""Stragglers by hand: who makes others wait, and who only waits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests import synth
from tracekit import simulate
from tracekit.analysis.stragglers import StragglersResult, analyze
from tracekit.core.clock import ClockFit
from tracekit.core.errors import MissingDataError
from tracekit.core.run import Run
from tracekit.core.topology import Group, Topology
from tracekit.io.load import load

SAMPLES = Path(__file__).parents[2] / "sample_traces"
STEP_US = 10_000


def job(work_us: list[list[int]], *, pause_us: dict[tuple[int, int], int] | None = None) -> Run:
    """Data-parallel steps: compute, then an all_reduce of 100 µs that waits for everybody.

    Args:
        work_us: compute of each rank in each step.
        pause_us: by (rank, step), how long the host lets the device wait before it.
    """
    ranks = len(work_us)
    members = ",".join(map(str, range(ranks)))
    text: list[list[str]] = [[] for _ in range(ranks)]
    bounds = [[] for _ in range(ranks)]  # type: list[list[str]]
    at = 0
    for step in range(len(work_us[0])):
        arrival = []
        for rank in range(ranks):
            begin = at + (pause_us or {}).get((rank, step), 0)
            end = begin + work_us[rank][step]
            text[rank].append(f"K {begin}-{end} s7 gemm")
            arrival.append(end)
        over = max(arrival) + 100
        for rank in range(ranks):
            text[rank].append(f"C {arrival[rank]}-{over} s9 @dp:{members} #{step} bytes:64")
            bounds[rank].append(f"{at}-{over}")
        at = over
    traces = (
        synth.rank(rank, " | ".join(text[rank]), " ".join(bounds[rank]), unit_ns=1000)
        for rank in range(ranks)
    )
    clock = tuple(ClockFit(rank, 0.0, 0.0, 0) for rank in range(ranks))
    return synth.run(*traces, clock=clock)


def steady(ranks: int, steps: int = 8, work: int = 900) -> list[list[int]]:
    """Work that varies a little, alike on average on all ranks."""
    return [[work + (7 * rank + 5 * step) % 9 for step in range(steps)] for rank in range(ranks)]


def named(result: StragglersResult) -> tuple[str, tuple[int, ...], str | None]:
    return result.culprit_kind, result.culprit_ranks, result.cause


def test_a_slow_rank_is_named_with_its_cost() -> None:
    work = steady(4)
    work[2] = [2 * value for value in work[2]]
    result = analyze(job(work))
    assert named(result) == ("rank", (2,), "compute")
    # Steps of 1,900 µs instead of 1,000.
    assert result.slowdown == pytest.approx(1.9, rel=0.02)
    assert result.waste_ratio == pytest.approx(1 - 1 / result.slowdown)
    row = result.per_rank.set_index("rank").loc[2]
    assert row.blame_ns == pytest.approx(3 * 900_000, rel=0.02)
    assert row.share_recovered == pytest.approx(1)
    assert row.wait_ns == 0
    assert result.per_step.last_rank.tolist() == [2] * 8
    assert result.waits["last"].unique().tolist() == [2]


def test_equal_ranks_accuse_nobody() -> None:
    result = analyze(job(steady(4)))
    assert named(result) == ("none", (), None)
    assert result.slowdown == 1
    assert result.findings == ()
    # Whether the only group's transfers are always slow, nobody can tell.
    assert result.clears_ranks
    assert result.status == "partial"
    assert result.status_reason.startswith("whether all_reduce over dp is always slow")
    assert "4.96 % shorter" in result.status_reason


@pytest.mark.parametrize("ranks", [2, 3])
def test_small_groups_name_the_slow_one(ranks: int) -> None:
    work = steady(ranks)
    work[1] = [round(1.25 * value) for value in work[1]]
    assert named(analyze(job(work))) == ("rank", (1,), "compute")


def test_two_culprits_at_once() -> None:
    work = steady(8)
    for rank in (1, 6):
        work[rank] = [round(1.5 * value) for value in work[rank]]
    result = analyze(job(work))
    assert named(result) == ("rank", (1, 6), "compute")
    assert result.slowdown == pytest.approx(1450 / 1000, rel=0.02)
    # Repairing one of them alone wins nothing: the other is still slow.
    assert result.per_rank.share_recovered.max() < 0.05


def test_a_host_that_is_late_in_every_step() -> None:
    result = analyze(job(steady(4), pause_us={(3, step): 500 for step in range(8)}))
    assert result.culprit_ranks == (3,)
    assert result.cause in ("host", "dataloader")
    assert result.slowdown == pytest.approx(1.5, rel=0.02)
    assert result.per_rank.gap_excess_ns.tolist()[3] == pytest.approx(500_000, rel=0.02)


def test_pauses_in_single_steps_are_told_from_a_slow_rank() -> None:
    result = analyze(job(steady(4), pause_us={(3, 2): 800, (3, 6): 800}))
    assert result.culprit_ranks == (3,)
    assert result.cause == "gc"
    assert result.persistence == "recurring"
    assert result.slowdown == pytest.approx(1 + 1600 / 8000, rel=0.02)


def test_a_single_pause_is_an_episode() -> None:
    result = analyze(job(steady(4), pause_us={(3, 2): 800}))
    assert (result.culprit_ranks, result.persistence) == ((3,), "isolated")
    assert "single pause" in result.findings[0].title


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("gc:1:15:every=2", ("rank", (1,), "gc")),
        ("dataloader:1:15", ("rank", (1,), "dataloader")),
        ("delay:1:15:every=2", ("none", (), None)),  # no mark tells it from a lost core
    ],
)
def test_pauses_on_shared_cores_need_a_mark(
    fault: str, named: tuple[str, tuple[int, ...], str | None]
) -> None:
    shape = {"dp": 2, "layers": 4, "steps": 8, "backend": "gloo", "noise_ratio": 0.02}
    result = analyze(simulate.load(simulate.made({**shape, "faults": [fault]})))
    assert (result.culprit_kind, result.culprit_ranks, result.cause) == named
    assert result.persistence_p is None
    told = "rank 1 pauses for" in result.status_reason
    assert (result.status, told) == (("ok", False) if named[1] else ("partial", True))


def test_persistence_tells_every_step_from_single_ones() -> None:
    work = steady(4)
    work[2] = [round(1.3 * value) for value in work[2]]
    lasting = analyze(job(work))
    assert lasting.persistence == "lasting"
    assert lasting.persistence_p is not None
    assert lasting.persistence_p < 0.01
    assert "p = " in lasting.findings[0].evidence
    pauses = analyze(job(steady(4), pause_us={(3, 2): 800, (3, 6): 800}))
    assert pauses.persistence == "recurring"
    assert pauses.persistence_p is not None
    assert pauses.persistence_p > 0.05
    assert pauses.findings[0].confidence.name == "LOW"


def test_nothing_is_sure_of_few_steps() -> None:
    work = steady(2, steps=3)
    work[1] = [2 * value for value in work[1]]
    result = analyze(job(work))
    assert result.culprit_ranks == (1,)
    assert result.persistence_p is not None
    assert result.persistence_p > 0.05
    assert result.findings[0].confidence.name == "LOW"


def test_scatter_makes_no_slowdown_above_its_floor() -> None:
    result = analyze(job(steady(4)))
    assert result.persistence_p is None
    assert 1 <= result.noise_floor < 1.01


def test_a_step_slow_for_all_is_no_ranks_doing() -> None:
    work = steady(4)
    for rank in range(4):
        work[rank][3] *= 3
    result = analyze(job(work))
    assert named(result)[0] == "none"
    assert result.per_step.slow.tolist() == [step == 3 for step in range(8)]


def test_a_shift_of_time_and_other_names_change_nothing() -> None:
    work = steady(4)
    work[2] = [round(1.3 * value) for value in work[2]]
    run = job(work)
    late = dataclasses.replace(
        run,
        traces=tuple(
            dataclasses.replace(
                trace,
                kernels=dataclasses.replace(
                    trace.kernels,
                    start_ns=trace.kernels.start_ns + 10**18,
                    end_ns=trace.kernels.end_ns + 10**18,
                ),
                steps=dataclasses.replace(
                    trace.steps,
                    start_ns=trace.steps.start_ns + 10**18,
                    end_ns=trace.steps.end_ns + 10**18,
                ),
            )
            for trace in run.traces
        ),
    )
    one, other = analyze(run), analyze(late)
    assert named(one) == named(other)
    assert one.slowdown == pytest.approx(other.slowdown, abs=1e-6)


def test_missing_ranks_leave_a_doubt() -> None:
    run = job(steady(4))
    run = dataclasses.replace(run, traces=run.traces[:3], clock=run.clock[:3],
                              topology=Topology(world_size=4))  # fmt: skip
    result = analyze(run)
    assert result.status == "partial"
    assert "1 of 4 ranks are missing" in result.status_reason
    assert named(result)[0] == "none"


def test_one_rank_is_refused() -> None:
    with pytest.raises(MissingDataError, match="one rank"):
        analyze(synth.run(synth.rank(0, "C 0-9 @dp:0,1 #1", "0-9")))


def test_calls_without_partners_are_refused_with_the_reason() -> None:
    text = "K 0-5 | C 5-9 op:send_recv"
    with pytest.raises(MissingDataError, match="do not tell which transfers they carry"):
        analyze(synth.run(*(synth.rank(rank, text, "0-9") for rank in range(2))))


def test_calls_of_unknown_groups_are_refused() -> None:
    # Their ends do not go together either, so no guess of a group fits.
    irregular = [f"C {k * k * (rank + 2) * 300}-{k * k * (rank + 2) * 300 + 90}" for rank in (0, 1)
                 for k in range(9)]  # fmt: skip
    ranks = (
        synth.rank(rank, " | ".join(irregular[9 * rank : 9 * rank + 9]), "0-99999", unit_ns=1000)
        for rank in range(2)
    )
    with pytest.raises(MissingDataError, match="process groups are not recorded"):
        analyze(synth.run(*ranks))


def test_sets_with_equal_members_have_one_name() -> None:
    work = steady(4)
    for rank in (2, 3):
        work[rank] = [round(1.4 * value) for value in work[rank]]
    groups = (Group("a", "tp", (0, 1), "tp"), Group("b", "tp", (2, 3), "tp"))
    run = dataclasses.replace(job(work), topology=Topology(4, {"tp": 2}, groups))
    result = analyze(run)
    assert (result.culprit_kind, result.culprit_ranks) == ("tp_group", (2, 3))


@pytest.mark.parametrize(
    ("name", "ranks", "cause"),
    [
        ("tp2", (), None),
        ("tp2_delay", (1,), "host"),
        ("dp2tp2_delay", (2,), "host"),
        ("ep4_hot", (2,), None),  # on shared cores its host is slow, too: no one cause
        ("pp4_1f1b", (), None),
        ("pp4_1f1b_sleep", (), None),
        ("pp4_zbv_sleep", (), None),
        ("pp4_slow_stage", (2,), "compute"),
        ("pp2_slow_link", (0, 1), "link"),
    ],
)
def test_recorded_faults_are_named_from_the_run_folder_alone(
    name: str, ranks: tuple[int, ...], cause: str | None
) -> None:
    result = analyze(load(SAMPLES / name))
    assert result.culprit_ranks == ranks
    assert result.cause == cause
    assert result.replay_error_ratio < 0.02


def test_a_recorded_slow_stage_costs_what_its_clean_twin_shows() -> None:
    slow, clean = (analyze(load(SAMPLES / name)) for name in ("pp4_slow_stage", "pp4_1f1b_sleep"))
    twin = slow.per_step.step_ns.median() / clean.per_step.step_ns.median()
    assert slow.slowdown == pytest.approx(twin, rel=0.06)
    assert slow.culprit_kind in ("rank", "stage")


def test_a_recorded_slow_link_is_told_from_its_ranks() -> None:
    result = analyze(load(SAMPLES / "pp2_slow_link"))
    assert (result.culprit_kind, result.culprit_members) == ("link", "0-1")
    assert result.status == "partial"
    assert "at least" in result.status_reason


def test_two_of_many_real_ranks_are_refused(real_traces: Path) -> None:
    with pytest.raises(MissingDataError, match="do not tell which transfers"):
        analyze(load(real_traces / "two_ranks_v100"))
