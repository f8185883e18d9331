"""Page over two runs of one job: what became slower, what faster, beyond the noise."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis import _compare
from tracekit.analysis._compare import (
    DETAILS,
    PER_RANK,
    VERDICTS,
    CompareResult,
    Subject,
    Verdict,
    compare,
)
from tracekit.core.conditions import Difference, Status
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Block,
    Folded,
    Key,
    Table,
    TableColumn,
    Whisker,
    Whiskers,
)
from tracekit.report.page import RunsPage, method_of
from tracekit.report.section import Section

NAMED = 3  # as many unequal conditions or metrics are named in a sentence
DETAIL_ROWS = 12


def build(sections: Sequence[Section]) -> Sequence[Block]:
    """Every run against the first one; of many runs only those that can be compared with it."""
    if len(sections) < 2:
        return ()
    base = Subject(sections[0].run, sections[0].outcomes)
    found = [compare(base, Subject(item.run, item.outcomes)) for item in sections[1:]]
    if len(found) > 1:
        found = [result for result in found if result.comparable]
    shown = [block for result in found for block in blocks(result)]
    return (*shown, method_of(_compare, (VERDICTS, PER_RANK, DETAILS))) if shown else ()


def blocks(result: CompareResult) -> Sequence[Block]:
    """One comparison: answer, differences with their noise, numbers, conditions."""
    shown: list[Block] = [answer(result)]
    if result.obstacles:
        shown.append(_conditions("Conditions that must be equal and are not", result.obstacles))
    if len(result.verdicts) and (result.comparable or result.forced):
        shown += [_whiskers(result), _verdicts(result)]
        shown += _ranks(result)
        shown += _details(result)
    rest = [item for item in result.conditions if item.status is not Status.DIFFERS]
    if rest:
        shown.append(_conditions("Other conditions that are not known to be equal", rest))
    return shown


def answer(result: CompareResult) -> Answer:
    """The verdict in a sentence; of unequal conditions, which."""
    if not result.comparable and not result.forced:
        named = _named([f"{d.field} is {d.base} and {d.new}" for d in result.obstacles])
        return Answer(
            f"{result.new} and {result.base} are not comparable: {named}.",
            "A difference in what must be held is no measure of anything else. Where it is on "
            "purpose, allow it (--allow FIELD); --force compares nevertheless and says so.",
        )
    if result.verdicts.empty:
        return Answer("Neither run has a step that can be compared.", "")
    mark = "Under unequal conditions (forced): " if result.forced else ""
    return Answer(mark + _sentence(result), _basis(result))


def _sentence(result: CompareResult) -> str:
    row = result.verdicts.set_index("metric").iloc[0]
    units = format.scale("ns", (row["base_ns"], row["new_ns"]))
    amount = units.quantity(abs(row["difference_ns"]))
    share = format.quantity(abs(row["change_ratio"]), "ratio")
    now = f"a step takes {units.quantity(row['new_ns'])} instead of {units.cell(row['base_ns'])}"
    verdict = Verdict(row["verdict"])
    if verdict is Verdict.REGRESSION:
        text = f"{result.new} is slower than {result.base}: {now}, {amount} ({share}) more."
    elif verdict is Verdict.IMPROVEMENT:
        text = f"{result.new} is faster than {result.base}: {now}, {amount} ({share}) less."
    elif verdict is Verdict.EQUIVALENT:
        text = f"{result.new} and {result.base} are equal within the noise: {now}."
    else:
        text = f"Whether {result.new} is slower than {result.base} cannot be said: {now}, "
        text += f"{amount} ({share}) {'more' if row['difference_ns'] > 0 else 'less'}, "
        text += "but the steps scatter as much."
    parts = result.verdicts.iloc[1:]
    worse, better = (
        [str(label) for label in parts["label"][parts["verdict"] == kind.value]]
        for kind in (Verdict.REGRESSION, Verdict.IMPROVEMENT)
    )
    for words, found in (("Longer", worse), ("Shorter", better)):
        if found:
            text += f" {words}: {_named(found)}."
    return text


def _named(words: Sequence[str]) -> str:
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _basis(result: CompareResult) -> str:
    row = result.verdicts.iloc[0]
    units = format.scale("ns", (row["low_ns"], row["high_ns"], row["noise_ns"]))
    facts = [
        f"Difference of medians, 95 % interval {units.cell(row['low_ns'])} to "
        f"{units.quantity(row['high_ns'])}",
        f"noise ±{units.quantity(row['noise_ns'])}",
        f"{row['n_base']} and {row['n_new']} counted steps",
    ]
    if min(row["n_base"], row["n_new"]) < _compare.LEAST_STEPS:
        facts.append(f"a verdict needs {_compare.LEAST_STEPS} of each")
    unknown = sum(item.status is Status.UNKNOWN for item in result.conditions)
    if unknown:
        facts.append(f"{unknown} conditions are not known for both")
    return " · ".join(facts)


def _whiskers(result: CompareResult) -> Whiskers:
    return Whiskers(
        "Differences and their 95 % intervals",
        tuple(
            Whisker(
                str(row.label),
                float(row.difference_ns),
                float(row.low_ns),
                float(row.high_ns),
                float(row.noise_ns),
                str(row.verdict),
            )
            for row in result.verdicts.itertuples()
        ),
        "ns",
        "time per step, new minus base",
        "Right of zero is slower. The grey band is the noise: a difference inside it, or one "
        "whose interval crosses zero, is no verdict.",
    )


def _verdicts(result: CompareResult) -> Table:
    names = {
        "label": "time per step",
        "base_ns": "base",
        "new_ns": "new",
        "difference_ns": "difference",
        "low_ns": "from",
        "high_ns": "to",
        "change_ratio": "change",
        "noise_ns": "noise ±",
        "verdict": "verdict",
    }
    columns = tuple(
        TableColumn(label, VERDICTS[name].unit, VERDICTS[name].description, name.endswith(_NUMBERS))
        for name, label in names.items()
    )
    rows = tuple(zip(*(result.verdicts[name].tolist() for name in names), strict=True))
    return Table("Base and new", columns, rows)


_NUMBERS = ("_ns", "_ratio")


def _ranks(result: CompareResult) -> list[Block]:
    """The change of each rank, the parts of the step side by side."""
    frame = result.per_rank
    if frame["rank"].nunique() < 2:
        return []
    labels = dict(zip(result.verdicts["metric"], result.verdicts["label"], strict=True))
    grid = frame.pivot(index="rank", columns="metric", values="difference_ns")
    kept = [name for name in labels if name in grid.columns]
    columns = (
        TableColumn("rank", "", numeric=False),
        *(TableColumn(labels[name], "ns", "Difference of medians, new - base.") for name in kept),
    )
    rows = tuple(
        (f"rank {rank}", *(float(value) for value in grid.loc[rank, kept])) for rank in grid.index
    )
    keys = tuple(Key(rank=int(rank)) for rank in grid.index)
    place = 1 if kept else None
    return [Table("Difference rank by rank", columns, rows, worst=place, keys=keys)]


def _details(result: CompareResult) -> list[Block]:
    """Kernels and collectives that changed most; differences without a verdict."""
    shown: list[Block] = []
    titles = {
        "kernel": "Kernels that changed most, time per step and rank",
        "collective": "Collectives whose median transfer changed most",
    }
    for kind, title in titles.items():
        frame = result.details[result.details["kind"] == kind].head(DETAIL_ROWS)
        if frame.empty:
            continue
        columns = (
            TableColumn(kind, "", numeric=False),
            *(TableColumn(name, "ns") for name in ("base", "new", "difference")),
        )
        values = frame[["what", "base_ns", "new_ns", "difference_ns"]].astype(object)
        rows = tuple(
            tuple(None if pd.isna(value) else value for value in row)
            for row in values.itertuples(index=False)
        )
        shown.append(Folded(title, (Table("", columns, rows, "No verdict: shown as measured."),)))
    return shown


def _conditions(title: str, found: Sequence[Difference]) -> Table:
    columns = (
        *(TableColumn(name, "", numeric=False) for name in ("condition", "base", "new")),
        TableColumn("meaning", "", numeric=False),
    )
    words = {
        Status.DIFFERS: "must be equal",
        Status.UNKNOWN: "not known for both",
        Status.ALLOWED: "differs on purpose",
        Status.NOTED: "noted",
    }
    rows = tuple((d.field, d.base, d.new, words[d.status]) for d in found)
    return Table(title, columns, rows)


PAGE = RunsPage("Compare", "compare", build, order=10)
