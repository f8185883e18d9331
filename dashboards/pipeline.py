"""Page of the pipeline: how long stages stand idle and why, with the schedule as it ran."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tracekit.analysis.pipeline import ANALYZER, PipelineResult
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Bars,
    Block,
    Folded,
    Lane,
    Role,
    Series,
    Table,
    Timeline,
    TimelineView,
    table,
)
from tracekit.report.page import Page
from tracekit.report.section import Section, plural

SCHEMA = ANALYZER.tables["per_stage"]
ROLES = (
    (Role.FORWARD, "forward"),
    (Role.BACKWARD, "backward"),
    (Role.WEIGHT, "gradient of weights"),
    (Role.WAIT, "bubble"),
)
_PLACE = {"F": 0, "B": 1, "I": 1, "W": 2}
_BUBBLE = 3
CAUSES = (
    ("schedule_ns", "schedule", Role.COMPUTE),
    ("imbalance_ns", "unequal stages", Role.WAIT),
    ("p2p_ns", "transfers", Role.TRANSFER),
    ("jitter_ns", "the rest", Role.IDLE),
)
PIPELINES = 4  # that are drawn
SOURCES = {
    "markers": "Actions are known from the runner's markers",
    "torch names": "Actions are known from torch's own names, waits taken out",
    "inferred": "No marker names the actions: they were inferred from the order of transfers",
}


def build(result: PipelineResult, section: Section) -> Sequence[Block]:
    """Answer, the schedule as it ran, causes by stage, tables."""
    counted = _counted(result)
    blocks: list[Block] = [_answer(result, counted), *_schedules(result, section)]
    if not counted["schedule_ns"].isna().any():
        blocks.append(_causes(counted, section))
    blocks += [_stages(counted), _costs(result)]
    blocks.append(Folded("Every rank and step", (_rows(result),)))
    return blocks


def _counted(result: PipelineResult) -> pd.DataFrame:
    frame = result.per_stage
    return frame[frame["counted"]] if frame["counted"].any() else frame


def _answer(result: PipelineResult, counted: pd.DataFrame) -> Answer:
    bubble = format.quantity(result.bubble_ratio, "ratio")
    sentence = f"Stages stand idle {bubble} of the pipeline's time"
    if result.expected_bubble_ratio is not None:
        means = {name: float(counted[name].mean()) for name, _, _ in CAUSES}
        total = float(counted["step_ns"].mean())
        told = ", ".join(
            f"{format.quantity(means[name] / total, 'ratio')} {label}" for name, label, _ in CAUSES
        )
        sentence += f": {told}"
    facts = [f"{SOURCES[result.source]}"]
    name = result.schedule if result.recognised else f"{result.schedule} (order not recognised)"
    if result.microbatches is not None:
        facts.append(
            f"schedule {name}, {plural(result.microbatches, 'microbatch')}".replace(
                "microbatchs", "microbatches"
            )
        )
    if result.closed_form_ratio is not None:
        facts.append(
            f"by formula {format.quantity(result.closed_form_ratio, 'ratio')} with equal stages"
        )
    if result.p2p_latency_ns is not None:
        facts.append(f"a transfer takes {format.quantity(result.p2p_latency_ns, 'ns')}")
    if result.skipped_count:
        facts.append(f"{plural(result.skipped_count, 'step')} left out: actions are missing there")
    return Answer(sentence + ".", " · ".join(facts) + ".")


def _schedules(result: PipelineResult, section: Section) -> list[Block]:
    """The measured schedule of one step, pipeline by pipeline."""
    frame = result.actions
    numbers = list(dict.fromkeys(frame["pipeline"]))
    shown = numbers[:PIPELINES]
    names: dict[str, int] = {}
    views = tuple(
        _view(frame[frame["pipeline"] == number], section, names, len(numbers) > 1)
        for number in shown
    )
    caption = "Stages × time as measured. Drag to zoom, double click to reset."
    if len(numbers) > len(shown):
        caption += f" {len(shown)} of {len(numbers)} pipelines."
    return [Timeline("The schedule as it ran", views, ROLES, tuple(names), 0, caption)]


def _view(
    frame: pd.DataFrame, section: Section, names: dict[str, int], several: bool
) -> TimelineView:
    number, step = int(frame["pipeline"].iloc[0]), int(frame["step"].iloc[0])
    end = int((frame["start_ns"] + frame["length_ns"]).max())
    lanes = tuple(_lane(part, section, names, end) for _, part in frame.groupby("rank", sort=False))
    label = f"pipeline {number}, step {step}" if several else f"step {step}"
    return TimelineView(label, None if several else step, end, lanes)


def _lane(part: pd.DataFrame, section: Section, names: dict[str, int], end: int) -> Lane:
    """The actions of one rank, and its bubbles between them."""
    rows: list[tuple[int, int, int, str]] = []
    several = part["stage"].nunique() > 1
    at = 0
    for row in part.sort_values("start_ns", kind="stable").itertuples():
        if row.start_ns > at:
            rows.append((at, int(row.start_ns) - at, _BUBBLE, "bubble"))
        # A lane says its stage itself, unless it has several.
        words = f"{row.action}{row.microbatch}" + (f" of stage {row.stage}" if several else "")
        rows.append((int(row.start_ns), int(row.length_ns), _PLACE[row.action], words))
        at = max(at, int(row.start_ns) + int(row.length_ns))
    if at < end:
        rows.append((at, end - at, _BUBBLE, "bubble"))
    starts, lengths, roles, words_of = zip(*rows, strict=True)
    codes = tuple(names.setdefault(words, len(names)) for words in words_of)
    rank = int(part["rank"].iloc[0])
    stages = ", ".join(map(str, sorted(set(part["stage"]))))
    label = f"stage {stages}, {section.rank_name(rank)}"
    return Lane(label, rank, starts, lengths, roles, codes)


def _causes(counted: pd.DataFrame, section: Section) -> Bars:
    """Mean bubble of each rank by cause; parts below zero are left out of the bars."""
    means = counted.groupby("rank")[[name for name, _, _ in CAUSES]].mean().astype(float)
    order = [rank for rank in section.rank_order if rank in means.index]
    means = means.loc[order]
    series = tuple(
        Series(label, role, tuple(max(0.0, float(value)) for value in means[name]))
        for name, label, role in CAUSES
    )
    caption = "Mean over counted steps."
    if (means < 0).any().any():
        caption += " A part below zero (a stage that waits less than its peers) shows as none."
    return Bars(
        "Why: bubble by cause",
        tuple(section.rank_name(int(rank)) for rank in means.index),
        tuple(item for item in series if any(item.values)),
        "ns",
        "bubble per step",
        caption=caption,
        horizontal=True,
    )


def _stages(counted: pd.DataFrame) -> Table:
    labels = {
        "stage": "stage",
        "rank": "rank",
        "step_ns": "pipeline",
        "busy_ns": "busy",
        "bubble_ns": "bubble",
        "bubble_ratio": "share",
        "expected_bubble_ns": "expected",
        "warmup_ns": "warm-up",
        "steady_ns": "steady",
        "cooldown_ns": "cool-down",
    }
    means = counted.groupby(["stage", "rank"], as_index=False)[list(labels)[2:]].mean()
    return table("Stages, mean per counted step", means, SCHEMA, labels, worst="bubble_ns")


def _costs(result: PipelineResult) -> Table:
    labels = {"stage": "stage", "rank": "rank", "action": "action", "n": "n", "p50_ns": "p50"}
    return table(
        "What an action takes",
        result.costs,
        ANALYZER.tables["costs"],
        labels,
        caption="F forward, B backward, I and W its halves by input and by weight.",
        worst="p50_ns",
    )


def _rows(result: PipelineResult) -> Table:
    labels = {
        "stage": "stage",
        "rank": "rank",
        "step": "step",
        "step_ns": "pipeline",
        "bubble_ns": "bubble",
        "schedule_ns": "schedule",
        "imbalance_ns": "unequal stages",
        "p2p_ns": "transfers",
        "jitter_ns": "the rest",
        "recv_wait_ns": "waiting in transfers",
        "transfer_ns": "transferring",
    }
    return table("", result.per_stage, SCHEMA, labels, worst="bubble_ns")


PAGE = Page("Pipeline", ANALYZER, build, order=40)
