"""Page of the breakdown: where the time of a step goes, by rank and by step."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.analysis.breakdown import ANALYZER, BreakdownResult
from tracekit.report import format
from tracekit.report.blocks import Answer, Block, Folded, Key, Table, TableColumn, table
from tracekit.report.page import Page
from tracekit.report.section import Section, plural

from ._parts import by_rank, counted, lost, per_rank, whole

SCHEMA = ANALYZER.tables["per_step"]


def build(result: BreakdownResult, section: Section) -> Sequence[Block]:
    """Answer, the step and its ranks as pictures, ranks as a table, every step folded."""
    several = len(section.run.traces) > 1
    return (
        _answer(result, section),
        whole(result, section),
        *((by_rank(result, section, horizontal=True),) if several else ()),
        _ranks(result, section),
        Folded("Every rank and step", (_steps(section, result),)),
    )


def _answer(result: BreakdownResult, section: Section) -> Answer:
    compute = format.quantity(result.compute_ratio, "ratio")
    rest = "unattributed" if section.on_cpu else "idle"
    named = (
        (result.exposed_comm_ratio, "communication that nothing hides"),
        (result.exposed_memory_ratio, "memory copies that nothing hides"),
        (result.idle_ratio, rest),
    )
    others = [f"{format.quantity(value, 'ratio')} {what}" for value, what in named if value]
    sentence = f"{compute} of a step is compute"
    if others:
        joined = " and ".join(filter(None, (", ".join(others[:-1]), others[-1])))
        sentence += f"; {joined}"
    used = counted(result, section)
    steps = plural(used["step"].nunique(), "step")
    detail = f"Mean over {plural(used['rank'].nunique(), 'rank')} and {steps}"
    if section.on_cpu:
        detail += (
            ". Unattributed is what the main thread does between operators and transfers:"
            " Python, the framework, waiting"
        )
    return Answer(sentence + ".", detail + ".")


def _ranks(result: BreakdownResult, section: Section) -> Table:
    means = per_rank(result, section)
    rest = "unattributed" if section.on_cpu else "idle"
    labels = {
        "step_ns": "step",
        "compute_ns": "compute",
        "hidden_comm_ns": "of it hiding communication",
        "exposed_comm_ns": "exposed communication",
        **({"wait_ns": "of it waiting"} if means["wait_ns"].any() else {}),
        "exposed_memory_ns": "exposed copies",
        "idle_ns": rest,
    }
    lost_ns = lost(means, section)
    share = lost_ns / means["step_ns"]
    columns = (
        TableColumn("rank", "", numeric=False),
        *(TableColumn(label, "ns", _meaning(name)) for name, label in labels.items()),
        TableColumn("share lost", "ratio", "Share of the step that is certainly lost."),
    )
    rows = tuple(
        (
            section.rank_name(int(rank)),
            *map(float, means.loc[rank, list(labels)]),
            float(share[rank]),
        )
        for rank in means.index
    )
    keys = tuple(Key(rank=int(rank)) for rank in means.index)
    title = "Ranks, mean per counted step"
    return Table(title, columns, rows, worst=len(columns) - 1, keys=keys)


def _meaning(name: str) -> str:
    if name == "wait_ns":
        return "Inside a collective that another rank had not entered, no compute running."
    return SCHEMA[name].description


def _steps(section: Section, result: BreakdownResult) -> Table:
    rest = "unattributed" if section.on_cpu else "idle"
    several = result.per_step.groupby("rank")["device"].nunique().max() > 1
    labels = {
        "rank": "rank",
        **({"device": "device"} if several else {}),
        "step": "step",
        "counted": "counted",
        "step_ns": "length",
        "compute_ns": "compute",
        "hidden_comm_ns": "of it hiding communication",
        "exposed_comm_ns": "exposed communication",
        "exposed_memory_ns": "exposed copies",
        "idle_ns": rest,
    }
    return table("", result.per_step, SCHEMA, labels, worst="step_ns")


PAGE = Page("Breakdown", ANALYZER, build, order=10)
