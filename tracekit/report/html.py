"""The report as one HTML file that needs nothing else: no network, no server, no fonts.

A Content-Security-Policy in the file allows exactly the scripts and the style
it was written with, by hash, and no connection to anywhere. Plotly is packed,
which keeps the file at two of its five megabytes; the page's script unpacks it
and the policy still checks its hash.

Source of plotly.js: the file inside the ``plotly`` Python package.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from typing import Any

import jinja2
import markupsafe
import plotly.offline

from tracekit.report import figures, format, lanes
from tracekit.report.blocks import (
    Bars,
    Block,
    Cell,
    FoundItem,
    Heatmap,
    Key,
    Table,
    TableColumn,
    Timeline,
)
from tracekit.report.page import DASHBOARDS, AnyPage, RunsPage, pages, runs_pages
from tracekit.report.section import Section, plural

MAX_ROWS = 200
# The style element that Plotly creates is empty; it fills it through the object model.
EMPTY_STYLE = ""
PLOTLY_FILE = f"plotly-{plotly.offline.get_plotlyjs_version()}.min.js"
CDN = f"https://cdn.plot.ly/{PLOTLY_FILE}"
# One script, so one hash; in pieces, so that each can be read.
SCRIPTS = (
    "numbers.js", "selection.js", "charts.js", "timeline.js", "tables.js", "app.js",
)  # fmt: skip


class PlotlyJs(str, Enum):
    """Where a report takes plotly.js from."""

    INLINE = "inline"  # from the file itself, which needs nothing else
    DIRECTORY = "directory"  # from PLOTLY_FILE beside it, which many reports can share
    CDN = "cdn"  # from the network, checked by hash


@dataclass(frozen=True, slots=True)
class Sheet:
    """A page about something that is no run, such as a benchmark of the links."""

    name: str
    headline: tuple[str, ...]
    title: str
    slug: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class _View:
    """One page of one run, ready for the template."""

    id: str
    slug: str
    title: str
    available: bool
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class _RunView:
    """One run, ready for the template."""

    id: str
    name: str
    headline: tuple[str, ...]
    views: tuple[_View, ...]
    diagnostics: int
    ranks: tuple[int, ...] = ()
    choices: str = ""  # JSON: what a selection may name

    @property
    def links(self) -> dict[str, str]:
        """Page name -> id of its element."""
        return {view.slug: view.id for view in self.views}


@dataclass(frozen=True, slots=True)
class _ShownTable:
    """A table with every cell formatted."""

    title: str
    heads: tuple[tuple[TableColumn, str], ...]  # column, unit
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[Key, ...]
    notes: tuple[str, ...]


def render(
    sections: Sequence[Section],
    *,
    extra: Sequence[AnyPage | RunsPage] = (),
    sheets: Sequence[Sheet] = (),
    plotlyjs: PlotlyJs = PlotlyJs.INLINE,
) -> str:
    """One HTML document over one or several runs, self-contained unless asked otherwise.

    The same sections give the same bytes. Write it as UTF-8.

    Args:
        sections: the runs, in the order of the report.
        extra: pages beside those that are installed.
        sheets: what is no run, shown after the runs.
        plotlyjs: where the charts' library comes from; for a directory, write
            ``plotly_source()`` as ``PLOTLY_FILE`` beside the document.
    """
    own = pages(extra)
    sections = _distinct(sections)
    runs = tuple(_run(section, i, len(sections) > 1, own) for i, section in enumerate(sections))
    others = tuple(_sheet(item, i, bool(runs) or len(sheets) > 1) for i, item in enumerate(sheets))
    names = " · ".join(run.name for run in (*runs, *others))
    if len(runs) > 1:
        runs = (_all_runs(sections, runs_pages(extra)), *runs)
    runs = (*runs, *others)
    charts = _Charts()
    style, script = _theme("style.css"), _script()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "plain": format.plain,
        "short": format.shorten,
        "nobreak": format.nobreak,
        "oneline": lambda text: " ".join(text.split()),
        "percent": lambda value: format.quantity(value, "ratio"),
    }
    environment.tests["block"] = lambda value, name: type(value).__name__ == name
    template = environment.from_string(_theme("page.html"))
    document = template.render(
        title=names,
        runs=runs,
        policy=_policy(style, script, plotlyjs),
        style=_raw(style),
        script=_raw(script),
        plotly=_raw(_plotly_element(plotlyjs)),
        placeholders=_placeholders(),
        chart=charts.add,
        timeline=charts.timeline,
        target=_target,
        legend=_legend,
        ramp_top=_ramp_top,
        table=_table,
        fact=_fact,
    )
    return document.lstrip() + "\n"


def _distinct(sections: Sequence[Section]) -> tuple[Section, ...]:
    """The sections, runs of the same name told apart by a number."""
    names = [section.run.name for section in sections]
    seen: dict[str, int] = {}
    found = []
    for section in sections:
        name = section.run.name
        seen[name] = seen.get(name, 0) + 1
        if names.count(name) > 1:
            run = dataclasses.replace(section.run, name=f"{name} ({seen[name]})")
            section = Section(run, section.outcomes)
        found.append(section)
    return tuple(found)


class _Charts:
    """Numbers the charts of one document in the order in which they appear."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, block: figures.Chart) -> dict[str, Any]:
        """Id, height and JSON of the next chart."""
        figure = figures.figure(block)
        return self._numbered(figure, block.title)

    def timeline(self, block: Timeline) -> dict[str, Any]:
        """The same of a timeline, which the page's own script draws."""
        return self._numbered(lanes.lanes(block), block.title)

    def _numbered(self, figure: dict[str, Any], title: str) -> dict[str, Any]:
        self._count += 1
        return {
            "id": f"chart-{self._count}",
            "height": figure["height"],
            "json": _raw(script_json(figure)),
            "label": format.plain(title),
        }


