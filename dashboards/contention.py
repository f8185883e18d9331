"""Page of the contention: what overlap costs compute and transfers, and whether it pays."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis.contention import ANALYZER, NO_BASELINE, ContentionResult
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Block,
    Folded,
    Role,
    Series,
    Table,
    Whisker,
    Whiskers,
    table,
)
from tracekit.report.page import Page
from tracekit.report.section import Section, plural

SHOWN = 16  # classes in a chart


def build(result: ContentionResult, _: Section) -> Sequence[Block]:
    """Answer, slowdown by class, benefit, tables."""
    known = result.per_class[result.per_class["slowdown"].notna()]
    blocks: list[Block] = [_answer(result, known)]
    if len(known):
        blocks.append(_slowdowns(known))
    blocks.append(_balance(result))
    if len(result.per_region) > 1:
        blocks.append(_regions(result))
    blocks.append(_classes(result))
    if len(result.per_transfer):
        blocks.append(_transfers(result))
    blocks.append(Folded("Every rank and step", (_steps(result),)))
    return blocks


def _answer(result: ContentionResult, known: pd.DataFrame) -> Answer:
    net = format.quantity(abs(result.net_benefit_ns), "ns")
    pays = f"saves {net}" if result.net_benefit_ns >= 0 else f"costs {net} more than it hides"
    sentence = f"Overlap {pays}, over all ranks and counted steps"
    sure = known[known["slowdown_low"] > 1]
    if len(sure):
        worst = sure.loc[sure["lost_ns"].astype(float).idxmax()]
        sentence += (
            f"; {format.shorten(str(worst['kernel']))} runs {_times(worst['slowdown'])} as long "
            f"beside communication ({_times(worst['slowdown_low'])} to "
            f"{_times(worst['slowdown_high'])})"
        )
    elif len(known):
        sentence += "; no kernel is certainly slower beside communication"
    facts = []
    if result.unmeasured_ratio > 0.005:
        share = format.quantity(result.unmeasured_ratio, "ratio")
        facts.append(
            f"{share} of overlapped compute has no baseline: it never runs alone, or only as other "
            "work, so the saving is an upper bound"
        )
    if not result.waits_known:
        facts.append("waiting cannot be told from transfer everywhere: hidden waiting may count")
    return Answer(sentence + ".", " · ".join(facts))


def _times(value: float) -> str:
    return f"{float(value):.3g} ×"


def _slowdowns(known: pd.DataFrame) -> Whiskers:
    """Slowdown of each class with its interval; zero is no slowdown."""
    rows = tuple(
        Whisker(
            f"{format.shorten(str(row.kernel), 40)} {row.shape}".strip(),
            float(row.slowdown) - 1,
            float(row.slowdown_low) - 1,
            float(row.slowdown_high) - 1,
            0.0,
            f"{row.n_overlapped:,} overlapped, {row.n_alone:,} alone",
        )
        for row in known.head(SHOWN).itertuples()
    )
    caption = "99 % intervals. 25 % means that a kernel takes 1.25 times as long."
    if len(known) > SHOWN:
        caption += f" The {SHOWN} of {len(known)} classes that lose most."
    return Whiskers("Slower beside communication by", rows, "ratio", "slower by", caption)


def _balance(result: ContentionResult) -> Bars:
    counted = result.per_step[result.per_step["counted"]]
    parts = (
        ("saved", Role.HIDING, float(max(0, result.net_benefit_ns))),
        ("hidden waiting: no win", Role.WAIT, float(counted["hidden_wait_ns"].sum())),
        ("lost by compute", Role.COMPUTE, float(max(0, result.compute_lost_ns))),
        ("lost by transfers", Role.TRANSFER, float(max(0, result.transfer_lost_ns))),
    )
    return Bars(
        "What becomes of hidden communication",
        ("hidden communication",),
        tuple(Series(label, role, (value,)) for label, role, value in parts if value),
        "ns",
        "all ranks, counted steps",
    )


def _regions(result: ContentionResult) -> Table:
    labels = {
        "region": "where",
        "hidden_ns": "hidden",
        "compute_lost_ns": "lost by compute",
        "net_benefit_ns": "net benefit",
    }
    return table(
        "By region", result.per_region, ANALYZER.tables["per_region"], labels, worst="hidden_ns"
    )


def _classes(result: ContentionResult) -> Table:
    labels = {
        "kernel": "kernel",
        "shape": "shape",
        "n_alone": "alone",
        "n_overlapped": "overlapped",
        "slowdown": "slowdown",
        "slowdown_low": "from",
        "slowdown_high": "to",
        "lost_ns": "lost",
        "baseline": "equal in",
    }
    if (result.per_class["shape"] == "").all():
        del labels["shape"]
    without = int((result.per_class["baseline"] == NO_BASELINE).sum())
    caption = "Compared among kernels of equal work only."
    if without:
        caption += f" {plural(without, 'class')} without a baseline.".replace("classs", "classes")
    return table(
        "Kernel classes",
        result.per_class,
        ANALYZER.tables["per_class"],
        labels,
        caption=caption,
        worst="lost_ns",
    )


def _transfers(result: ContentionResult) -> Table:
    labels = {
        "op": "operation",
        "axis": "axis",
        "bytes": "size",
        "n_alone": "alone",
        "n_overlapped": "overlapped",
        "alone_p50_ns": "alone p50",
        "overlapped_p50_ns": "overlapped p50",
        "slowdown": "slowdown",
        "slowdown_low": "from",
        "slowdown_high": "to",
        "bench_p50_ns": "benchmark",
        "bench_slowdown": "against it",
    }
    if result.per_transfer["bench_p50_ns"].isna().all():
        del labels["bench_p50_ns"], labels["bench_slowdown"]
    return table(
        "Transfers beside compute",
        result.per_transfer,
        ANALYZER.tables["per_transfer"],
        labels,
        caption="The transfer alone, without waiting for other ranks.",
        worst="overlapped_p50_ns",
    )


def _steps(result: ContentionResult) -> Table:
    labels = {
        "rank": "rank",
        "step": "step",
        "hidden_ns": "hidden",
        "hidden_wait_ns": "of it waiting",
        "compute_lost_ns": "lost by compute",
        "transfer_lost_ns": "lost by transfers",
        "net_benefit_ns": "net benefit",
    }
    return table("", result.per_step, ANALYZER.tables["per_step"], labels, worst="hidden_ns")


PAGE = Page("Contention", ANALYZER, build, order=22)
