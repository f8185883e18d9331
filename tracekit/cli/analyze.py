"""``tracekit analyze``: the numbers of a run, as tables or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import _shared
from tracekit.core.errors import MissingDataError, UsageError


def analyze(
    run: Annotated[
        str | None,
        typer.Argument(help=_shared.RUN_HELP, metavar="RUN"),
    ] = None,
    analyses: Annotated[
        list[str] | None, typer.Argument(help="Which analyses; all by default.", metavar="ANALYSIS")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write to a file instead.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the analyses and end.")] = False,
    step_regex: _shared.StepRegex = None,
    comm_pattern: _shared.CommPattern = None,
    workers: _shared.Workers = None,
) -> None:
    """Analyse a run: where each step's time goes, on every rank.

    Example: tracekit analyze my-run overlap --json -o overlap.json
    """
    if list_:
        _list()
        return
    if run is None:
        raise UsageError("name a run folder, a folder of trace files or a trace file")
    loaded = _shared.load(run, step_regex, comm_pattern, workers)
    section = _shared.section(loaded, analyses)
    if json:
        from tracekit.report.json import document

        text = _shared.json_text(document(section))
    else:
        from tracekit.report.text import render

        text = render(section)
    _shared.write(text, output)
    # Asked for by name and impossible here is an error; otherwise the output says so.
    for outcome in section.outcomes if analyses else ():
        if outcome.reason is not None:
            raise MissingDataError(f"{outcome.analyzer.name}: {outcome.reason}")


def _list() -> None:
    from tracekit.analysis._contract import analyzers

    found = analyzers()
    width = max(map(len, found))
    for name, item in found.items():
        typer.echo(f"{name:<{width}}  {item.question}")
