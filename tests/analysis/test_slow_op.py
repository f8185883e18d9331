"""An operation that is slow on all ranks of its groups, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable

from tests import synth
from tracekit.analysis.stragglers import analyze
from tracekit.core.clock import ClockFit
from tracekit.core.run import Run

STEPS = 12
SLOW = (2, 5, 9)
Transfer = Callable[[int, str, int], int]  # step, operation, group -> µs


PAIRS = ("0,1", "2,3", "4,5", "6,7")
FOURS = ("0,1,2,3", "4,5,6,7", "8,9,10,11")


def job(
    transfer: Transfer,
    groups: tuple[str, ...] = ("0,1,2,3",),
    ops: tuple[tuple[str, int], ...] = (("all_reduce", 64), ("all_gather", 64)),
) -> Run:
    """In each step ranks compute and communicate, in turn, and meet at its end.

    Args:
        transfer: µs of each transfer.
        groups: ranks of each group.
        ops: what each group does, with its bytes.
    """
    count = sum(len(members.split(",")) for members in groups)
    text: list[list[str]] = [[] for _ in range(count)]
    bounds: list[str] = []
    begin = 0
    for step in range(STEPS):
        at = [begin] * count
        for place, (op, size) in enumerate(ops):
            for number, members in enumerate(groups):
                ranks = [int(rank) for rank in members.split(",")]
                ready = {rank: at[rank] + 900 + (7 * rank + 5 * step) % 9 for rank in ranks}
                over = max(ready.values()) + transfer(step, op, number)
                for rank in ranks:
                    text[rank].append(f"K {at[rank]}-{ready[rank]} gemm")
                    text[rank].append(
                        f"C {ready[rank]}-{over} s9 @dp:{members} op:{op} bytes:{size}"
                        f" #{len(ops) * step + place}"
                    )
                    at[rank] = over
        end = max(at) + 10
        for rank in range(count):
            everyone = ",".join(map(str, range(count)))
            text[rank].append(f"C {at[rank]}-{end} s11 @all:{everyone} op:barrier #{step}")
        bounds.append(f"{begin}-{end}")
        begin = end
    traces = (
        synth.rank(rank, " | ".join(text[rank]), " ".join(bounds), unit_ns=1000)
        for rank in range(count)
    )
    return synth.run(*traces, clock=tuple(ClockFit(rank, 0.0, 0.0, 0) for rank in range(count)))


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


def slow_in_the_second(*ops: str) -> Transfer:
    """These operations always take 1 ms longer in the second group."""

    def transfer(step: int, op: str, group: int) -> int:
        return usual(step, op, group) + 1000 * (group == 1 and op in ops)

    return transfer


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


def test_an_operation_slower_than_in_sibling_groups_is_named() -> None:
    result = analyze(job(slow_in_the_second("all_reduce"), PAIRS))
    assert (result.culprit_kind, result.culprit_members) == ("op", "all_reduce")
    assert result.culprit_ranks == (2, 3)
    assert result.persistence == "lasting"
    # Steps of 3,210 µs instead of 2,210.
    assert abs(result.slowdown - 3210 / 2210) < 0.01
    assert result.sets[result.sets.named].kind.tolist() == ["op"]
    assert "The operation all_reduce (ranks 2, 3) costs 30.8 %" in result.findings[0].title
    assert "NCCL's algorithm" in result.findings[0].advice
    assert (result.status, result.unjudged) == ("ok", "")


def test_all_that_crosses_a_slow_link_is_slow() -> None:
    result = analyze(job(slow_in_the_second("all_reduce", "all_gather"), PAIRS))
    assert (result.culprit_kind, result.culprit_members) == ("link", "2-3")
    # A small message shows nothing of a link with little bandwidth.
    sizes = (("all_reduce", 1 << 26), ("all_gather", 1 << 10))
    result = analyze(job(slow_in_the_second("all_reduce"), PAIRS, sizes))
    assert (result.culprit_kind, result.culprit_members) == ("link", "2-3")
    # A large one does, even of a link with much latency.
    result = analyze(job(slow_in_the_second("all_gather"), PAIRS, sizes))
    assert (result.culprit_kind, result.culprit_members) == ("op", "all_gather")


def test_a_ring_excuses_no_link_that_it_may_not_use() -> None:
    both = (("all_reduce", 64), ("all_to_all", 64))
    result = analyze(job(slow_in_the_second("all_to_all"), FOURS, both))
    assert (result.culprit_kind, result.culprit_ranks) == ("link", (4, 5, 6, 7))
    result = analyze(job(slow_in_the_second("all_reduce"), FOURS, both))
    assert (result.culprit_kind, result.culprit_ranks) == ("op", (4, 5, 6, 7))
    result = analyze(job(slow_in_the_second("all_to_all"), PAIRS, both))
    assert (result.culprit_kind, result.culprit_ranks) == ("op", (2, 3))


def test_two_sibling_groups_are_reference_enough() -> None:
    result = analyze(job(slow_in_the_second("all_reduce"), ("0,1", "2,3")))
    assert (result.culprit_kind, result.culprit_ranks) == ("op", (2, 3))


def test_what_is_slow_in_half_of_the_groups_or_more_is_not_told_from_healthy() -> None:
    slow_in_three = analyze(job(lambda s, o, g: usual(s, o, g) + 1000 * (g > 0), PAIRS))
    assert slow_in_three.culprit_kind == "none"
    slow_in_one = analyze(job(lambda s, o, g: usual(s, o, g) + 1000 * (g > 2), PAIRS))
    assert slow_in_one.culprit_ranks == (6, 7)


def test_without_a_sibling_group_the_doubt_is_said() -> None:
    result = analyze(job(always_slow))
    assert result.culprit_kind == "none"
    assert result.clears_ranks
    assert result.status == "partial"
    assert result.status_reason == result.unjudged
    # Half of 1,200 + 200 + 10 µs, of 3,210.
    assert result.unjudged == (
        "whether all_reduce over dp and 2 more is always slow cannot be told, as no other group "
        "does the same; at half the time the steps would be 21.9 % shorter"
    )
