"""``tracekit compare``: is the new run slower than the base, beyond the noise?"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import _shared
from tracekit.core.errors import MissingDataError, UsageError

if TYPE_CHECKING:
    from tracekit.analysis._compare import CompareResult, Subject

REGRESSED = 10


class FailOn(str, Enum):
    """What ends the command with an exit code of its own."""

    REGRESSION = "regression"


Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD",
        help="A condition, or a group of them, that differs on purpose: software.torch or "
        "parallel; may be repeated.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Compare over unequal conditions, and say so.")
]


def compare(
    base: Annotated[str, typer.Argument(help=_shared.RUN_HELP, metavar="BASE")],
    new: Annotated[str, typer.Argument(help="The run that is compared with it.", metavar="NEW")],
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help=f"Exit with code {REGRESSED} when a metric regressed."),
    ] = None,
    force: Force = False,
    allow: Allow = None,
    repeat: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="A further run of the base; how far it lies from it is noise. May be repeated.",
        ),
    ] = None,
    json: _shared.Json = False,
    md: _shared.Markdown = False,
    output: _shared.Output = None,
    step_regex: _shared.StepRegex = None,
    comm_pattern: _shared.CommPattern = None,
    workers: _shared.Workers = None,
) -> None:
    """Compare two runs of one job: conditions first, then a verdict for each part of a step.

    Unequal conditions end with code 4, named. `tracekit report BASE NEW` shows the same.

    Example: tracekit compare main-run my-run --fail-on regression
    """
    from tracekit.analysis import _compare

    if json and md:
        raise UsageError("--json and --md exclude each other")

    def subject(path: str) -> Subject:
        section = _shared.section(_shared.load(path, step_regex, comm_pattern, workers))
        return _compare.Subject(section.run, section.outcomes)

    result = _compare.compare(
        subject(base),
        subject(new),
        force=force,
        allowed=allow or (),
        repeats=[subject(path) for path in repeat or ()],
    )
    _shared.write(_text(result, json=json, md=md), output)
    _conclude(result, fail_on)


def _text(result: CompareResult, *, json: bool, md: bool) -> str:
    if json:
        from tracekit.report.several import compare_document

        return _shared.json_text(compare_document(result))
    from tracekit.dashboards.compare import blocks
    from tracekit.report import markdown, text

    return markdown.render_blocks(blocks(result)) if md else text.render_blocks(blocks(result))


def _conclude(result: CompareResult, fail_on: FailOn | None) -> None:
    """The exit code, and on the error stream why."""
    if not result.comparable and not result.forced:
        fields = ", ".join(item.field for item in result.obstacles)
        raise MissingDataError(
            f"not comparable: {fields} must be equal; --allow what differs on purpose"
        )
    if fail_on is FailOn.REGRESSION and result.regressions:
        names = ", ".join(result.regressions)
        typer.echo(f"tracekit: regression in {names}", err=True)
        raise typer.Exit(REGRESSED)
