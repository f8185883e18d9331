"""First page: how long a step is and how steady, what is lost, to what, who, what to try."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from tracekit.analysis.breakdown import BreakdownResult
from tracekit.analysis.stragglers import StragglersResult
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Beside,
    Block,
    Copyable,
    FindingsTable,
    Folded,
    FoundItem,
    KeyValues,
    Role,
    Series,
    Table,
    TableColumn,
)
from tracekit.report.json import clean
from tracekit.report.page import RunPage, pages
from tracekit.report.section import Section, plural

from . import stragglers
from ._parts import by_rank, counted, cube, lost, parts, per_rank, whole

TOP_FINDINGS = 5
UNEVEN = 0.05  # mean and median of the step are both told when they differ by more
STANDS_OUT = 1.10  # a rank is named when it is this much above the median of the others
WORTH_NAMING = 0.01  # and when that is this much of the step


def build(section: Section) -> Sequence[Block]:
    """Verdict, where a step goes beside the steps themselves, what to fix first."""
    result = section.result(BreakdownResult)
    if result is None or result.per_step.empty:
        return (_no_answer(section), _findings(section), *_rest(section))
    culprit = _slowest(result, section)
    marked = _marked(section, culprit)
    picture: list[Block] = [whole(result, section)]
    if len(section.run.traces) > 1:
        picture.append(by_rank(result, section, horizontal=False, marked=marked, legend=False))
    steps = _steps(result, section)
    if len(steps.labels) > 1:
        picture = [Beside(tuple(picture), (steps, *_made_with(section)))]
    rest = _rest(section)
    return (_verdict(result, section, culprit), *picture, _findings(section), *rest)


def _made_with(section: Section) -> tuple[Block, ...]:
    """The conditions a reader asks for first; all of them are at the foot of the page."""
    facts = (
        ("model", ("workload", "model")),
        ("batch", ("batch", "global")),
        ("sequence", ("workload", "seq")),
        ("precision", ("precision", None)),
        ("torch", ("software", "torch")),
        ("recorded", ("when", None)),
    )
    found = [(label, _condition(section, *path)) for label, path in facts]
    known = tuple((label, _day(value)) for label, value in found if value is not None)
    return (KeyValues("Made with", known),) if known else ()


def _day(value: object) -> object:
    """ "2026-11-30 16:20" of a moment in full, anything else as it is."""
    moment = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d).*", str(value))
    return f"{moment[1]} {moment[2]}" if moment else value


def _condition(section: Section, group: str, field: str | None) -> object:
    value = section.run.conditions.get(group)
    if field is None:
        return value if isinstance(value, (str, int, float)) else None
    return value.get(field) if isinstance(value, Mapping) else None


def _rest(section: Section) -> tuple[Block, ...]:
    """What could not be analysed and how to record it; all conditions, to copy."""
    blocks: list[Block] = []
    missing: dict[str, list[str]] = {}
    titles = {page.slug: page.title for page in pages()}
    for item in section.outcomes:
        if item.reason:
            name = item.analyzer.name
            missing.setdefault(item.reason, []).append(titles.get(name, name))
    if missing:
        columns = (
            TableColumn("pages", "", numeric=False, prose=True),
            TableColumn("why, and what to record", "", numeric=False, prose=True),
        )
        rows = tuple((", ".join(names), reason) for reason, names in missing.items())
        blocks.append(Table("What could not be analysed", columns, rows))
    if section.run.conditions:
        text = json.dumps(clean(section.run.conditions), indent=2)
        blocks.append(Folded("All conditions, to copy", (Copyable("Conditions", text),)))
    return tuple(blocks)


def _no_answer(section: Section) -> Answer:
    outcome = section.outcome("breakdown")
    reason = outcome.reason if outcome is not None else None
    return Answer(
        "How long a step takes cannot be said for this run.",
        reason or "The breakdown was not among the analyses.",
    )


def _verdict(result: BreakdownResult, section: Section, culprit: int | None) -> Answer:
    frame = counted(result, section)
    lost_ns = float(lost(frame, section).mean())
    share = format.quantity(lost_ns / float(frame["step_ns"].mean()), "ratio")
    amount = format.quantity(lost_ns, "ns")
    if not lost_ns:
        loss = "none of it is known to be lost"
    elif _uneven(frame):
        loss = f"{share} of step time ({amount} per step) is lost, {_cause(frame, section)}"
    else:
        loss = f"{amount} of it ({share}) are lost, {_cause(frame, section)}"
    words = (f"{_length(frame)}; {loss}.", _who(result, section, culprit))
    return Answer(" ".join(filter(None, words)), _steady(result, section))


def _uneven(frame: pd.DataFrame) -> bool:
    """Whether a few long steps pull the mean away from the typical step."""
    mean, median = float(frame["step_ns"].mean()), float(frame["step_ns"].median())
    return abs(mean - median) > UNEVEN * median


def _length(frame: pd.DataFrame) -> str:
    """How long a step is; both averages where they tell different stories."""
    units = format.scale("ns", (frame["step_ns"].mean(),))
    median = units.quantity(frame["step_ns"].median())
    if not _uneven(frame):
        return f"A step takes {median}"
    return (
        f"A step takes {median} (median) but {units.quantity(frame['step_ns'].mean())} on average"
    )


def _cause(frame: pd.DataFrame, section: Section) -> str:
    """What most of the lost time is."""
    total = float(lost(frame, section).mean())
    causes = {Role.TRANSFER, Role.WAIT, Role.MEMORY} | (set() if section.on_cpu else {Role.IDLE})
    means = [(float(p.values(frame).mean()), p.label) for p in parts(section) if p.role in causes]
    value, label = max(means)
    if value > 0.995 * total:
        return f"all to {'idle time' if label == 'idle' else label}"
    return f"most to {'idle time' if label == 'idle' else label} ({format.quantity(value, 'ns')})"


def _above_others(values: pd.Series) -> tuple[int, float]:
    """The rank with the highest value, and its ratio to the median of the other ranks."""
    rank = values.idxmax()
    median = float(values.drop(rank).median())
    return int(rank), float(values[rank]) / median if median > 0 else math.inf


def _slowest(result: BreakdownResult, section: Section) -> int | None:
    """The rank that computes clearly longer than the others, if that matters to the step.

    None where the replay says with certainty that no rank does: it knows who waits for whom.
    """
    means = per_rank(result, section)
    compute = means["compute_ns"]
    if len(compute) < 2 or _cleared(section):
        return None
    rank, ratio = _above_others(compute)
    excess = float(compute[rank] - compute.drop(rank).median())
    matters = excess >= WORTH_NAMING * float(means["step_ns"].mean())
    return rank if ratio >= STANDS_OUT and matters else None


def _cleared(section: Section) -> bool:
    """Whether the replay found, with certainty, that no rank makes the others wait."""
    found = section.result(StragglersResult)
    return found is not None and found.clears_ranks


def _marked(section: Section, slowest: int | None) -> tuple[int, ...]:
    """Ranks to outline: the culprit of the stragglers, else the one that computes longest."""
    found = section.result(StragglersResult)
    if found is not None and found.culprit_ranks:
        return tuple(found.culprit_ranks)
    return () if slowest is None else (slowest,)


def _who(result: BreakdownResult, section: Section, culprit: int | None) -> str:
    """Who: the culprit, else the rank that computes longest, or loses most, or nobody."""
    means = per_rank(result, section)
    if len(means) < 2:
        return ""
    found = section.result(StragglersResult)
    if found is not None and found.culprit_kind != "none":
        return stragglers.sentence(found, section)
    if _cleared(section):
        return "No rank stands out."
    others = "the other rank" if len(means) == 2 else "the median of the others"
    if culprit is not None:
        _, ratio = _above_others(means["compute_ns"])
        more = "longer" if math.isinf(ratio) else f"{format.quantity(ratio - 1, 'ratio')} longer"
        return f"{_begin(section.rank_name(culprit))} computes {more} than {others}."
    lost_ns = lost(means, section)
    rank, ratio = _above_others(lost_ns)
    top = float(lost_ns[rank])
    if ratio >= STANDS_OUT and top >= WORTH_NAMING * float(means["step_ns"].mean()):
        name = _begin(section.rank_name(rank))
        return f"{name} loses most, {format.quantity(top, 'ns')}."
    return "No rank stands out."


def _begin(words: str) -> str:
    return words[:1].upper() + words[1:]


def _step_times(result: BreakdownResult) -> pd.DataFrame:
    """Per step: median length over ranks, and whether any rank counts it."""
    groups = result.per_step.groupby("step")
    return pd.DataFrame({"ns": groups["step_ns"].median(), "counted": groups["counted"].any()})


def _steady(result: BreakdownResult, section: Section) -> str:
    """How steady the steps are, and on how many that rests."""
    steps = _step_times(result)
    used = steps.loc[steps["counted"], "ns"]
    facts = [f"Median of {plural(len(used), 'step')}" if len(used) > 1 else "Only 1 step"]
    if len(used) > 1:
        low, high = float(used.min()), float(used.max())
        units = format.scale("ns", (high,))
        half = format.quantity((high - low) / 2 / float(used.median()), "ratio")
        facts[0] += f", from {units.cell(low)} to {units.quantity(high)} (±{half})"
    left_out = len(steps) - len(used)
    if left_out:
        facts.append(f"{plural(left_out, 'step')} left out: {_reasons(section)}")
    if section.on_cpu:
        facts.append("on CPU, time outside operators and transfers is unattributed, not lost")
    missing = section.run.missing_ranks
    if missing:
        facts.append(f"{plural(len(missing), 'rank')} missing")
    return " · ".join(facts)


def _reasons(section: Section) -> str:
    reasons = sorted(set(section.flagged_steps.values()))
    return " or ".join(reasons) or "not typical"


def _steps(result: BreakdownResult, section: Section) -> Bars:
    steps = _step_times(result)
    used = tuple(
        float(v) if c else None for v, c in zip(steps["ns"], steps["counted"], strict=True)
    )
    rest = tuple(
        None if c else float(v) for v, c in zip(steps["ns"], steps["counted"], strict=True)
    )
    series = [Series("step", Role.TIME, used)]
    if any(value is not None for value in rest):
        series.append(Series("left out of statistics", Role.FAINT, rest))
    labels = tuple(f"step {step}" for step in steps.index)
    frame = result.per_step
    lengths = [frame["step_ns"].where(frame["counted"])]
    if len(series) > 1:
        lengths.append(frame["step_ns"].where(~frame["counted"]))
    return Bars(
        "Step time (median over ranks)",
        labels,
        tuple(series),
        "ns",
        "time",
        "step number",
        ticks=tuple(str(step) for step in steps.index),
        cube=cube(frame, section, lengths, "step", "median"),
    )


def _findings(section: Section) -> FindingsTable:
    titles = {page.slug: page.title for page in pages()}
    found = section.findings
    items = tuple(
        FoundItem(item, section.who(item.ranks), titles.get(item.analysis, item.analysis))
        for item in found[:TOP_FINDINGS]
    )
    return FindingsTable("What to fix first", items, max(0, len(found) - TOP_FINDINGS))


PAGE = RunPage("Overview", "overview", build, order=0)
