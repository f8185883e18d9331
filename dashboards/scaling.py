"""Page over runs of one job at several world sizes: speed-up, efficiency, where it goes."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis import _scaling
from tracekit.analysis._scaling import PER_RUN, Member, ScalingResult, scaling
from tracekit.core.errors import MissingDataError
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Beside,
    Block,
    Line,
    Lines,
    Role,
    Series,
    Table,
    TableColumn,
)
from tracekit.report.page import RunsPage, method_of
from tracekit.report.section import Section

NAMED = 3
SHARES = (
    ("compute_ratio", "compute", Role.COMPUTE),
    ("exposed_comm_ratio", "exposed communication", Role.TRANSFER),
    ("idle_ratio", "idle or unattributed", Role.IDLE),
)


def build(sections: Sequence[Section]) -> Sequence[Block]:
    """Nothing, unless the runs are one job at several world sizes."""
    try:
        result = scaling([Member(section.run, section.outcomes) for section in sections])
    except MissingDataError:
        return ()
    if not result.comparable:
        return ()
    return (*blocks(result), method_of(_scaling, (PER_RUN,)))


def blocks(result: ScalingResult) -> Sequence[Block]:
    """Answer, efficiency beside the shares of a step, the numbers, unequal conditions."""
    shown: list[Block] = [answer(result)]
    if result.obstacles:
        shown.append(_obstacles(result))
    if result.comparable or result.forced:
        shown.append(Beside((_efficiency(result),), (_shares(result),)))
        shown.append(_numbers(result))
    return shown


def answer(result: ScalingResult) -> Answer:
    """What the largest run makes of its ranks."""
    if not result.comparable and not result.forced:
        named = [f"{d.field} is {d.base} and {d.new} in {run}" for run, d in result.obstacles]
        more = len(named) - NAMED
        rest = f" and {more} more" if more > 0 else ""
        return Answer(
            f"These runs are not one job at several sizes: {', '.join(named[:NAMED])}{rest}.",
            "Allow what differs on purpose (--allow FIELD); --force compares nevertheless.",
        )
    first, last = result.per_run.iloc[0], result.per_run.iloc[-1]
    low, high = (format.quantity(last[name], "ratio") for name in ("low_ratio", "high_ratio"))
    mark = "Under unequal conditions (forced): " if result.forced else ""
    if result.kind == "assumed strong":
        mark += "If every size does the same work: "
    sentence = (
        f"{mark}{last['world_size']} ranks do {format.significant(last['speedup'])} times the "
        f"work of {first['world_size']} in the same time: an efficiency of "
        f"{format.quantity(last['efficiency_ratio'], 'ratio')} (95 % interval {low} to {high})."
    )
    return Answer(sentence, f"{_kind(result)} · {_cause(first, last)}")


def _kind(result: ScalingResult) -> str:
    return {
        "strong": "Strong scaling: the same batch for all sizes",
        "weak": "Weak scaling: the batch grows with the ranks",
        "mixed": "The batch differs from size to size; throughput is compared",
        "assumed strong": "The batch is not recorded: the same work is assumed for all sizes",
    }[result.kind]


def _cause(first: pd.Series, last: pd.Series) -> str:
    """The share of a step that grew most."""
    lost = ("exposed_comm_ratio", "idle_ratio", "bubble_ratio", "straggler_ratio")
    words = ("exposed communication", "idle time", "pipeline bubbles", "stragglers")
    grown = [
        (float(last[name]) - float(first[name]), name, word)
        for name, word in zip(lost, words, strict=True)
        if not pd.isna(last[name]) and not pd.isna(first[name])
    ]
    if not grown or max(grown)[0] <= 0:
        return "no lost share of a step grows with the ranks"
    _, name, word = max(grown)
    before, after = (format.quantity(row[name], "ratio") for row in (first, last))
    return f"{word} grows most, from {before} to {after} of a step"


def _efficiency(result: ScalingResult) -> Lines:
    frame = result.per_run
    size = tuple(frame["world_size"].astype(float))
    measured = Line(
        "efficiency",
        Role.COMPUTE,
        size,
        tuple(frame["efficiency_ratio"].astype(float)),
        tuple(frame["low_ratio"].astype(float)),
        tuple(frame["high_ratio"].astype(float)),
        tuple(str(name) for name in frame["run"]),
    )
    ideal = Line("ideal", Role.TIME, (size[0], size[-1]), (1.0, 1.0), dashed=True)
    return Lines(
        "Efficiency over world size",
        (measured, ideal),
        "ranks",
        "efficiency",
        "count",
        "ratio",
        x_ticks=tuple(sorted(set(size))),
        caption="The band is the 95 % bootstrap interval over steps.",
    )


def _shares(result: ScalingResult) -> Bars:
    frame = result.per_run
    series = tuple(
        Series(label, role, tuple(None if pd.isna(v) else float(v) for v in frame[name]))
        for name, label, role in SHARES
    )
    names = tuple(
        f"{size} ranks, {run}" for size, run in zip(frame["world_size"], frame["run"], strict=True)
    )
    return Bars(
        "Shares of a step",
        names,
        series,
        "ratio",
        "share of step time",
        "ranks",
        ticks=tuple(str(size) for size in frame["world_size"]),
    )


def _numbers(result: ScalingResult) -> Table:
    labels = {
        "run": "run",
        "world_size": "ranks",
        "mesh": "parallelism",
        "step_ns": "step",
        "n": "steps",
        "speedup": "speed-up",
        "efficiency_ratio": "efficiency",
        "low_ratio": "from",
        "high_ratio": "to",
        "tokens_per_second_per_rank": "tokens per second and rank",
        "exposed_comm_ratio": "exposed communication",
        "bubble_ratio": "bubbles",
        "straggler_ratio": "stragglers",
    }
    frame = result.per_run
    kept = {k: v for k, v in labels.items() if not frame[k].isna().all()}
    columns = tuple(
        TableColumn(
            label, PER_RUN[name].unit, PER_RUN[name].description, PER_RUN[name].dtype != "str"
        )
        for name, label in kept.items()
    )
    rows = tuple(zip(*(frame[name].tolist() for name in kept), strict=True))
    return Table("Runs by size", columns, rows)


def _obstacles(result: ScalingResult) -> Table:
    columns = tuple(
        TableColumn(name, "", numeric=False) for name in ("run", "condition", "smallest", "this")
    )
    rows = tuple((run, d.field, d.base, d.new) for run, d in result.obstacles)
    return Table("Conditions that must be equal and are not", columns, rows)


PAGE = RunsPage("Scaling", "scaling", build, order=20)
