"""``tracekit demo``: the whole way on this machine, from three profiled jobs to one report."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import _shared
from tracekit.core.finding import Finding, rank_findings

if TYPE_CHECKING:
    from tracekit.report.section import Section

# One story each: tensor, pipeline and expert parallelism, the last with a fault to find.
JOBS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("tp", 2, ()),
    ("pp", 2, ()),
    ("ep", 2, ("hot-expert:0:0.45",)),
)
REPORT = "report.html"
TOP = 3


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the runs and the report.")
    ] = Path("tracekit-demo"),
) -> None:
    """Profile small TP, PP and EP jobs here, analyse them and write one report.

    Takes about a minute on two cores. Example: tracekit demo -o my-demo
    """
    from tracekit.io.output import write_text
    from tracekit.report import html

    sections = []
    for number, (workload, degree, faults) in enumerate(JOBS, start=1):
        path = _profile(workload, degree, faults, output, f"{number}/{len(JOBS)} {workload}")
        sections.append(_shared.section(_shared.load(str(path))))
    with _shared.status("writing the report"):
        write_text(output / REPORT, html.render(sections))
    _conclude(sections, output)


def _profile(workload: str, degree: int, faults: tuple[str, ...], output: Path, title: str) -> Path:
    """Profile one job into its run folder, replacing what an earlier demo left there."""
    from tracekit.profile import launch
    from tracekit.profile.plan import Options

    options = Options(workload=workload, degrees={workload: degree}, faults=faults)
    with _shared.status(title) as show:
        return launch.run(
            options,
            output / f"{workload}{degree}",
            force=True,
            on_progress=show,
        )


def _conclude(sections: Sequence[Section], output: Path) -> None:
    """The most expensive findings and where everything is."""
    found = {id(finding): section.run.name for section in sections for finding in section.findings}
    ranked = rank_findings(finding for section in sections for finding in section.findings)
    typer.echo("The most expensive findings:")
    for number, finding in enumerate(ranked[:TOP], start=1):
        typer.echo(_finding(number, found[id(finding)], finding))
    typer.echo(f"Runs:   {', '.join(str(output / section.run.name) for section in sections)}")
    typer.echo(f"Report: {(output / REPORT).resolve()}")


def _finding(number: int, run: str, finding: Finding) -> str:
    from tracekit.report.format import quantity

    lost = quantity(finding.lost_ns_per_step, "ns")
    lines = [f"{number}. {run}: {finding.title} ({lost} per step)", f"Try: {finding.advice}."]
    return "\n".join(
        textwrap.fill(line, 98, initial_indent="" if place == 0 else "   ", subsequent_indent="   ")
        for place, line in enumerate(lines)
    )
