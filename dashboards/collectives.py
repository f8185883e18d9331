"""Page of the collectives: transfer and wait by message size, the slowest ones, bandwidths."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis.collectives import ANALYZER, CollectivesResult
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Block,
    Folded,
    Line,
    Lines,
    Role,
    Series,
    Table,
    table,
)
from tracekit.report.page import Page
from tracekit.report.section import Section, plural

MOST_LINES = 6
_ROLES = (Role.TRANSFER, Role.COMPUTE, Role.HIDING, Role.MEMORY, Role.WAIT, Role.TIME)


def build(result: CollectivesResult, section: Section) -> Sequence[Block]:
    """Answer, wait against transfer by kind, latency by size, tables, fits and ends folded."""
    blocks: list[Block] = [_answer(result, section)]
    measured = result.latency[result.latency["n_complete"] > 0]
    if len(measured):
        blocks.append(_wait_or_transfer(measured))
        blocks.append(_latency_curves(measured))
    blocks.append(_latency_table(result))
    blocks.append(_slowest_table(result))
    blocks.append(
        Folded("Latency and bandwidth of the links; who ends late", (_fits(result), _ends(result)))
    )
    return blocks


def _answer(result: CollectivesResult, section: Section) -> Answer:
    matched = format.quantity(result.matched_ratio, "ratio")
    detail = f"{matched} of the calls were matched across ranks"
    if result.margin is not None:
        detail += f", by a vote with a margin of {result.margin:.1f}"
    uncertain = [fit.uncertainty_ns for fit in section.run.clock]
    if len(uncertain) > 1:
        detail += f"; clocks are aligned within {format.quantity(max(uncertain), 'ns')}"
    if result.disagreeing:
        detail += (
            f"; for {plural(result.disagreeing, 'instance')} the clocks and the durations alone "
            "tell different transfers"
        )
    if pd.isna(result.wait_ratio):
        sentence = (
            "Only the durations of collectives are known: no collective of several ranks could "
            "be matched."
        )
        return Answer(sentence, detail + ".")
    wait = format.quantity(result.wait_ratio, "ratio")
    top = result.latency[result.latency["n_complete"] > 0].iloc[0]
    sentence = (
        f"Of the time in collectives {wait} is waiting for the last rank; the most expensive kind, "
        f"{top['op']} over {top['axis']}, transfers in "
        f"{format.quantity(top['transfer_p50_ns'], 'ns')} (median of {int(top['n_complete'])})."
    )
    return Answer(sentence, detail + ".")


def _wait_or_transfer(frame: pd.DataFrame) -> Bars:
    frame = frame.head(12)
    labels = tuple(
        f"{row.op} · {row.axis} · {format.quantity(row.bytes, 'bytes') if row.bytes >= 0 else '?'}"
        for row in frame.itertuples()
    )
    return Bars(
        "Median wait and transfer by kind",
        labels,
        (
            Series("transfer", Role.TRANSFER, _floats(frame["transfer_p50_ns"])),
            Series("wait for the last rank", Role.WAIT, _floats(frame["wait_p50_ns"])),
        ),
        "ns",
        "time per instance",
        horizontal=True,
        caption="The kinds that take most time in all, at most twelve.",
    )


def _floats(values: pd.Series) -> tuple[float | None, ...]:
    return tuple(None if pd.isna(value) else float(value) for value in values)


def _latency_curves(frame: pd.DataFrame) -> Lines:
    """Transfer against message size, one line per operation, axis, group size and span."""
    known = frame[frame["bytes"] > 0]
    kinds = known.groupby(["op", "axis", "group_size", "span"], sort=False)
    lines = []
    for number, (_, part) in enumerate(list(kinds)[:MOST_LINES]):
        part = part.sort_values("bytes")
        first = part.iloc[0]
        top = (
            part["transfer_p99_ns"].fillna(part["transfer_p95_ns"]).fillna(part["transfer_p50_ns"])
        )
        words = [str(first["op"]), str(first["axis"]), f"{first['group_size']} ranks"]
        if first["span"] == "inter":
            words.append("across hosts")
        lines.append(
            Line(
                " · ".join(words),
                _ROLES[number % len(_ROLES)],
                tuple(part["bytes"].astype(float)),
                _floats(part["transfer_p50_ns"]),
                _floats(part["transfer_p50_ns"]),
                _floats(top),
                tuple(_hover(row) for row in part.itertuples()),
                str(first["axis"]),
            )
        )
    return Lines(
        "Transfer against message size",
        tuple(lines),
        "message size",
        "transfer",
        "bytes",
        "ns",
        x_log=True,
        y_log=True,
        caption="Line: median. Band: up to p99, or p95 where there are fewer than 100 instances. "
        "Waiting for a late rank is left out.",
    )


def _hover(row: object) -> str:
    shown = [f"n = {row.n_complete}"]  # type: ignore[attr-defined]
    for q in ("p95", "p99"):
        value = getattr(row, f"transfer_{q}_ns")
        if not pd.isna(value):
            shown.append(f"{q} {format.quantity(value, 'ns')}")
    return ", ".join(shown)


def _latency_table(result: CollectivesResult) -> Table:
    labels = {
        "op": "operation",
        "axis": "axis",
        "group_size": "ranks",
        "span": "hosts",
        "bytes": "size",
        "n": "n",
        "transfer_p50_ns": "transfer p50",
        "transfer_p95_ns": "p95",
        "transfer_p99_ns": "p99",
        "wait_p50_ns": "wait p50",
        "wait_p95_ns": "wait p95",
        "busbw_p50_gbps": "bus bandwidth",
    }
    caption = "p95 needs 20 instances and p99 100; the maximum and intervals are in the JSON."
    if result.latency["alone_p50_ns"].notna().any():
        labels |= {"alone_p50_ns": "alone p50", "contention_factor": "× alone"}
        if (result.latency["alone_refused"] != "").any():
            labels["alone_refused"] = "why no time alone"
        caption += " Alone: by tracekit bench, when nothing else ran."
    else:
        reasons = sorted(set(result.latency["alone_refused"]) - {""})
        caption += f" No time alone to compare with: {'; '.join(reasons)}."
    frame = result.latency.assign(bytes=result.latency["bytes"].where(result.latency["bytes"] >= 0))
    return table(
        "Latency by kind and size",
        frame,
        ANALYZER.tables["latency"],
        labels,
        caption=caption,
    )


def _slowest_table(result: CollectivesResult) -> Table:
    labels = {
        "op": "operation",
        "group": "group",
        "step": "step",
        "duration_ns": "longest call",
        "wait_ns": "wait",
        "transfer_ns": "transfer",
        "late_rank": "last rank",
        "excess": "long by",
        "status": "status",
    }
    return table(
        "Slowest instances",
        result.slowest,
        ANALYZER.tables["slowest"],
        labels,
        worst="duration_ns",
    )


def _fits(result: CollectivesResult) -> Table:
    labels = {
        "op": "operation",
        "axis": "axis",
        "group_size": "ranks",
        "span": "hosts",
        "sizes": "sizes",
        "latency_ns": "latency",
        "bandwidth_gbps": "bandwidth",
        "explained_ratio": "explained",
        "refused": "why none",
    }
    return table("Latency and bandwidth", result.fits, ANALYZER.tables["fits"], labels)


def _ends(result: CollectivesResult) -> Table:
    labels = {
        "rank": "rank",
        "n": "n",
        "wait_ns": "waited",
        "last": "times last",
        "end_offset_ns": "ends after the others",
        "late_end": "odd",
    }
    return table("Waiting and ends by rank", result.per_rank, ANALYZER.tables["per_rank"], labels)


PAGE = Page("Collectives", ANALYZER, build, order=30)
