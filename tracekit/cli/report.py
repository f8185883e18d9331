"""``tracekit report``: one HTML file over one or several runs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import _shared


class Plotly(str, Enum):
    """Where plotly.js is; the names of ``report.html.PlotlyJs``, which takes long to import."""

    INLINE = "inline"
    DIRECTORY = "directory"
    CDN = "cdn"


RUNS_HELP = f"{_shared.RUN_HELP} A file of tracekit bench gets a page of its own."


def report(
    runs: Annotated[
        list[str],
        typer.Argument(help=RUNS_HELP, metavar="RUN..."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path(
        "tracekit-report.html"
    ),
    page: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.py", help="A page of your own, see docs/dashboards.md; may be repeated."
        ),
    ] = None,
    plotlyjs: Annotated[
        Plotly,
        typer.Option(
            help="Where the charts' library is: in the file, beside it for many reports to "
            "share, or on the network."
        ),
    ] = Plotly.INLINE,
    step_regex: _shared.StepRegex = None,
    comm_pattern: _shared.CommPattern = None,
    workers: _shared.Workers = None,
) -> None:
    """Write one self-contained HTML report; it needs no network to be read.

    Example: tracekit report my-run -o my-run.html
    """
    from tracekit.io import baseline
    from tracekit.io.output import write_text
    from tracekit.report import html
    from tracekit.report.page import page_from

    extra = [page_from(path) for path in page or ()]
    benches = [path for path in runs if baseline.is_baseline(Path(path))]
    sheets = [_shared.bench_sheet(Path(path)) for path in benches]
    sections = [
        _shared.section(_shared.load(path, step_regex, comm_pattern, workers))
        for path in runs
        if path not in benches
    ]
    with _shared.status("writing the report"):
        kind = html.PlotlyJs(plotlyjs.value)
        write_text(output, html.render(sections, extra=extra, sheets=sheets, plotlyjs=kind))
        if kind is html.PlotlyJs.DIRECTORY:
            write_text(output.parent / html.PLOTLY_FILE, html.plotly_source())
    typer.echo(f"report: {output}")
