"""``tracekit report``: one HTML file over one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import _shared


def report(
    runs: Annotated[
        list[str],
        typer.Argument(help=_shared.RUN_HELP, metavar="RUN..."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path(
        "tracekit-report.html"
    ),
    step_regex: _shared.StepRegex = None,
    comm_pattern: _shared.CommPattern = None,
    workers: _shared.Workers = None,
) -> None:
    """Write one self-contained HTML report; it needs no network to be read.

    Example: tracekit report my-run -o my-run.html
    """
    from tracekit.io.output import write_text
    from tracekit.report import html

    sections = [
        _shared.section(_shared.load(path, step_regex, comm_pattern, workers)) for path in runs
    ]
    with _shared.status("writing the report"):
        write_text(output, html.render(sections))
    typer.echo(f"report: {output}")