def script_json(value: Any) -> str:
    """JSON that cannot end its script element, whatever the names in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _run(section: Section, index: int, several: bool, own: Sequence[AnyPage]) -> _RunView:
    prefix = f"run{index + 1}-" if several else ""
    views = tuple(_views(section, prefix, own))
    return _RunView(
        id=f"run{index + 1}",
        name=section.run.name,
        headline=section.headline,
        views=views,
        diagnostics=len(section.run.diagnostics),
        ranks=section.run.ranks,
        choices=_raw(script_json(_choices(section))),
    )


def _sheet(sheet: Sheet, index: int, several: bool) -> _RunView:
    """A sheet in the place of a run that has one page."""
    prefix = f"sheet{index + 1}-" if several else ""
    view = _View(prefix + sheet.slug, sheet.slug, sheet.title, True, sheet.blocks)
    return _RunView(f"sheet{index + 1}", sheet.name, sheet.headline, (view,), 0)


def _choices(section: Section) -> dict[str, Any]:
    """What the selection of one run may name: ranks and sets of them, steps, mesh axes."""
    axes = {group.axis for group in section.run.topology.groups if group.axis}
    return {
        "ranks": list(section.run.ranks),
        "sets": [[format.plain(name), list(ranks)] for name, ranks in section.rank_sets],
        "steps": list(section.step_numbers),
        "axes": sorted(axes),
    }


def _target(item: FoundItem, links: Mapping[str, str], ranks: Sequence[int]) -> str:
    """The address of a finding: its page, with its ranks chosen unless they are all."""
    page = links[item.finding.analysis]
    chosen = [rank for rank in item.finding.ranks if rank in ranks]
    if not chosen or len(chosen) == len(ranks):
        return page
    return f"{page}?ranks={','.join(map(str, chosen))}"


def _all_runs(sections: Sequence[Section], own: Sequence[RunsPage]) -> _RunView:
    """The runs side by side, in the place of a run of its own."""
    built = ((page, tuple(page.build(sections))) for page in own)
    views = tuple(
        _View(page.slug, page.slug, page.title, True, blocks) for page, blocks in built if blocks
    )
    return _RunView("all", "All runs", (plural(len(sections), "run"),), views, 0)


def _views(section: Section, prefix: str, own: Sequence[AnyPage]) -> Iterator[_View]:
    for page in own:
        blocks = page.blocks(section)
        if blocks is not None:
            yield _view(page, section, tuple(blocks), prefix)


def _view(page: AnyPage, section: Section, blocks: tuple[Block, ...], prefix: str) -> _View:
    return _View(prefix + page.slug, page.slug, page.title, page.available(section), blocks)


def _legend(block: Bars) -> tuple[tuple[str, str, str], ...]:
    """Role, label and, for a single bar, value of each series."""
    if len(block.labels) > 1:
        return tuple((s.role.value, s.label, "") for s in block.series)
    units = format.scale(block.unit, (s.values[0] for s in block.series))
    total = sum(s.values[0] or 0.0 for s in block.series)
    return tuple(
        (s.role.value, s.label, f"{units.quantity(s.values[0])}, {_share(s.values[0], total)}")
        for s in block.series
    )


def _ramp_top(block: Heatmap) -> str:
    """The highest value of a heat map, for the end of its colour ramp."""
    return format.quantity(block.top(), block.unit)


def _share(value: float | None, total: float) -> str:
    return format.quantity(value / total if value is not None and total else None, "ratio")


def _table(block: Table) -> _ShownTable:
    places, note = block.places(MAX_ROWS)
    if note:
        note += " All rows are in the JSON and CSV output."
    scales = [
        format.scale(column.unit, (row[i] for row in block.rows))
        for i, column in enumerate(block.columns)
    ]
    return _ShownTable(
        title=block.title,
        heads=tuple((c, s.suffix) for c, s in zip(block.columns, scales, strict=True)),
        rows=tuple(
            tuple(s.cell(value) for value, s in zip(block.rows[i], scales, strict=True))
            for i in places
        ),
        keys=tuple(block.keys[i] for i in places) if block.keys else (),
        notes=tuple(text for text in (note, block.caption) if text),
    )


def _fact(value: Cell) -> str:
    """A value of a list of facts, as text."""
    return format.scale("", ()).cell(value)


def _policy(style: str, script: str, plotlyjs: PlotlyJs) -> str:
    """The Content-Security-Policy: hashes of what the file holds, and nothing else."""
    library = {
        PlotlyJs.INLINE: _hash(plotly_source()),
        PlotlyJs.DIRECTORY: "'self'",  # a file beside it, which has no hash that browsers check
        PlotlyJs.CDN: CDN,
    }[plotlyjs]
    scripts = f"{_hash(script)} {library}"
    styles = " ".join((_hash(style), _hash(EMPTY_STYLE)))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; "
        "img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _raw(text: str) -> markupsafe.Markup:
    """Text that the template must not escape: the theme's own, or made by script_json."""
    return markupsafe.Markup(text)


