"""Timeline, topology, compare and scaling pages: what they say agrees with what was planted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from tests.report import made
from tracekit import simulate
from tracekit.dashboards import compare, scaling, timeline, topology
from tracekit.report.blocks import Answer, Block, Heatmap, Table, Timeline, Whiskers
from tracekit.report.section import Section


def first(blocks: Sequence[Block], kind: type[Block]) -> Block:
    return next(block for block in blocks if isinstance(block, kind))


@cache
def simulated(*faults: str, pp: int = 2, dp: int = 4) -> Section:
    spec = simulate.Spec(pp=pp, dp=dp, steps=4, faults=faults, offset_ms=20.0)
    return made.section(simulate.load(spec))


def test_the_timeline_puts_all_ranks_on_one_axis() -> None:
    section = simulated("slow-rank:3:1.5")
    blocks = timeline.PAGE.blocks(section)
    assert blocks is not None
    picture = first(blocks, Timeline)
    assert isinstance(picture, Timeline)
    assert [view.step for view in picture.views] == list(section.step_numbers)
    for view in picture.views:
        assert [lane.rank for lane in view.lanes] == list(section.rank_order)
        # Clocks are 20 ms apart and a step takes a few: unaligned, the axis would be longer.
        assert view.span_ns < 20 * made.MS
        for lane in view.lanes:
            ends = [s + n for s, n in zip(lane.starts, lane.lengths, strict=True)]
            assert all(a <= b for a, b in zip(ends, lane.starts[1:], strict=False))
            assert lane.starts[0] >= 0
            assert ends[-1] <= view.span_ns
    assert "Clocks aligned to ±" in picture.caption


def test_states_of_a_step_sum_to_it() -> None:
    blocks = timeline.PAGE.blocks(simulated("slow-rank:3:1.5"))
    assert blocks is not None
    table = first(blocks, Table)
    assert isinstance(table, Table)
    for row in table.rows:
        assert sum(row[1:-1]) == pytest.approx(row[-1])  # type: ignore[arg-type]
    assert [key.rank for key in table.keys] == list(range(8))


def test_many_ranks_are_chosen_and_said_to_be() -> None:
    picture = first(timeline.PAGE.blocks(made.large()) or (), Timeline)
    assert isinstance(picture, Timeline)
    assert all(len(view.lanes) == timeline.SHOWN_RANKS for view in picture.views)
    assert 5 in {lane.rank for lane in picture.views[0].lanes}, "the longest to compute is shown"
    assert "48 of 100 ranks" in picture.caption


def test_thinned_lanes_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_PIECES", 100)
    monkeypatch.setattr(timeline, "LEAST_PIECES", 20)
    picture = first(timeline.PAGE.blocks(simulated()) or (), Timeline)
    assert isinstance(picture, Timeline)
    assert all(len(lane.starts) <= 20 for view in picture.views for lane in view.lanes)
    assert "are merged with their neighbours" in picture.views[0].note


def test_a_run_without_steps_shows_its_capture() -> None:
    trace = made.trace(0)
    names = [item.name for item in dataclasses.fields(trace.steps)]
    none = type(trace.steps)(**{name: getattr(trace.steps, name)[:0].copy() for name in names})
    kernels = dataclasses.replace(trace.kernels, step=np.full(len(trace.kernels), -1, np.int32))
    bare = dataclasses.replace(trace, steps=none, kernels=kernels)
    blocks = timeline.PAGE.blocks(made.section(made.run(bare)))
    assert blocks is not None
    assert isinstance(blocks[0], Answer)
    assert blocks[0].sentence.startswith("The capture takes")


def test_a_slow_link_is_named_and_marked() -> None:
    blocks = topology.PAGE.blocks(simulated("slow-link:1-5:2"))
    assert blocks is not None
    assert isinstance(blocks[0], Answer)
    assert "the pp group of ranks 1 and 5 take" in blocks[0].sentence
    table = first(blocks, Table)
    assert isinstance(table, Table)
    assert table.rows[0][1] == "1, 5"
    assert [row[1] for row in table.rows if row[-1]] == ["1, 5"]
    grid = first(blocks, Heatmap)
    assert isinstance(grid, Heatmap)
    row = grid.values[grid.rows.index("pp")]
    assert {i for i, value in enumerate(row) if value and value > 1} == {1, 5}


def test_equal_links_accuse_nobody() -> None:
    answer = (topology.PAGE.blocks(simulated()) or ())[0]
    assert isinstance(answer, Answer)
    assert "is clearly slower than its peers" in answer.sentence
    assert "none of" in answer.sentence


def test_one_rank_alone_has_no_topology() -> None:
    spec = simulate.Spec(steps=2)
    section = made.section(simulate.load(spec))
    for page in (topology.PAGE, timeline.PAGE):
        answer = (page.blocks(section) or ())[0]
        assert isinstance(answer, Answer)
        assert answer.sentence.endswith(".")


def test_links_of_the_conditions_are_shown() -> None:
    blocks = topology.PAGE.blocks(made.section()) or ()
    tables = [block for block in blocks if isinstance(block, Table)]
    assert ("0", "X", "NV18") in tables[-1].rows


def pair(by_ms: float, **about: object) -> list[Section]:
    runs = (
        made.run(*(made.longer(made.trace(r, 9), by, (0.0, 0.1)) for r in range(2)), **kind)  # type: ignore[arg-type]
        for by, kind in ((0.0, {"name": "base"}), (by_ms, {"name": "new", **about}))
    )
    return [made.section(run) for run in runs]


def test_compare_says_which_is_slower_and_why() -> None:
    blocks = compare.PAGE.build(pair(2.0))
    assert isinstance(blocks[0], Answer)
    assert blocks[0].sentence.startswith("new is slower than base: a step takes 12.")
    assert "Longer: compute" in blocks[0].sentence
    assert isinstance(first(blocks, Whiskers), Whiskers)


def test_compare_names_unequal_conditions() -> None:
    other = {**made.CONDITIONS, "precision": "fp8"}
    blocks = compare.PAGE.build(pair(2.0, conditions=other))
    assert isinstance(blocks[0], Answer)
    assert "not comparable: precision is bf16 and fp8" in blocks[0].sentence
    assert not any(isinstance(block, Whiskers) for block in blocks)


def test_different_jobs_have_no_pages_of_comparison() -> None:
    sections = [made.section(), made.unavailable(), simulated()]
    assert scaling.PAGE.build(sections) == ()
    assert scaling.PAGE.build([made.section()]) == ()
    assert compare.PAGE.build([made.section()]) == ()
