"""Page of the launches: why the device stands idle, with the longest gaps by name."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis.launch import ANALYZER, LaunchResult
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Block,
    Folded,
    Role,
    Series,
    Table,
    table,
)
from tracekit.report.page import Page
from tracekit.report.section import Section, plural

from ._parts import MANY_RANKS

SCHEMA = ANALYZER.tables["per_step"]
CAUSES = (
    ("host_bound_ns", "waiting for a launch", Role.WAIT),
    ("sync_ns", "run dry by synchronisation", Role.TRANSFER),
    ("dataloader_ns", "waiting for data", Role.MEMORY),
    ("gc_ns", "garbage collection", Role.HIDING),
    ("dependency_ns", "waiting for another stream", Role.COMPUTE),
    ("other_ns", "other", Role.IDLE),
)


def build(result: LaunchResult, section: Section) -> Sequence[Block]:
    """Answer, causes by rank, the longest gaps, tables."""
    counted = result.per_step[result.per_step["counted"]]
    blocks: list[Block] = [_answer(result, counted, section), _causes(counted, section)]
    if len(result.longest_gaps):
        blocks.append(_gaps(result))
    if len(result.per_op) and not section.on_cpu:
        blocks.append(_ops(result))
    blocks.append(Folded("Every rank and step", (_rows(result),)))
    return blocks


def _answer(result: LaunchResult, counted: pd.DataFrame, section: Section) -> Answer:
    idle = format.quantity(result.idle_ratio, "ratio")
    total = float(counted["step_ns"].sum())
    shares = {
        label: float(counted[name].fillna(0).sum()) / total for name, label, _ in CAUSES if total
    }
    told = [
        f"{format.quantity(share, 'ratio')} {label}"
        for label, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= 0.001
    ]
    what = "is in no operator and no transfer" if section.on_cpu else "has nothing on the device"
    sentence = f"{idle} of step time {what}"
    if told:
        sentence += ": " + ", ".join(told)
    return Answer(sentence + ".", _links(result, section))


def _links(result: LaunchResult, section: Section) -> str:
    """What the split rests on; always said."""
    if section.on_cpu:
        return "On a CPU there are no launches; the rest is Python, dispatch and waiting."
    count = plural(result.kernel_count, "kernel")
    text = (
        f"{count}: {format.quantity(result.no_launch_count, 'count')} without a recorded launch, "
        f"{format.quantity(result.no_op_count, 'count')} not linked to an operator."
    )
    if result.by_name_ratio is not None:
        named = format.quantity(result.by_name_ratio, "ratio")
        text += f" {named} of communication kernels are known by their name only."
    return text


def _causes(counted: pd.DataFrame, section: Section) -> Bars:
    names = [name for name, _, _ in CAUSES]
    means = counted.groupby("rank")[names].mean().astype(float)
    order = [rank for rank in section.rank_order if rank in means.index]
    caption = "Mean over counted steps."
    if len(order) > MANY_RANKS:
        order = list(means.sum(axis=1).sort_values(ascending=False).index[:MANY_RANKS])
        caption += f" The {MANY_RANKS} ranks with most idle time."
    means = means.loc[order].fillna(0.0)
    return Bars(
        "Idle time by cause",
        tuple(section.rank_name(int(rank)) for rank in means.index),
        tuple(
            Series(label, role, tuple(means[name]))
            for name, label, role in CAUSES
            if means[name].any()
        ),
        "ns",
        "idle time per step",
        caption=caption,
        horizontal=True,
    )


def _gaps(result: LaunchResult) -> Table:
    labels = {
        "rank": "rank",
        "step": "step",
        "at_ns": "at",
        "gap_ns": "gap",
        "cause": "cause",
        "late_ns": "launched after",
        "op": "operator that ends it",
        "scope": "annotation",
        "before": "kernel before",
    }
    return table(
        "Longest gaps",
        result.longest_gaps,
        ANALYZER.tables["longest_gaps"],
        labels,
        worst="gap_ns",
    )


def _ops(result: LaunchResult) -> Table:
    labels = {"op": "operator", "n": "gaps", "idle_ns": "idle", "host_bound_ns": "host-bound"}
    return table(
        "Before which operators",
        result.per_op,
        ANALYZER.tables["per_op"],
        labels,
        worst="idle_ns",
    )


def _rows(result: LaunchResult) -> Table:
    labels = {
        "rank": "rank",
        "step": "step",
        "idle_ns": "idle",
        **{name: label for name, label, _ in CAUSES},
    }
    return table("", result.per_step, SCHEMA, labels, worst="idle_ns")


PAGE = Page("Idle time", ANALYZER, build, order=60)
