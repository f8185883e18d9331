"""What several commands do: load a run with progress, and ask every question of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.core.errors import UsageError

if TYPE_CHECKING:
    from tracekit.core.run import Run
    from tracekit.report.html import Sheet
    from tracekit.report.section import Section

RUN_HELP = "Run folder, folder of traces, one file, an archive, a glob or a URL."
Json = Annotated[bool, typer.Option("--json", help="JSON instead of tables.")]
Markdown = Annotated[bool, typer.Option("--md", help="Markdown, for a comment on a pull request.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write to a file instead.")]
StepRegex = Annotated[
    str | None,
    typer.Option(help="Annotations that mark steps, instead of the profiler's own markers."),
]
CommPattern = Annotated[
    list[str] | None,
    typer.Option(help="Further kernel names (regular expression) that are communication."),
]

Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Files to read at once.", show_default="the cores there are"),
]


@contextmanager
def status(title: str) -> Iterator[Callable[[str], None]]:
    """A line on the error stream that says what is going on; gone when it is over.

    Yields a function that adds a detail to the title. The line is redrawn only
    when it changes: a thread that draws could hold a lock while ranks are forked.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(detail: str) -> None:
            live.update(Text(f"{title}: {detail}" if detail else title), refresh=True)

        show("")
        yield show


def load(
    target: str,
    step_regex: str | None = None,
    comm_patterns: Sequence[str] | None = None,
    workers: int | None = None,
) -> Run:
    """Load a run, with a bar of the bytes read."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from tracekit.io.load import load as load_run
    from tracekit.io.reading import available_cores

    columns = (TextColumn("reading {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        return load_run(
            target,
            step_regex=step_regex,
            comm_patterns=comm_patterns or (),
            workers=workers or available_cores(),
            on_progress=lambda done, total, name: bar.update(
                task, completed=done, total=total, description=name[-40:]
            ),
        )


def json_text(document: object) -> str:
    """A document as indented JSON."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def write(text: str, output: Path | None) -> None:
    """To a file, or to standard output."""
    if output is None:
        typer.echo(text, nl=False)
    else:
        from tracekit.io.output import write_text

        write_text(output, text)


def section(run: Run, names: Sequence[str] | None = None) -> Section:
    """The run with the outcomes of the named analyses, or of all.

    Raises:
        UsageError: one of the names is no analysis.
    """
    from tracekit.analysis._contract import analyzers, apply
    from tracekit.report.section import Section

    found = analyzers()
    for name in names or ():
        if name not in found:
            raise UsageError(f"no analysis {name!r}; there are: {', '.join(found)}")
    chosen = [item for name, item in found.items() if not names or name in names]
    return Section(run, tuple(apply(item, run) for item in chosen))


def bench_sheet(path: Path) -> Sheet:
    """The page of a benchmark's file.

    Raises:
        InputError: it cannot be read.
    """
    import msgspec

    from tracekit.dashboards import _bench
    from tracekit.io import baseline

    found = baseline.read(path)
    rows = msgspec.to_builtins(found.rows)
    sheet: Sheet = _bench.sheet(path.stem, rows, found.conditions)
    return sheet
