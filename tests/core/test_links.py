"""A planted slow link is found, its clean twin has none."""

from __future__ import annotations

from tracekit import simulate
from tracekit.core.links import GroupTimes, group_times
from tracekit.core.timing import across, timing


def times(**spec: object) -> tuple[GroupTimes, ...]:
    run = simulate.load(simulate.Spec(pp=2, dp=4, steps=3, **spec))  # type: ignore[arg-type]
    matching, clock = across(run)
    return group_times(matching, timing(run.traces, matching, clock))


def test_a_slow_link_stands_out_and_only_that() -> None:
    found = {item.group.ranks: item for item in times(faults=("slow-link:1-5:2",)) if item.n}
    assert found[(1, 5)].slowdown is not None
    assert found[(1, 5)].slowdown > 3
    assert found[(1, 5)].slowdown_low is not None
    assert 1 < found[(1, 5)].slowdown_low <= found[(1, 5)].slowdown
    others = [i.slowdown for ranks, i in found.items() if ranks != (1, 5) and len(ranks) == 2]
    assert others
    assert all(value is None or value < 1.2 for value in others)


def test_the_clean_twin_has_no_slow_group() -> None:
    found = times()
    assert any(item.slowdown is not None for item in found)
    assert all(item.slowdown is None or item.slowdown < 1.2 for item in found)
    assert all(item.busbw_p50_gbps is None or item.busbw_p50_gbps > 0 for item in found)


def test_scatter_of_few_transfers_accuses_nobody() -> None:
    found = times(jitter_ratio=1.0)
    told = [item for item in found if item.slowdown is not None and item.slowdown >= 1.2]
    assert told  # by its median alone, some group looks slow
    assert all(item.slowdown_low is not None and item.slowdown_low <= 1 for item in told)
