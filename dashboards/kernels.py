"""Page of the kernels: which take the time, who launched them, which rank runs them slower."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis.kernels import ANALYZER, NO_SCOPE, NOT_LINKED, KernelsResult
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

SHOWN = 12  # kernels in a chart
ROLES = {
    "compute": Role.COMPUTE,
    "communication": Role.TRANSFER,
    "memory": Role.MEMORY,
}


def build(result: KernelsResult, section: Section) -> Sequence[Block]:
    """Answer, the longest kernels, slow ranks, tables by kernel, operator and annotation."""
    blocks: list[Block] = [_answer(result, section), _longest(result)]
    spread = _spread(result, section)
    if spread is not None:
        blocks.append(spread)
    blocks.append(_kernels(result))
    blocks.append(Folded("By operator", (_by(result.per_op, "op", "operator"),)))
    if set(result.per_scope["scope"]) != {NO_SCOPE}:
        blocks.append(_by(result.per_scope, "scope", "annotation"))
    if len(section.run.traces) > 1:
        blocks.append(Folded("By kernel and rank", (_ranks(result),)))
    return blocks


def _answer(result: KernelsResult, section: Section) -> Answer:
    frame = result.per_kernel
    top = frame.iloc[0]
    share = format.quantity(top["share"], "ratio")
    sentence = (
        f"{format.shorten(str(top['kernel']))} takes {share} of all kernel time, "
        f"the most of {plural(len(frame), 'kernel')}"
    )
    by_kind = frame.groupby("kind")["share"].sum().sort_values(ascending=False)
    parts = ", ".join(
        f"{kind} {format.quantity(value, 'ratio')}" for kind, value in by_kind.items()
    )
    detail = f"Kernel time: {parts}."
    unlinked = format.quantity(result.unlinked_ratio, "ratio")
    if not section.on_cpu:
        detail += f" {unlinked} of it is not linked to an operator."
    if result.by_name_ratio is not None:
        named = format.quantity(result.by_name_ratio, "ratio")
        detail += f" {named} of communication is known by its name only."
    return Answer(sentence + ".", detail)


def _longest(result: KernelsResult) -> Bars:
    top = result.per_kernel.head(SHOWN)
    series = tuple(
        Series(
            kind,
            role,
            tuple(
                float(ns) if own == kind else 0.0
                for ns, own in zip(top["total_ns"], top["kind"], strict=True)
            ),
        )
        for kind, role in ROLES.items()
        if (top["kind"] == kind).any()
    )
    rest = float(result.per_kernel["total_ns"].iloc[SHOWN:].sum())
    caption = "Summed over ranks and counted steps."
    if rest:
        share = format.quantity(rest / float(result.per_kernel["total_ns"].sum()), "ratio")
        caption += f" The other {len(result.per_kernel) - SHOWN} kernels: {share}."
    return Bars(
        "Kernels with most time",
        tuple(top["kernel"].astype(str)),
        series,
        "ns",
        "time in this kernel",
        caption=caption,
        horizontal=True,
    )


def _spread(result: KernelsResult, section: Section) -> Heatmap | None:
    """How much longer a kernel takes on a rank than on its peers."""
    frame = result.per_rank[result.per_rank["slowdown"].notna()]
    if frame.empty:
        return None
    names = list(dict.fromkeys(frame["kernel"]))[:SHOWN]
    ranks = [rank for rank in section.rank_order if rank in set(frame["rank"])]
    caption = "Median time on the rank against the lower median of its peers; compute only."
    grid = frame.pivot_table(index="kernel", columns="rank", values="slowdown", aggfunc="max")
    grid = grid.astype(float).loc[names]
    if len(ranks) > MANY_RANKS:
        ranks = list(grid.max().sort_values(ascending=False).index[:MANY_RANKS])
        caption += f" The {MANY_RANKS} ranks with the largest excess."
    return Heatmap(
        "Where a rank is slower than its peers",
        tuple(names),
        tuple(str(rank) for rank in ranks),
        tuple(
            tuple(
                None if pd.isna(value) else max(0.0, float(value) - 1)
                for value in grid.loc[name, ranks]
            )
            for name in names
        ),
        "ratio",
        "slower by",
        "",
        "rank",
        "0: as fast as its peers",
        Role.COMPUTE,
        caption,
    )


def _kernels(result: KernelsResult) -> Table:
    labels = {
        "kernel": "kernel",
        "kind": "kind",
        "n": "n",
        "total_ns": "total",
        "p50_ns": "p50",
        "p95_ns": "p95",
        "max_ns": "max",
        "share": "share",
    }
    return table(
        "Kernels",
        result.per_kernel,
        ANALYZER.tables["per_kernel"],
        labels,
        worst="total_ns",
    )


def _by(frame: pd.DataFrame, key: str, label: str) -> Table:
    labels = {
        key: label,
        "n": "kernels",
        "total_ns": "total",
        "compute_ns": "compute",
        "comm_ns": "communication",
        "memory_ns": "memory",
        "share": "share",
    }
    caption = ""
    if key == "op" and (frame["op"] == NOT_LINKED).any():
        caption = "Kernels without an operator come from a graph, or their link is not recorded."
    return table(
        f"By {label}",
        frame,
        ANALYZER.tables[f"per_{key}"],
        labels,
        caption=caption,
        worst="total_ns",
    )


def _ranks(result: KernelsResult) -> Table:
    labels = {
        "kernel": "kernel",
        "rank": "rank",
        "n": "n",
        "p50_ns": "p50",
        "peers_p50_ns": "peers",
        "slowdown": "rank ÷ peers",
    }
    return table("", result.per_rank, ANALYZER.tables["per_rank"], labels, worst="slowdown")


PAGE = Page("Kernels", ANALYZER, build, order=70)
