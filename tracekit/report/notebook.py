"""Runs and results as notebooks show them: answer, bars and tables, in HTML without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
import pandas as pd

from tracekit.analysis._contract import Analyzer, analyzers, apply
from tracekit.core.run import Run
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Beside,
    Block,
    FindingsTable,
    Role,
    Table,
    TableColumn,
    table,
)
from tracekit.report.page import DASHBOARDS, pages
from tracekit.report.section import Section, plural

MAX_ROWS = 10
MAX_BARS = 16


@dataclass(frozen=True, slots=True)
class _Bars:
    title: str
    rows: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]  # label, (role, %, hover)
    legend: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    heads: tuple[tuple[str, str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def run_html(run: Run) -> str:
    """A run: its overview."""
    section = Section(run, tuple(apply(item, run) for item in analyzers().values()))
    overview = pages()[0].blocks(section) or ()
    head = " · ".join((run.name, *section.headline))
    return _render([("text", format.plain(head)), *_shown(overview)])


def result_html(analyzer: Analyzer[Any], result: Any) -> str:
    """A result: its question, its numbers, its findings and its tables."""
    blocks: list[tuple[str, Any]] = [
        ("answer", Answer(analyzer.question, f"{type(result).__name__} of tracekit"))
    ]
    if analyzer.scalars:
        columns = tuple(TableColumn(name, "", numeric=False) for name in ("number", "value", "is"))
        rows = tuple(
            (column.name, _value(getattr(result, column.name), column.unit), column.description)
            for column in analyzer.scalars
        )
        blocks.append(("table", _table(Table("Numbers", columns, rows), len(rows))))
    for finding in result.findings:
        lost = format.quantity(finding.lost_ns_per_step, "ns")
        text = f"{finding.title} ({lost} per step). Try: {finding.advice}."
        blocks.append(("text", format.plain(text)))
    for name, schema in analyzer.tables.items():
        frame: pd.DataFrame = getattr(result, name)
        title = f".{name}: {plural(len(frame), 'row')}"
        whole = table(title, frame, schema, {column: column for column in schema.names})
        blocks.append(("table", _table(whole, MAX_ROWS)))
    return _render(blocks)


def enrich(analyzer: Analyzer[Any]) -> None:
    """Let notebooks show results of this analyzer.

    Analyzers are pure and know nothing of pages, so the method that notebooks look for
    is added to their result class here, once.
    """
    kind = analyzer.result
    if "_repr_html_" not in vars(kind):
        kind._repr_html_ = lambda result: result_html(analyzer, result)


def _value(value: object, unit: str) -> str:
    if value is None or isinstance(value, (str, tuple, list)):
        return format.shorten(format.plain(str(value)), 80) if value is not None else "—"
    return format.quantity(value, unit)


def _shown(blocks: Sequence[Block]) -> Iterator[tuple[str, Any]]:
    """Blocks in the few kinds that the template knows."""
    for block in blocks:
        if isinstance(block, Beside):
            yield from _shown((*block.wide, *block.narrow))
        elif isinstance(block, Answer):
            yield "answer", Answer(format.plain(block.sentence), format.plain(block.detail))
        elif isinstance(block, Bars):
            yield "bars", _bars(block)
        elif isinstance(block, FindingsTable):
            yield "table", _findings(block)
        elif isinstance(block, Table):
            yield "table", _table(block, MAX_ROWS)


def _bars(block: Bars) -> _Bars:
    totals = [sum(v or 0.0 for v in bar) for bar in zip(*(s.values for s in block.series))]  # noqa: B905
    longest = max(totals, default=0.0) or 1.0
    rows = []
    for place, label in enumerate(block.labels[:MAX_BARS]):
        parts = tuple(
            (
                series.role.value,
                f"{100 * (series.values[place] or 0.0) / longest:.2f}",
                f"{series.label}: {format.quantity(series.values[place], block.unit)}",
            )
            for series in block.series
        )
        rows.append((format.plain(format.shorten(label, 24)), parts))
    single = len(block.labels) == 1
    legend = tuple(
        (
            series.role.value,
            series.label + (f" {format.quantity(series.values[0], block.unit)}" if single else ""),
        )
        for series in block.series
    )
    return _Bars(block.title, tuple(rows), legend)


def _table(block: Table, limit: int) -> _Table:
    rows, note = block.shown(limit)
    scales = [
        format.scale(column.unit, (row[i] for row in block.rows))
        for i, column in enumerate(block.columns)
    ]
    return _Table(
        format.plain(block.title),
        tuple((c.label, s.suffix, c.numeric) for c, s in zip(block.columns, scales, strict=True)),
        tuple(
            tuple(format.shorten(s.cell(v), 100) for v, s in zip(row, scales, strict=True))
            for row in rows
        ),
        tuple(text for text in (note, block.caption) if text),
    )


def _findings(block: FindingsTable) -> _Table:
    units = block.units()
    heads = (("finding", "", False), ("lost per step", "", True), ("who", "", False))
    rows = tuple(
        (
            format.plain(item.finding.title),
            units.quantity(item.finding.lost_ns_per_step),
            format.plain(item.who),
        )
        for item in block.items
    )
    return _Table(block.title, heads, rows, ())


def _render(blocks: Sequence[tuple[str, Any]]) -> str:
    theme = resources.files(f"{DASHBOARDS}.theme")
    style = theme.joinpath("style.css").read_text(encoding="utf-8")
    roles = [role.value for role in Role]
    found = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", style[: style.index("@media")]))
    colours = " ".join(f"--{role}: {found[role]};" for role in roles)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(theme.joinpath("notebook.html").read_text(encoding="utf-8"))
    return template.render(blocks=blocks, roles=roles, colours=colours)
