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
    from tracekit.report.section import Section

StepRegex = Annotated[
    str | None,
    typer.Option(help="Annotations that mark steps, instead of the profiler's own markers."),
]
CommPattern = Annotated[
    list[str] | None,
    typer.Option(help="Further kernel names (regular expression) that are communication."),
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


def load(path: Path, step_regex: str | None, comm_patterns: Sequence[str] | None) -> Run:
    """Load a run, naming each file on the way."""
    from tracekit.io.load import load as load_run

    with status("reading") as show:
        return load_run(
            path,
            step_regex=step_regex,
            comm_patterns=comm_patterns or (),
            on_file=lambda file: show(file.name),
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
