"""The ``tracekit`` command: its subcommands, and what an error looks like."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

import tracekit
from tracekit.cli.analyze import analyze
from tracekit.cli.bench import bench
from tracekit.cli.check import check
from tracekit.cli.compare import compare
from tracekit.cli.demo import demo
from tracekit.cli.profile import profile
from tracekit.cli.report import report
from tracekit.cli.scaling import scaling
from tracekit.cli.simulate import simulate
from tracekit.core.errors import TracekitError

INTERRUPTED = 130  # what shells report for a command ended by Ctrl-C

app = typer.Typer(
    name="tracekit",
    help="Where the time goes when a model is trained or served on many devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, profile, analyze, report, compare, scaling, check, simulate, bench):
    app.command(no_args_is_help=command not in (demo, bench, profile))(command)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"tracekit {tracekit.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: bool = typer.Option(
        False, "--version", help="Show the version.", callback=_version, is_eager=True
    ),
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code and never raises for a user's mistake."""
    try:
        code = app(args=list(arguments), standalone_mode=False)
    except TracekitError as error:
        return _fail(str(error), error.exit_code)
    except typer.Abort:
        return _fail("interrupted", INTERRUPTED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # `tracekit analyze RUN | head`: the reader has what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _click_errors() as error:
        return _fail(_usage(error), 2)
    return code if isinstance(code, int) else 0


def _click_errors() -> type[Exception]:
    """The usage error of the click that this typer was built on."""
    from typer import BadParameter

    return next(kind for kind in BadParameter.__mro__ if kind.__name__ == "ClickException")


def _usage(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context is not None else ""
    return message.rstrip(".") + hint


def _fail(message: str, code: int) -> int:
    typer.echo(f"tracekit: error: {message}", err=True)
    return code
