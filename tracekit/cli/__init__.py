"""The command line: the only place that prints, reads argv and exits."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``tracekit`` command."""
    from tracekit.cli.app import run

    sys.exit(run(sys.argv[1:]))
