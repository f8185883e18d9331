"""An operation kind that is slow on all ranks in some steps, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable

from tests import synth
from tracekit.analysis.stragglers import analyze
from tracekit.core.clock import ClockFit
from tracekit.core.run import Run

STEPS = 12
SLOW = (2, 5, 9)
Transfer = Callable[[int, str, int], int]  # step, operation, group -> µs


def job(transfer: Transfer, groups: tuple[str, ...] = ("0,1,2,3",)) -> Run:
    """Four ranks; in each step they compute, reduce, compute, gather."""
    text: list[list[str]] = [[] for _ in range(4)]
    bounds: list[str] = []
    begin = 0
    for step in range(STEPS):
        at = [begin] * 4
        for op in ("all_reduce", "all_gather"):
            for number, members in enumerate(groups):
                ranks = [int(rank) for rank in members.split(",")]
                ready = {rank: at[rank] + 900 + (7 * rank + 5 * step) % 9 for rank in ranks}
                over = max(ready.values()) + transfer(step, op, number)
                for rank in ranks:
                    text[rank].append(f"K {at[rank]}-{ready[rank]} gemm")
                    text[rank].append(
                        f"C {ready[rank]}-{over} s9 @dp:{members} op:{op} bytes:64"
                        f" #{2 * step + (op == 'all_gather')}"
                    )
                    at[rank] = over
        bounds.append(f"{begin}-{max(at)}")
        begin = max(at)
    traces = (
        synth.rank(rank, " | ".join(text[rank]), " ".join(bounds), unit_ns=1000)
        for rank in range(4)
    )
    return synth.run(*traces, clock=tuple(ClockFit(rank, 0.0, 0.0, 0) for rank in range(4)))


def usual(step: int, op: str, group: int) -> int:
    return 200 + (step + group) % 3


def reduce_is_slow(step: int, op: str, group: int) -> int:
    slow = op == "all_reduce" and step in SLOW
    return usual(step, op, group) + 1000 * slow


def all_is_slow(step: int, op: str, group: int) -> int:
    return usual(step, op, group) + 1000 * (step in SLOW)


def one_group_is_slow(step: int, op: str, group: int) -> int:
    return reduce_is_slow(step, op, group) if group == 0 else usual(step, op, group)


def always_slow(step: int, op: str, group: int) -> int:
    return usual(step, op, group) + 1000 * (op == "all_reduce")


def test_one_operation_slow_on_all_ranks_is_named() -> None:
    result = analyze(job(reduce_is_slow))
    assert (result.culprit_kind, result.culprit_members) == ("op", "all_reduce")
    assert result.culprit_ranks == (0, 1, 2, 3)
    assert result.persistence == "recurring"
    assert abs(result.slowdown - (12 * 2200 + 3000) / (12 * 2200)) < 0.005
    assert result.sets[result.sets.named].kind.tolist() == ["op"]
    assert "all_reduce" in result.findings[0].title


def test_two_groups_that_are_slow_together() -> None:
    result = analyze(job(reduce_is_slow, ("0,1", "2,3")))
    assert (result.culprit_kind, result.culprit_members) == ("op", "all_reduce")


def test_what_is_no_operations_fault_names_none() -> None:
    assert analyze(job(usual)).culprit_kind == "none"
    assert analyze(job(all_is_slow)).culprit_kind == "none"
    assert analyze(job(always_slow)).culprit_kind == "none"
    assert analyze(job(one_group_is_slow, ("0,1", "2,3"))).culprit_kind != "op"
