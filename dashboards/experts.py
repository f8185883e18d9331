"""Page of the experts: how evenly tokens are spread, who gets most, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis.experts import ANALYZER, ExpertsResult
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Block,
    Folded,
    Heatmap,
    Role,
    Series,
    Table,
    table,
)
from tracekit.report.page import Page
from tracekit.report.section import Section, plural

from ._parts import MANY_RANKS

FEW = 8  # ranks whose sums fit into a caption
SHOWN = 64  # rows or columns of a matrix, bars of a chart
SOURCES = {
    "splits": "Counted from the rows each rank sends and receives.",
    "counters": "Counted by the experts themselves.",
    "grouped-gemm": "No token counts were recorded: the time of grouped matrix products stands "
    "in for load.",
}


def build(result: ExpertsResult, section: Section) -> Sequence[Block]:
    """Answer, load by rank and layer, traffic, experts, tables."""
    blocks: list[Block] = [_answer(result, section)]
    counted = result.per_layer[result.per_layer["counted"]]
    blocks.append(_loads(counted, section))
    if len(result.traffic):
        blocks.append(_matrix(result.traffic))
    if len(result.per_expert):
        blocks.append(_experts(result.per_expert))
    blocks.append(_balance(result))
    if len(result.persistence):
        blocks.append(_persistence(result))
    blocks.append(Folded("Every layer, rank and step", (_rows(result),)))
    return blocks


def _answer(result: ExpertsResult, section: Section) -> Answer:
    balance = result.balance[result.balance["counted"]]
    top = balance["top_rank"].value_counts()
    who = section.rank_name(int(top.index[0])) if len(top) else "no rank"
    ratio = format.significant(result.max_over_mean)
    sentence = f"The busiest rank gets {ratio} times the mean load, most often {who}"
    if result.lost_ns_per_step is not None:
        lost = format.quantity(result.lost_ns_per_step, "ns")
        sentence += f"; perfect balance would save {lost} per step"
    detail = f"{SOURCES[result.source]} {plural(len(balance), 'layer')} and steps."
    detail = detail.replace("layers and steps", "layers × steps")
    if result.lost_ns_per_step is None:
        detail += " What this costs cannot be told: expert time does not follow load here."
    if result.inconsistent_count:
        detail += (
            f" {plural(result.inconsistent_count, 'dispatch')} that ranks tell differently "
            "were left out."
        ).replace("dispatchs", "dispatches")
    return Answer(sentence + ".", detail)


def _loads(counted: pd.DataFrame, section: Section) -> Heatmap:
    """Load of each rank in each layer, as the mean over counted steps, over its group's mean."""
    frame = counted.copy()
    frame["value"] = frame["tokens"].astype("Float64").fillna(frame["work_ns"].astype("Float64"))
    grid = frame.pivot_table(index="rank", columns="layer", values="value", aggfunc="mean")
    grid = grid.astype(float)
    group = frame.drop_duplicates("rank").set_index("rank")["group"].reindex(grid.index)
    relative = grid / grid.groupby(group).transform("mean")
    caption = "1 is the mean of the group. A column with one dark cell has one hot rank."
    if len(relative) > MANY_RANKS:
        worst = relative.max(axis=1).sort_values(ascending=False, kind="stable").index
        relative = relative.loc[sorted(worst[:MANY_RANKS])]
        caption += f" The {MANY_RANKS} busiest of {len(grid)} ranks."
    return Heatmap(
        "Where: load by rank and layer",
        tuple(section.rank_name(int(rank)) for rank in relative.index),
        tuple("all" if layer < 0 else str(layer) for layer in relative.columns),
        tuple(tuple(None if pd.isna(v) else float(v) for v in row) for row in relative.to_numpy()),
        "",
        "load over mean",
        "",
        "layer",
        "0: no tokens",
        Role.COMPUTE,
        caption,
    )


def _matrix(traffic: pd.DataFrame) -> Heatmap:
    """Rows from rank to rank, the sums of each rank beside its name."""
    grid = traffic.pivot_table(
        index="src", columns="dst", values="tokens", aggfunc="sum", dropna=False
    ).astype(float)
    caption = "Rows dispatched in counted steps, all layers; in brackets what a rank sends."
    if len(grid) <= FEW:
        told = ", ".join(f"rank {dst} {_count(grid[dst].sum())}" for dst in grid.columns)
        caption += f" Received: {told}."
    if len(grid) > SHOWN:
        grid = grid.iloc[:SHOWN, :SHOWN]
        caption += f" The first {SHOWN} ranks; all are in --json."
    return Heatmap(
        "Traffic: rows from rank to rank",
        tuple(f"from {src} ({_count(grid.loc[src].sum())})" for src in grid.index),
        tuple(str(dst) for dst in grid.columns),
        tuple(tuple(None if pd.isna(v) else float(v) for v in row) for row in grid.to_numpy()),
        "count",
        "rows",
        "",
        "to rank",
        "0: nothing sent",
        Role.TRANSFER,
        caption,
    )


def _count(value: float) -> str:
    return format.quantity(value, "count")


def _experts(frame: pd.DataFrame) -> Bars:
    """Share of each expert, mean over layers; the busiest few of many."""
    shares = frame.groupby(["expert", "rank"])["share"].mean().reset_index()
    caption = "Share of a layer's tokens, mean over layers; counted by the experts."
    if len(shares) > SHOWN:
        shares = shares.sort_values("share", ascending=False, kind="stable").head(SHOWN)
        caption += f" The {SHOWN} busiest."
    hot = int(shares["share"].to_numpy().argmax())
    return Bars(
        "Experts",
        tuple(
            f"expert {int(e)} on rank {int(r)}"
            for e, r in zip(shares["expert"], shares["rank"], strict=True)
        ),
        (Series("share of tokens", Role.COMPUTE, tuple(shares["share"].astype(float))),),
        "ratio",
        "share of tokens",
        "expert",
        caption,
        marked=frozenset({hot}),
        ticks=tuple(str(int(expert)) for expert in shares["expert"]),
    )


def _balance(result: ExpertsResult) -> Table:
    labels = {
        "layer": "layer",
        "step": "step",
        "group": "group",
        "max_over_mean": "max ÷ mean",
        "cv": "CV",
        "top_rank": "busiest rank",
        "top_share": "its share",
        "lost_ns": "lost",
        "counted": "counted",
    }
    return table(
        "Balance by layer and step",
        result.balance,
        ANALYZER.tables["balance"],
        labels,
        worst="max_over_mean",
    )


def _persistence(result: ExpertsResult) -> Table:
    labels = {
        "layer": "layer",
        "group": "group",
        "rank": "busiest most often",
        "share": "of steps",
        "n": "steps",
    }
    return table(
        "Is it always the same rank?",
        result.persistence,
        ANALYZER.tables["persistence"],
        labels,
        worst="share",
    )


def _rows(result: ExpertsResult) -> Table:
    labels = {
        "layer": "layer",
        "step": "step",
        "rank": "rank",
        "tokens": "tokens",
        "work_ns": "expert compute",
        "max_over_mean": "max ÷ mean",
        "inferred": "inferred",
    }
    return table("", result.per_layer, ANALYZER.tables["per_layer"], labels, worst="tokens")


PAGE = Page("Experts", ANALYZER, build, order=50)
