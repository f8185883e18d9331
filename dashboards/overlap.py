"""Page of the overlap: which communication is hidden behind compute, and where it is not."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis.overlap import ANALYZER, OverlapResult
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Block,
    Folded,
    Heatmap,
    Key,
    Role,
    Series,
    Table,
    table,
)
from tracekit.report.page import Page
from tracekit.report.section import Section

from ._parts import MANY_RANKS, WORST_RANKS

BANDS = ((0.95, "p95"), (0.5, "median"), (0.05, "p5"))


def build(result: OverlapResult, section: Section) -> Sequence[Block]:
    """Answer, exposed time by rank and step and by axis, tables, every step folded."""
    blocks: list[Block] = [_answer(result, section)]
    if result.per_step["comm_ns"].sum() > 0:
        blocks.append(_where(result.per_step, section))
    axes, ops = (frame[frame["comm_ns"] > 0] for frame in (result.per_axis, result.per_op))
    if len(axes) > 1:
        blocks.append(_axes(axes))
    if len(axes):
        blocks.append(_axis_table(axes))
    if len(ops):
        blocks.append(_ops(ops))
    blocks.append(Folded("Every rank and step", (_steps(result),)))
    return blocks


def _answer(result: OverlapResult, section: Section) -> Answer:
    if pd.isna(result.overlap_ratio):
        return Answer(
            "No communication was recorded, so there is nothing to hide.",
            "A job on one rank has none; otherwise `tracekit check` says what is missing.",
        )
    hidden = format.quantity(result.overlap_ratio, "ratio")
    sentence = f"{hidden} of communication is hidden behind compute"
    if not pd.isna(result.exposed_ratio):
        exposed = format.quantity(result.exposed_ratio, "ratio")
        sentence += f"; the exposed part is {exposed} of step time"
    worst = result.worst_rank
    detail = ""
    if worst is not None and len(section.run.traces) > 1:
        detail = (
            f"Most is exposed on {section.rank_name(int(worst))}. Exposed time holds both the "
            "transfer and the wait for a late peer: a rank with much of it may be waiting."
        )
    return Answer(sentence + ".", detail)


def _where(frame: pd.DataFrame, section: Section) -> Heatmap:
    grid = frame.pivot_table(index="rank", columns="step", values="exposed_ns", aggfunc="sum")
    grid = grid.astype(float).loc[[r for r in section.rank_order if r in grid.index]]
    names = [section.rank_name(int(rank)) for rank in grid.index]
    ranks = tuple(int(rank) for rank in grid.index)
    caption = "A rank that stays pale while others are dark is often the one they wait for."
    if len(grid) > MANY_RANKS:
        grid, names, caption = _condensed(grid, section)
        ranks = (*(-1 for _ in BANDS), *(int(rank) for rank in grid.index[len(BANDS) :]))
    return Heatmap(
        "Where: exposed communication by rank and step",
        tuple(names),
        tuple(str(step) for step in grid.columns),
        tuple(tuple(None if pd.isna(v) else float(v) for v in row) for row in grid.to_numpy()),
        "ns",
        "exposed communication",
        "",
        "step",
        "0: all hidden",
        Role.TRANSFER,
        caption,
        ranks,
        tuple(int(step) for step in grid.columns),
    )


def _condensed(grid: pd.DataFrame, section: Section) -> tuple[pd.DataFrame, list[str], str]:
    """Quantiles over ranks for each step, then the worst few ranks by name."""
    order = grid.mean(axis=1).sort_values(ascending=False, kind="stable").index
    worst = list(order[:WORST_RANKS])
    bands = pd.DataFrame([grid.quantile(q) for q, _ in BANDS])
    names = [f"{label} of {len(grid)} ranks" for _, label in BANDS]
    names += [section.rank_name(int(rank)) for rank in worst]
    caption = (
        f"{len(grid)} ranks: quantiles over all of them for each step, then the {len(worst)} "
        "with most exposed communication."
    )
    return pd.concat([bands, grid.loc[worst]]), names, caption


def _axes(frame: pd.DataFrame) -> Bars:
    return Bars(
        "By parallel axis",
        tuple(frame["axis"].astype(str)),
        (
            Series("hidden behind compute", Role.HIDING, tuple(frame["hidden_ns"].astype(float))),
            Series("exposed", Role.TRANSFER, tuple(frame["exposed_ns"].astype(float))),
        ),
        "ns",
        "communication, all ranks and counted steps",
        horizontal=True,
        keys=tuple(Key(axis=axis) for axis in frame["axis"].astype(str)),
    )


def _axis_table(frame: pd.DataFrame) -> Table:
    labels = {
        "axis": "axis",
        "comm_ns": "communication",
        "hidden_ns": "hidden",
        "exposed_ns": "exposed",
        "overlap_ratio": "overlap",
    }
    return table("Parallel axes", frame, ANALYZER.tables["per_axis"], labels, worst="exposed_ns")


def _ops(frame: pd.DataFrame) -> Table:
    labels = {"op": "operation", "n": "n", "comm_ns": "communication", "exposed_ns": "exposed"}
    frame = frame.sort_values("exposed_ns", ascending=False, kind="stable")
    return table(
        "Operations, most exposed first",
        frame,
        ANALYZER.tables["per_op"],
        labels,
        worst="exposed_ns",
    )


def _steps(result: OverlapResult) -> Table:
    labels = {
        "rank": "rank",
        "step": "step",
        "comm_ns": "communication",
        "hidden_ns": "hidden",
        "exposed_ns": "exposed",
        "overlap_ratio": "overlap",
    }
    return table(
        "",
        result.per_step,
        ANALYZER.tables["per_step"],
        labels,
        worst="exposed_ns",
    )


PAGE = Page("Overlap", ANALYZER, build, order=20)
