"""Blocks as GitHub-flavoured Markdown, short enough for a comment on a pull request.

The same words as in the report: answer, what to fix first, numbers; long tables are
folded. Names come from traces, so nothing in them may act as markup, mention a
person or call for an image.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Beside,
    Block,
    Cell,
    FindingsTable,
    Folded,
    FoundItem,
    Grid,
    Table,
    TableColumn,
    Text,
)
from tracekit.report.page import pages
from tracekit.report.section import Section

MOST = 60_000  # characters; GitHub takes 65,536 in a comment
MAX_ROWS = 12
CELL_LENGTH = 80
_SPECIAL = re.compile(r"([\\`*_\[\]|~<>&$]|:(?=\w)|(?<=:)/(?=/))")
# Mentions and references are made of the rendered text, where only an element parts it.
_REFERENCE = re.compile(r"@|#(?=\d)")
_APART = "<!-- -->"


def render(section: Section) -> str:
    """The report of one run: the overview open, further pages folded."""
    parts = [f"## {escape(section.run.name)}", escape(" · ".join(section.headline))]
    for number, page in enumerate(pages()):
        lines = list(_page(page.blocks(section) or ()))
        if not lines:
            continue
        body = "\n\n".join(lines)
        parts.append(body if number == 0 else _folded(page.title, body))
    return bounded(parts)


def render_blocks(blocks: Iterable[Block]) -> str:
    """Blocks alone, as of a comparison."""
    return bounded(list(_page(blocks)))


def escape(text: str) -> str:
    """A name as literal text: no markup, no mention, no link that would be made of it."""
    literal = _SPECIAL.sub(r"\\\1", format.plain(text)).replace("www.", "www\\.")
    return _REFERENCE.sub(lambda match: match[0] + _APART, literal)


def bounded(parts: Sequence[str]) -> str:
    """The parts that fit, and a line about those that do not."""
    kept: list[str] = []
    size = 0
    for part in parts:
        size += len(part.encode()) + 2
        if size > MOST:
            kept.append(f"_{len(parts) - len(kept)} further parts do not fit in a comment._")
            break
        kept.append(part)
    return "\n\n".join(kept) + "\n"


def _page(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Beside):
            yield from _page((*block.wide, *block.narrow))
        elif isinstance(block, Grid):
            yield from _page(block.blocks)
        elif isinstance(block, Folded):
            if any(isinstance(item, Table) for item in block.blocks):
                body = "\n\n".join(_page(block.blocks))
                yield _folded(block.title, body)
        else:
            yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Answer):
        yield f"**{escape(block.sentence)}**"
        if block.detail:
            yield f"<sub>{escape(block.detail)}</sub>"
    elif isinstance(block, Text):
        yield from (escape(" ".join(part.split())) for part in block.text.split("\n\n"))
    elif isinstance(block, FindingsTable):
        yield _findings(block)
    elif isinstance(block, Bars) and len(block.labels) == 1:
        yield _parts(block)
    elif isinstance(block, Table):
        yield _table(block)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n\n{body}\n\n</details>"


def _findings(block: FindingsTable) -> str:
    if not block.items:
        return f"**{escape(block.title)}**: nothing that was measured stands out."
    units = block.units()
    head = ("finding", "lost per step", "of step", "who", "confidence", "try")
    rows = [_finding(item, units) for item in block.items]
    more = f"\n\n{block.more} more, smaller, in the report." if block.more else ""
    numeric = (False, True, True, False, False, False)
    return f"**{escape(block.title)}**\n\n" + _grid(head, numeric, rows) + more


def _finding(item: FoundItem, units: format.Scale) -> tuple[str, ...]:
    finding = item.finding
    return (
        escape(finding.title),
        units.quantity(finding.lost_ns_per_step),
        format.quantity(finding.lost_ratio, "ratio"),
        escape(item.who),
        escape(f"{finding.confidence.value}: {finding.evidence}"),
        escape(finding.advice),
    )


def _parts(block: Bars) -> str:
    values = [series.values[0] for series in block.series]
    units = format.scale(block.unit, values)
    total = sum(value or 0.0 for value in values)
    rows = [
        (
            escape(series.label),
            units.quantity(value),
            format.quantity((value or 0.0) / total if total else None, "ratio"),
        )
        for series, value in zip(block.series, values, strict=True)
    ]
    return _grid((escape(block.title), block.value_axis, "share"), (False, True, True), rows)


def _table(block: Table) -> str:
    rows, note = block.shown(MAX_ROWS)
    title = f"**{escape(block.title)}**\n\n" if block.title else ""
    if not rows:
        return f"{title}none"
    scales = [
        format.scale(column.unit, (row[i] for row in block.rows))
        for i, column in enumerate(block.columns)
    ]
    head = tuple(_label(c, s) for c, s in zip(block.columns, scales, strict=True))
    numeric = tuple(column.numeric for column in block.columns)
    body = [tuple(_cell(v, s) for v, s in zip(row, scales, strict=True)) for row in rows]
    notes = [escape(text) for text in (note, block.caption) if text]
    return title + "\n\n".join((_grid(head, numeric, body), *notes))


def _label(column: TableColumn, units: format.Scale) -> str:
    return escape(f"{column.label} ({units.suffix})" if units.suffix else column.label)


def _cell(value: Cell, units: format.Scale) -> str:
    return escape(format.shorten(units.cell(value), CELL_LENGTH))


def _grid(head: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---:" if right else "---" for right in numeric]
    lines = [head, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