def _script() -> str:
    """The page's script: its parts in one function, so that nothing of them is global."""
    parts = "\n".join(_theme(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def _theme(name: str) -> str:
    path = resources.files(f"{DASHBOARDS}.theme").joinpath(name)
    # Without the last line break the template adds none of its own to what is hashed.
    return path.read_text(encoding="utf-8").rstrip("\n")


def _plotly_element(plotlyjs: PlotlyJs) -> str:
    """What loads plotly.js."""
    if plotlyjs is PlotlyJs.INLINE:
        return f'<script type="application/octet-stream" id="plotly">{_packed_plotly()}</script>'
    if plotlyjs is PlotlyJs.DIRECTORY:
        return f'<script src="{PLOTLY_FILE}" defer></script>'
    check = _hash(plotly_source()).strip("'")
    return f'<script src="{CDN}" integrity="{check}" crossorigin="anonymous" defer></script>'


@functools.cache
def plotly_source() -> str:
    """The text of plotly.js, as it comes with the plotly package."""
    source: str = plotly.offline.get_plotlyjs()
    return source


@functools.cache
def _packed_plotly() -> str:
    packed = gzip.compress(plotly_source().encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode()


def _placeholders() -> tuple[str, ...]:
    """Ids under which Plotly's map module would insert a style of its own.

    It looks for its element first; finding one, it leaves the style out, which
    the policy would refuse anyway, with a message on the console.
    """
    found = re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly_source())
    return tuple(sorted(set(found)))
