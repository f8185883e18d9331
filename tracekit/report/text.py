"""The report for a terminal: the same pages, blocks and words, at 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Beside,
    Block,
    Cell,
    FindingsTable,
    FoundItem,
    Table,
    TableColumn,
    Text,
)
from tracekit.report.page import AnyPage, pages
from tracekit.report.section import Section

WIDTH = 100
MAX_ROWS = 8
INDENT = "  "
GAP = "  "
CELL_LENGTH = 120
LEAST_WIDTH = 12  # of a column of words


def render(section: Section) -> str:
    """The whole report of one run as plain text that ends with a line break."""
    parts = [_head(section)]
    seen: set[Block] = set()
    for page in pages():
        if not page.available(section):
            continue  # the first page says why, and what to record
        # Pages open one at a time in a browser; here they are read in a row, so say it once.
        blocks = [block for block in _flat(page.blocks(section) or ()) if block not in seen]
        seen.update(blocks)
        lines = _page(page, blocks)
        if lines:
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def render_blocks(blocks: Iterable[Block]) -> str:
    """Blocks alone, without pages, as plain text that ends with a line break."""
    shown = [lines for block in _flat(blocks) if (lines := _block(block))]
    return "\n".join(_joined(shown)) + "\n"


def _head(section: Section) -> str:
    return "\n".join(_wrap(" · ".join((section.run.name, *section.headline))))


def _flat(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks one after the other, as a terminal has no columns."""
    for block in blocks:
        if isinstance(block, Beside):
            yield from _flat((*block.wide, *block.narrow))
        else:
            yield block


def _page(page: AnyPage, blocks: Iterable[Block]) -> list[str]:
    shown = [lines for block in blocks if (lines := _block(block))]
    if not shown:
        return []
    title = page.title
    return [title, "-" * len(title), *_joined(shown)]


def _joined(groups: Sequence[Sequence[str]]) -> list[str]:
    """Groups of lines with an empty line between them."""
    lines: list[str] = []
    for group in groups:
        lines += ["", *group] if lines else group
    return lines


def _block(block: Block) -> list[str]:
    """Lines of one block; charts of many bars and folded blocks have none, a table says it."""
    if isinstance(block, Answer):
        return [*_wrap(block.sentence), *_wrap(block.detail)]
    if isinstance(block, Text):
        return [line for part in block.text.split("\n\n") for line in _wrap(part)]
    if isinstance(block, FindingsTable):
        return _findings(block)
    if isinstance(block, Bars) and len(block.labels) == 1:
        return _parts(block)
    if isinstance(block, Table):
        return _table(block)
    return []


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        format.plain(" ".join(text.split())),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
    )


def _findings(block: FindingsTable) -> list[str]:
    lines = [block.title]
    units = block.units()
    for number, item in enumerate(block.items, 1):
        lines += _finding(number, item, units)
    if not block.items:
        lines.append(INDENT + "No finding: nothing measured stands out.")
    if block.more:
        lines.append(f"{INDENT}{block.more} more, smaller, in the report and in --json.")
    return lines


def _finding(number: int, item: FoundItem, units: format.Scale) -> list[str]:
    finding = item.finding
    lost = units.quantity(finding.lost_ns_per_step)
    share = format.quantity(finding.lost_ratio, "ratio")
    hanging = " " * 5
    first, *rest = _wrap(finding.title, hanging) or [hanging]
    return [
        f"{number:3}. {first.strip()}",
        *rest,
        *_wrap(f"lost {lost} per step ({share}, {finding.severity}) · {item.who}", hanging),
        *_wrap(f"confidence {finding.confidence.value}: {finding.evidence}", hanging),
        *_wrap(f"try: {finding.advice}", hanging),
    ]


def _parts(block: Bars) -> list[str]:
    """A single stacked bar as a list of its parts, with their shares."""
    values = [series.values[0] for series in block.series]
    units = format.scale(block.unit, values)
    total = sum(value or 0.0 for value in values)
    rows = [
        (series.label, units.quantity(value), _share(value, total))
        for series, value in zip(block.series, values, strict=True)
    ]
    return [block.title, *_grid(rows, (False, True, True))]


def _share(value: float | None, total: float) -> str:
    return format.quantity(value / total, "ratio") if value is not None and total else ""


def _table(block: Table) -> list[str]:
    rows, note = block.shown(MAX_ROWS)
    if not rows:
        return [block.title, INDENT + "none"]
    columns = list(zip(*rows, strict=True))
    scales = [
        format.scale(column.unit, (row[i] for row in block.rows))
        for i, column in enumerate(block.columns)
    ]
    head = tuple(_label(c, s) for c, s in zip(block.columns, scales, strict=True))
    body = zip(
        *([_cell(value, s) for value in column] for column, s in zip(columns, scales, strict=True)),
        strict=True,
    )
    numeric = tuple(column.numeric for column in block.columns)
    cells = list(body)
    count = _fitting(block, cells, head)
    lines = [block.title, *_grid([row[:count] for row in cells], numeric[:count], head[:count])]
    left = [column.label for column in block.columns[count:]]
    more = f"In --json and --csv as well: {', '.join(left)}." if left else ""
    for text in (note, more, block.caption):
        lines += _wrap(text, INDENT)
    return lines


def _label(column: TableColumn, units: format.Scale) -> str:
    return f"{column.label} ({units.suffix})" if units.suffix else column.label


def _cell(value: Cell, units: format.Scale) -> str:
    return format.shorten(units.cell(value), CELL_LENGTH)


def _grid(
    rows: Sequence[Sequence[str]], numeric: Sequence[bool], head: Sequence[str] = ()
) -> list[str]:
    """Aligned columns, numbers to the right; heads and the widest words wrap to fit."""
    widths = _widths(rows, numeric, head)
    lines = []
    if head:
        wrapped = [textwrap.wrap(cell, width) for cell, width in zip(head, widths, strict=True)]
        height = max(map(len, wrapped))  # heads stand on the line above the numbers
        lines += _lines([[""] * (height - len(c)) + c for c in wrapped], widths, numeric)
    for row in rows:
        cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines += _lines(cells, widths, numeric)
    return lines


def _widths(
    rows: Sequence[Sequence[str]], numeric: Sequence[bool], head: Sequence[str]
) -> list[int]:
    """Column widths; the widest columns of words give way until the line fits."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for i, cell in enumerate(head):
        widths[i] = max(widths[i], *map(len, cell.split()), 1)
    words = [i for i, right in enumerate(numeric) if not right]
    while words and _line_width(widths) > WIDTH:
        widest = max(words, key=lambda i: widths[i])
        if widths[widest] <= LEAST_WIDTH:
            break
        widths[widest] -= 1
    return widths


def _line_width(widths: Sequence[int]) -> int:
    return len(INDENT) + sum(widths) + len(GAP) * (len(widths) - 1)


def _fitting(block: Table, rows: Sequence[Sequence[str]], head: Sequence[str]) -> int:
    """How many columns fit, when words are as narrow as they may be; the first ones."""
    numeric = [column.numeric for column in block.columns]
    for count in range(len(head), 1, -1):
        widths = _widths([row[:count] for row in rows], numeric[:count], head[:count])
        if _line_width(widths) <= WIDTH:
            return count
    return 1


def _lines(
    cells: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]
) -> list[str]:
    """One row, on as many lines as its tallest cell."""
    lines = []
    for n in range(max(map(len, cells), default=0)):
        line = [
            (cell[n] if n < len(cell) else "").rjust(width)
            if right
            else (cell[n] if n < len(cell) else "").ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        lines.append((INDENT + GAP.join(line)).rstrip())
    return lines
