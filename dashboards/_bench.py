"""The page of a benchmark of the links: latency by message size, bandwidth, conditions.

Definition: before each iteration all ranks of the group meet in a barrier; the time is that
of one operation alone, and of each iteration the slowest rank counts. Percentiles are over
iterations: p95 from 20, p99 from 100. ``busbw`` is that of nccl-tests: bytes / median ×
2(n-1)/n for all_reduce, (n-1)/n for all_gather (output bytes), reduce_scatter (input bytes)
and all_to_all, 1 otherwise.
Limits: ranks leave the barrier at slightly different times, which small messages show. With
more ranks than cores the times hold the system's scheduling.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tracekit.core.table import Column, Schema
from tracekit.report import format
from tracekit.report.blocks import Answer, Block, Grid, Line, Lines, Role, Table, table
from tracekit.report.html import Sheet
from tracekit.report.page import method_of

from .conditions import listed

ROWS = Schema(
    Column("op", "str", "", "Collective, or send_recv between two ranks."),
    Column("group_size", "int32", "count", "Members of the group."),
    Column("bytes", "int64", "count", "Message size in bytes, the larger side of it."),
    Column("n", "int64", "count", "Iterations."),
    Column("min_ns", "int64", "ns", "Shortest iteration."),
    Column("p50_ns", "int64", "ns", "Median."),
    Column("p95_ns", "Int64", "ns", "95th percentile; null below 20 iterations."),
    Column("p99_ns", "Int64", "ns", "99th percentile; null below 100 iterations."),
    Column("max_ns", "int64", "ns", "Longest iteration."),
    Column("algbw_gbps", "float64", "gbps", "Bytes ÷ median."),
    Column("busbw_gbps", "float64", "gbps", "algbw by the operation's bus factor."),
    Column("crowded", "bool", "", "More ranks than cores: times hold scheduling."),
)
_ROLES = (Role.TRANSFER, Role.COMPUTE, Role.HIDING, Role.MEMORY, Role.WAIT, Role.TIME)


def sheet(name: str, rows: Sequence[Mapping[str, Any]], conditions: Mapping[str, Any]) -> Sheet:
    """The sheet of one benchmark.

    Args:
        name: what to call it.
        rows: one mapping per operation, group size and message, with the columns of ``ROWS``,
            "backend" and "dtype".
        conditions: those of the measurement.
    """
    frame = pd.DataFrame(list(rows), columns=[*ROWS.names, "backend", "dtype"])
    frame = frame.astype({"p95_ns": "Int64", "p99_ns": "Int64"})
    kinds = [", ".join(sorted(set(frame[column]))) for column in ("backend", "dtype")]
    sizes = ", ".join(str(size) for size in sorted(set(frame["group_size"])))
    return Sheet(
        name=name,
        headline=(*filter(None, kinds), *((f"groups of {sizes} ranks",) if sizes else ())),
        title="Links",
        slug="bench",
        blocks=tuple(_blocks(frame, conditions)),
    )


def _blocks(frame: pd.DataFrame, conditions: Mapping[str, Any]) -> Sequence[Block]:
    if frame.empty:
        return (Answer("This benchmark measured nothing."),)
    blocks: list[Block] = [_answer(frame), Grid(_panels(frame)), _table(frame)]
    if conditions:
        blocks.append(Grid(listed(conditions)))
    return (*blocks, method_of(sys.modules[__name__], (ROWS,)))


def _answer(frame: pd.DataFrame) -> Answer:
    best = frame.loc[frame["busbw_gbps"].idxmax()]
    first = frame.loc[frame["p50_ns"].idxmin()]
    sentence = (
        f"These links carry up to {format.quantity(best['busbw_gbps'], 'gbps')}: {_what(best)}; "
        f"the quickest transfer, {_what(first)}, takes {format.quantity(first['p50_ns'], 'ns')} "
        "(median)."
    )
    detail = "Nothing else of the job ran: each operation was measured by itself."
    if frame["crowded"].any():
        detail += " There were more ranks than cores, so these times hold the system's scheduling."
    return Answer(sentence, detail)


def _what(row: pd.Series) -> str:
    size = format.quantity(row["bytes"], "bytes")
    return f"{row['op']} of {size} over {row['group_size']} ranks"


def _panels(frame: pd.DataFrame) -> tuple[Lines, ...]:
    """One chart per operation, one line per group size, all on one scale."""
    tops = _top(frame)
    reach = (float(frame["p50_ns"].min()), float(tops.max()))
    panels = []
    for op, part in frame.groupby("op", sort=False):
        sizes = sorted(set(part["group_size"]))
        lines = tuple(
            _line(part[part["group_size"] == size].sort_values("bytes"), size, _ROLES[i])
            for i, size in enumerate(sizes[: len(_ROLES)])
        )
        panels.append(
            Lines(
                str(op),
                lines,
                "message size",
                "latency",
                "bytes",
                "ns",
                x_log=True,
                y_log=True,
                y_reach=reach,
                caption="Line: median. Band: up to p99, or p95 below 100 iterations.",
            )
        )
    return tuple(panels)


def _top(frame: pd.DataFrame) -> pd.Series:
    return frame["p99_ns"].fillna(frame["p95_ns"]).fillna(frame["p50_ns"]).astype(float)


def _line(part: pd.DataFrame, ranks: int, role: Role) -> Line:
    middle = tuple(part["p50_ns"].astype(float))
    return Line(
        f"{ranks} ranks",
        role,
        tuple(part["bytes"].astype(float)),
        middle,
        middle,
        tuple(_top(part)),
        tuple(
            ", ".join(
                [f"n = {row.n}"]
                + [
                    f"{q} {format.quantity(value, 'ns')}"
                    for q, value in (("p95", row.p95_ns), ("p99", row.p99_ns))
                    if not pd.isna(value)
                ]
            )
            for row in part.itertuples()
        ),
    )


def _table(frame: pd.DataFrame) -> Table:
    labels = {
        "op": "operation",
        "group_size": "ranks",
        "bytes": "bytes",
        "n": "n",
        "min_ns": "least",
        "p50_ns": "p50",
        "p95_ns": "p95",
        "p99_ns": "p99",
        "max_ns": "most",
        "algbw_gbps": "bandwidth",
        "busbw_gbps": "bus bandwidth",
    }
    caption = "p95 needs 20 iterations and p99 100."
    return table("Latency and bus bandwidth", frame, ROWS, labels, caption=caption)
