"""The Python face of tracekit: what scripts and notebooks call."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.analysis._contract import Outcome, analyzers, apply
from tracekit.core import run as core
from tracekit.core.errors import UsageError

if TYPE_CHECKING:
    from tracekit.analysis._compare import CompareResult
    from tracekit.analysis._scaling import ScalingResult


@dataclasses.dataclass(frozen=True, eq=False)
class Run(core.Run):
    """A loaded run; every analyzer is a method: ``run.overlap().per_step``."""

    def __getattr__(self, name: str) -> Callable[[], Any]:
        # Analyzers are found, not listed: a new one needs no line here.
        found = {} if name.startswith("_") else analyzers()
        if name not in found:
            raise AttributeError(f"a run has no {name!r}; analyses: {', '.join(found)}")
        return lambda: analyze(self, name)

    def _repr_html_(self) -> str:
        from tracekit.report.notebook import run_html

        return run_html(self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *analyzers()})


def load(
    target: str | os.PathLike[str],
    *,
    step_regex: str | None = None,
    comm_patterns: Sequence[str] = (),
    workers: int | None = None,
) -> Run:
    """Load a run folder, a folder of traces, a file, an archive, a glob or a URL.

    Args:
        target: what to load.
        step_regex: annotations that mark steps, instead of the profiler's own.
        comm_patterns: further kernel names (regular expressions) that are communication.
        workers: how many files to read at once; by default the cores there are, or 1
            without the native tokenizer, where more take processes of their own.

    Raises:
        InputError: nothing there can be read as a trace, or the files contradict each other.
        UsageError: a pattern is not a regular expression.
    """
    from tracekit.io.load import load as load_run

    run = load_run(target, step_regex=step_regex, comm_patterns=comm_patterns, workers=workers)
    return Run(**{item.name: getattr(run, item.name) for item in dataclasses.fields(run)})


def analyze(run: core.Run, name: str) -> Any:
    """The result of one analyzer, by name.

    Raises:
        UsageError: there is no such analyzer.
        MissingDataError: this run cannot answer it; the message says what to record.
    """
    found = analyzers()
    if name not in found:
        raise UsageError(f"no analysis {name!r}; there are: {', '.join(found)}")
    if "IPython" in sys.modules:  # a notebook shows results with their units
        from tracekit.report.notebook import enrich

        enrich(found[name])
    return found[name].analyze(run)


def report(runs: Sequence[core.Run], path: str | os.PathLike[str]) -> Path:
    """Write one self-contained HTML report over one or several runs; returns its path."""
    from tracekit.io.output import write_text
    from tracekit.report import html
    from tracekit.report.section import Section

    sections = [Section(run, _outcomes(run)) for run in runs]
    write_text(Path(path), html.render(sections))
    return Path(path)


def compare(
    base: core.Run,
    new: core.Run,
    *,
    force: bool = False,
    allowed: Sequence[str] = (),
    repeats: Sequence[core.Run] = (),
) -> CompareResult:
    """Compare two runs of one job; see ``tracekit compare``.

    Args:
        base: what is compared with.
        new: what is compared.
        force: give verdicts over unequal conditions, too.
        allowed: condition fields, or groups of them, that differ on purpose.
        repeats: further runs of the base, whose differences from it are noise.
    """
    from tracekit.analysis import _compare

    return _compare.compare(
        _compare.Subject(base, _outcomes(base)),
        _compare.Subject(new, _outcomes(new)),
        force=force,
        allowed=allowed,
        repeats=[_compare.Subject(run, _outcomes(run)) for run in repeats],
    )


def scaling(
    runs: Sequence[core.Run], *, force: bool = False, allowed: Sequence[str] = ()
) -> ScalingResult:
    """Speed-up and efficiency of one job over its world sizes; see ``tracekit scaling``.

    Raises:
        MissingDataError: fewer than two world sizes, or a run without steps.
    """
    from tracekit.analysis import _scaling

    members = [_scaling.Member(run, _outcomes(run)) for run in runs]
    return _scaling.scaling(members, force=force, allowed=allowed)


def _outcomes(run: core.Run) -> tuple[Outcome, ...]:
    return tuple(apply(item, run) for item in analyzers().values())
