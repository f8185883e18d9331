"""``tracekit check``: what is in these files, and what can be asked of them."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli import _shared


def check(
    run: Annotated[
        str,
        typer.Argument(help=_shared.RUN_HELP, metavar="RUN"),
    ],
    json: _shared.Json = False,
    output: _shared.Output = None,
    step_regex: _shared.StepRegex = None,
    comm_pattern: _shared.CommPattern = None,
    workers: _shared.Workers = None,
) -> None:
    """Check trace files: what they hold, what was repaired, and which analyses are possible.

    Example: tracekit check traces-from-a-friend/
    """
    from tracekit.io.kineto import native_available
    from tracekit.report import check as checks
    from tracekit.report import text

    section = _shared.section(_shared.load(run, step_regex, comm_pattern, workers))
    name = "native" if native_available() else "Python"
    if json:
        _shared.write(_shared.json_text(checks.document(section, name)), output)
    else:
        _shared.write(text.render_blocks(checks.build(section, name)), output)
