"""Page of the stragglers: the verdict, who is late when, who waits for whom, what a repair wins."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis.stragglers import ADVICE, ANALYZER, StragglersResult, name_of
from tracekit.report import format
from tracekit.report.blocks import Answer, Block, Folded, Heatmap, Role, Table, Text, table
from tracekit.report.page import Page
from tracekit.report.section import Section

from ._parts import MANY_RANKS, WORST_RANKS

BANDS = ((0.95, "p95"), (0.5, "median"), (0.05, "p5"))
CAUSES = {
    "compute": "all its kernels are slow alike",
    "work": "one kind of its kernels takes longer",
    "sequence": "its microbatches hold longer sequences",
    "experts": "its experts get more tokens than others",
    "host": "its host launches late",
    "gc": "its host pauses in single steps, as garbage collection does",
    "dataloader": "its next batch comes late",
    "link": "its transfers take longer than those of sibling links",
}


def build(result: StragglersResult, section: Section) -> Sequence[Block]:
    """Verdict, lateness by rank and step, the matrix of waits, the what-if table, ranks."""
    blocks: list[Block] = [answer(result, section)]
    blocks.append(_lateness(result, section))
    if len(result.waits):
        blocks.append(_waits(result, section))
    if result.culprit_kind != "none":
        blocks.append(_what_if(result))
        if result.cause:
            blocks.append(Text(f"What to try: {ADVICE[result.cause]}."))
    blocks.append(_ranks(result))
    blocks.append(Folded("Every step", (_steps(result),)))
    return blocks


def answer(result: StragglersResult, section: Section) -> Answer:
    """The verdict in one sentence."""
    detail = []
    if result.culprit_kind != "none":
        detail.append(f"without any excess the steps would be {_faster(result)}")
    if result.status_reason:
        detail.append(result.status_reason)
    slow = result.per_step[result.per_step["slow"]]
    if len(slow):
        numbers = ", ".join(str(step) for step in slow["step"].head(5))
        detail.append(f"steps {numbers} are slow on all ranks alike, which is no rank's doing")
    text = "; ".join(detail)
    return Answer(sentence(result, section), f"{text[:1].upper()}{text[1:]}." if text else "")


def sentence(result: StragglersResult, section: Section) -> str:
    """Who makes the others wait and what it costs, as one sentence."""
    wasted = format.quantity(result.waste_ratio, "ratio")
    if result.culprit_kind == "none":
        if not result.clears_ranks:
            return (
                "No rank is named: as far as they can be compared, none does more than its peers."
            )
        return "No rank makes the others wait: none does clearly more than its peers."
    if result.culprit_kind == "diffuse":
        return f"{wasted} of step time is lost to slow ranks, but to no small set of them."
    who = name_of(result.culprit_kind, result.culprit_members, result.culprit_ranks)
    if result.culprit_kind == "rank" and len(result.culprit_ranks) == 1:
        name = section.rank_name(result.culprit_ranks[0])
        who = name[:1].upper() + name[1:]
    why = CAUSES.get(result.cause or "")
    once = ", in a single step" if result.persistence == "isolated" else ""
    return f"{who} costs {wasted} of step time{once}" + (f": {why}." if why else ".")


def _faster(result: StragglersResult) -> str:
    step = float(result.per_step["step_ns"].mean())
    healthy = float(result.per_step["healthy_ns"].mean())
    units = format.scale("ns", (step,))
    return f"{units.quantity(healthy)} instead of {units.quantity(step)}"


def _lateness(result: StragglersResult, section: Section) -> Heatmap:
    grid = result.lateness.pivot_table(
        index="rank", columns="step", values="late_ns", aggfunc="sum"
    )
    grid = grid.astype(float).loc[[rank for rank in section.rank_order if rank in grid.index]]
    names = [section.rank_name(int(rank)) for rank in grid.index]
    ranks = tuple(int(rank) for rank in grid.index)
    caption = "Late is not guilty: who comes late because of another is late here, too."
    if len(grid) > MANY_RANKS:
        order = grid.mean(axis=1).sort_values(ascending=False, kind="stable").index
        worst = list(order[:WORST_RANKS])
        bands = pd.DataFrame([grid.quantile(q) for q, _ in BANDS])
        names = [f"{label} of {len(grid)} ranks" for _, label in BANDS]
        names += [section.rank_name(int(rank)) for rank in worst]
        ranks = (*(-1 for _ in BANDS), *(int(rank) for rank in worst))
        caption = f"Quantiles over {len(grid)} ranks, then the {len(worst)} latest. " + caption
        grid = pd.concat([bands, grid.loc[worst]])
    return Heatmap(
        "Who is late: arrival after the median member, by rank and step",
        tuple(names),
        tuple(str(step) for step in grid.columns),
        _cells(grid),
        "ns",
        "lateness, all calls of the step",
        "",
        "step",
        "0: never late",
        Role.WAIT,
        caption,
        ranks,
        tuple(int(step) for step in grid.columns),
    )


def _cells(grid: pd.DataFrame) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(None if pd.isna(v) else float(v) for v in row) for row in grid.to_numpy())


def _waits(result: StragglersResult, section: Section) -> Heatmap:
    """Who waits for whom; of many ranks those involved in most."""
    frame = result.waits
    most = MANY_RANKS // 2
    waiters = frame.groupby("waiter")["wait_ns"].sum().nlargest(most).index
    last = frame.groupby("last")["wait_ns"].sum().nlargest(most).index
    grid = frame.pivot_table(index="waiter", columns="last", values="wait_ns", aggfunc="sum")
    order = [rank for rank in section.rank_order if rank in set(waiters)]
    columns = [rank for rank in section.rank_order if rank in set(last)]
    grid = grid.reindex(index=order, columns=columns).astype(float).fillna(0.0)
    cut = "" if len(grid) == frame["waiter"].nunique() else f" The {most} that wait most."
    return Heatmap(
        "Who waits for whom",
        tuple(section.rank_name(int(rank)) for rank in grid.index),
        tuple(str(rank) for rank in grid.columns),
        _cells(grid),
        "ns",
        "waited per step",
        "waits",
        "for rank",
        "0: does not wait",
        Role.WAIT,
        "Only instances whose last rank is clear beyond the uncertainty of clocks." + cut,
    )


# Kinds of sets that are not words already.
KIND_WORDS = {"tp_group": "tensor-parallel group", "dp_replica": "data-parallel replica"}


def _what_if(result: StragglersResult) -> Table:
    frame = result.sets
    frame = frame[(frame["share_recovered"] >= 0.01) | frame["named"]].head(20)
    frame = frame.assign(kind=frame["kind"].map(lambda kind: KIND_WORDS.get(kind, kind)))
    labels = {
        "kind": "what is repaired",
        "members": "which",
        "share_recovered": "loss recovered",
        "named": "named",
    }
    caption = (
        "Each line: the run replayed without the excess of that set alone. The smallest set that "
        "recovers half of the loss is named."
    )
    return table("What if", frame, ANALYZER.tables["sets"], labels, caption=caption)


def _ranks(result: StragglersResult) -> Table:
    labels = {
        "rank": "rank",
        "late_ns": "late",
        "blame_ns": "made others wait",
        "wait_ns": "waited",
        "busy_excess_ns": "computes longer",
        "gap_excess_ns": "host later",
        "slowdown": "slowdown alone",
        "cause": "cause",
    }
    return table(
        "Ranks, per step", result.per_rank, ANALYZER.tables["per_rank"], labels, worst="blame_ns"
    )


def _steps(result: StragglersResult) -> Table:
    labels = {
        "step": "step",
        "step_ns": "step",
        "healthy_ns": "without excess",
        "last_rank": "last rank",
        "slow": "slow for all",
    }
    return table("", result.per_step, ANALYZER.tables["per_step"], labels)


PAGE = Page("Stragglers", ANALYZER, build, order=25)
