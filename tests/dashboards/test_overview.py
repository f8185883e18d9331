"""The verdict: five questions answered in words that agree with the numbers."""

from __future__ import annotations

import dataclasses

from tests import synth
from tests.report import made
from tracekit.core.trace import RankTrace
from tracekit.report.blocks import Answer, Bars, Beside
from tracekit.report.page import pages
from tracekit.report.section import Section

OVERVIEW = next(page for page in pages() if page.slug == "overview")


def answer(section: Section) -> Answer:
    blocks = OVERVIEW.blocks(section)
    assert blocks is not None
    assert isinstance(blocks[0], Answer)
    return blocks[0]


def test_the_rank_that_computes_longest_is_named_and_marked() -> None:
    section = made.slow()
    assert "Rank 2 computes 33.3 % longer than the median of the others." in (
        answer(section).sentence
    )
    blocks = OVERVIEW.blocks(section)
    assert blocks is not None
    assert isinstance(blocks[1], Beside)
    ranks = blocks[1].wide[1]
    assert isinstance(ranks, Bars)
    assert ranks.marked == {2}


def test_equal_ranks_accuse_nobody() -> None:
    assert answer(made.section()).sentence.endswith("No rank stands out.")


def test_one_rank_is_not_compared_with_itself() -> None:
    sentence = answer(made.section(made.run(made.trace(0)))).sentence
    assert sentence == "A step takes 10.0 ms; 4.00 ms of it (40.0 %) are lost, " + (
        "most to idle time (2.50 ms)."
    )


def _with_a_long_last_step(trace: RankTrace) -> RankTrace:
    end = trace.steps.end_ns.copy()
    end[-1] += 80 * made.MS
    return dataclasses.replace(trace, steps=dataclasses.replace(trace.steps, end_ns=end))


def test_uneven_steps_tell_median_and_mean() -> None:
    run = made.run(*(_with_a_long_last_step(made.trace(rank)) for rank in range(2)))
    shown = answer(made.section(run))
    assert shown.sentence.startswith("A step takes 10.0 ms (median) but 30.0 ms on average; 80.0 %")
    assert "from 10.0 to 90.0 ms (±400 %)" in shown.detail


def test_without_a_breakdown_the_reason_is_told() -> None:
    shown = answer(made.section(synth.run(synth.rank(0, "K 0-100"))))
    assert shown.sentence == "How long a step takes cannot be said for this run."
    assert "no rank has device work inside a step" in shown.detail


def test_a_single_step_has_no_chart_of_steps() -> None:
    section = made.section(made.run(made.trace(0, steps=1)))
    blocks = OVERVIEW.blocks(section)
    assert blocks is not None
    assert not any(isinstance(block, Beside) for block in blocks)
    assert answer(section).detail.startswith("Only 1 step")
