"""``tracekit scaling``: how much of each added rank is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import _shared
from tracekit.cli.compare import Allow, Force
from tracekit.core.errors import MissingDataError, UsageError

if TYPE_CHECKING:
    from tracekit.analysis._scaling import ScalingResult


def scaling(
    runs: Annotated[list[str], typer.Argument(help=_shared.RUN_HELP, metavar="RUN...")],
    force: Force = False,
    allow: Allow = None,
    json: _shared.Json = False,
    md: _shared.Markdown = False,
    output: _shared.Output = None,
    step_regex: _shared.StepRegex = None,
    comm_pattern: _shared.CommPattern = None,
    workers: _shared.Workers = None,
) -> None:
    """Speed-up and efficiency of one job over its world sizes, all other conditions held.

    Unequal conditions end with code 4, named. `tracekit report RUN...` shows the same.

    Example: tracekit scaling run-2 run-4 run-8
    """
    from tracekit.analysis import _scaling

    if json and md:
        raise UsageError("--json and --md exclude each other")
    members = []
    for path in runs:
        section = _shared.section(_shared.load(path, step_regex, comm_pattern, workers))
        members.append(_scaling.Member(section.run, section.outcomes))
    result = _scaling.scaling(members, force=force, allowed=allow or ())
    _shared.write(_text(result, json=json, md=md), output)
    if not result.comparable and not result.forced:
        fields = ", ".join(dict.fromkeys(item.field for _, item in result.obstacles))
        raise MissingDataError(
            f"not comparable: {fields} must be equal; --allow what differs on purpose"
        )


def _text(result: ScalingResult, *, json: bool, md: bool) -> str:
    if json:
        from tracekit.report.several import scaling_document

        return _shared.json_text(scaling_document(result))
    from tracekit.dashboards.scaling import blocks
    from tracekit.report import markdown, text

    return markdown.render_blocks(blocks(result)) if md else text.render_blocks(blocks(result))
