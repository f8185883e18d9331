"""Page over several runs: their steps side by side, in time and in shares."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.analysis.breakdown import ANALYZER, BreakdownResult
from tracekit.report import format
from tracekit.report.blocks import Answer, Bars, Block, Series, Table, TableColumn
from tracekit.report.page import RunsPage
from tracekit.report.section import Section, plural

from ._parts import counted, parts

SCALARS = {column.name: column.description for column in ANALYZER.scalars}
COLUMNS = (
    TableColumn("run", "", numeric=False),
    TableColumn("ranks", "count"),
    TableColumn("step", "ns", SCALARS["step_p50_ns"]),
    TableColumn("compute", "ratio", SCALARS["compute_ratio"]),
    TableColumn("exposed communication", "ratio", SCALARS["exposed_comm_ratio"]),
    TableColumn("exposed copies", "ratio", SCALARS["exposed_memory_ratio"]),
    TableColumn("idle or unattributed", "ratio", SCALARS["idle_ratio"]),
    TableColumn("most expensive finding", "", numeric=False, prose=True),
)


def build(sections: Sequence[Section]) -> Sequence[Block]:
    """Shortest and longest step, shares of a step run by run, the numbers."""
    measured = [(section, found) for section in sections if (found := _result(section))]
    blocks: list[Block] = [_answer(sections, measured)]
    if measured:
        blocks.append(_shares(measured))
    blocks.append(Table("Runs", COLUMNS, tuple(map(_row, sections))))
    return blocks


def _result(section: Section) -> BreakdownResult | None:
    return section.result(BreakdownResult)


def _answer(
    sections: Sequence[Section], measured: Sequence[tuple[Section, BreakdownResult]]
) -> Answer:
    detail = "Different jobs are shown beside each other, not compared: see their conditions."
    if not measured:
        return Answer("None of these runs has a step whose time can be broken down.", detail)
    steps = sorted((found.step_p50_ns, section.run.name) for section, found in measured)
    (short, first), (long, last) = steps[0], steps[-1]
    sentence = f"{plural(len(sections), 'run')}: a step takes {format.quantity(short, 'ns')}"
    if len(steps) > 1:
        sentence += f" in {format.shorten(first)} and {format.quantity(long, 'ns')}"
    return Answer(f"{sentence} in {format.shorten(last)}.", detail)


def _shares(measured: Sequence[tuple[Section, BreakdownResult]]) -> Bars:
    """Parts of a step as shares, one bar for each run."""
    names = tuple(section.run.name for section, _ in measured)
    series = []
    # The parts are the same for all runs but for the word for the last one.
    for index, part in enumerate(parts(measured[0][0])):
        label = "idle or unattributed" if index == len(parts(measured[0][0])) - 1 else part.label
        values = tuple(_share(found, index, section) for section, found in measured)
        if any(values):
            series.append(Series(label, part.role, values))
    return Bars(
        "Where a step goes, run by run",
        names,
        tuple(series),
        "ratio",
        "share of step time",
        horizontal=True,
    )


def _share(result: BreakdownResult, part: int, section: Section) -> float:
    frame = counted(result, section)
    total = float(frame["step_ns"].sum())
    return float(parts(section)[part].values(frame).sum()) / total if total else 0.0


def _row(section: Section) -> tuple[object, ...]:
    found = _result(section)
    top = section.findings[0].title if section.findings else None
    numbers: tuple[object, ...] = (None,) * 5
    if found is not None:
        numbers = (
            found.step_p50_ns,
            found.compute_ratio,
            found.exposed_comm_ratio,
            found.exposed_memory_ratio,
            found.idle_ratio,
        )
    return (section.run.name, len(section.run.traces), *numbers, top)


PAGE = RunsPage("Side by side", "runs", build, order=0)
