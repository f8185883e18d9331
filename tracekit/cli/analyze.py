"""``tracekit analyze``: the numbers of a run, as tables or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import _shared
from tracekit.core.errors import MissingDataError, UsageError

if TYPE_CHECKING:
    from tracekit.report.section import Section


def analyze(
    run: Annotated[
        str | None,
        typer.Argument(help=_shared.RUN_HELP, metavar="RUN"),
    ] = None,
    analyses: Annotated[
        list[str] | None, typer.Argument(help="Which analyses; all by default.", metavar="ANALYSIS")
    ] = None,
    json: _shared.Json = False,
    md: _shared.Markdown = False,
    csv: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every table to DIR as CSV.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every table to DIR as Parquet.")
    ] = None,
    output: _shared.Output = None,
    list_: Annotated[bool, typer.Option("--list", help="List the analyses and end.")] = False,
    step_regex: _shared.StepRegex = None,
    comm_pattern: _shared.CommPattern = None,
    workers: _shared.Workers = None,
) -> None:
    """Analyse a run: where each step's time goes, on every rank.

    With --csv or --parquet alone, the tables are not printed as well.

    Example: tracekit analyze my-run overlap --json -o overlap.json
    """
    if list_:
        _list()
        return
    if run is None:
        raise UsageError("name a run folder, a folder of trace files or a trace file")
    if json and md:
        raise UsageError("--json and --md exclude each other")
    section = _shared.section(_shared.load(run, step_regex, comm_pattern, workers), analyses)
    _export(section, csv, parquet)
    if json or md or output or not (csv or parquet):
        _shared.write(_text(section, json=json, md=md), output)
    # Asked for by name and impossible here is an error; otherwise the output says so.
    for outcome in section.outcomes if analyses else ():
        if outcome.reason is not None:
            raise MissingDataError(f"{outcome.analyzer.name}: {outcome.reason}")


def _text(section: Section, *, json: bool, md: bool) -> str:
    if json:
        from tracekit.report.json import document

        return _shared.json_text(document(section))
    if md:
        from tracekit.report import markdown

        return markdown.render(section)
    from tracekit.report import text

    return text.render(section)


def _export(section: Section, csv: Path | None, parquet: Path | None) -> None:
    from tracekit.report import export

    for folder, write in ((csv, export.write_csv), (parquet, export.write_parquet)):
        if folder is not None:
            files = write(section, folder)
            typer.echo(f"wrote {len(files)} tables to {folder}", err=True)


def _list() -> None:
    from tracekit.analysis._contract import analyzers

    found = analyzers()
    width = max(map(len, found))
    for name, item in found.items():
        typer.echo(f"{name:<{width}}  {item.question}")
