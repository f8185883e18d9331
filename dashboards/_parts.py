"""Where a step goes, in the parts and colours that all pages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracekit.analysis.breakdown import BreakdownResult
from tracekit.report.blocks import Bars, Cube, Role, Series
from tracekit.report.section import Section

from ._waits import exposed_waits

MANY_RANKS = 64  # from here on, quantiles and the worst few instead of every rank
WORST_RANKS = 8
QUANTILES = ((0.95, "p95"), (0.75, "p75"), (0.5, "median"), (0.25, "p25"), (0.05, "p5"))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step; the parts of a row sum to its step."""

    label: str
    role: Role
    values: Callable[[pd.DataFrame], pd.Series]


def parts(section: Section) -> tuple[Part, ...]:
    """The parts of a step, in the order in which they are stacked; they sum to it.

    Exposed communication is told apart into transfer and waiting where a wait is known.
    """
    rest = "unattributed" if section.on_cpu else "idle"
    return (
        Part("compute alone", Role.COMPUTE, lambda f: f["compute_ns"] - f["hidden_comm_ns"]),
        Part("compute hiding communication", Role.HIDING, lambda f: f["hidden_comm_ns"]),
        *_exposed(section),
        Part("exposed memory copies", Role.MEMORY, lambda f: f["exposed_memory_ns"]),
        Part(rest, Role.IDLE, lambda f: f["idle_ns"]),
    )


def _exposed(section: Section) -> tuple[Part, ...]:
    if exposed_waits(section.run).empty:
        return (Part("exposed communication", Role.TRANSFER, lambda f: f["exposed_comm_ns"]),)
    return (
        Part("exposed transfer", Role.TRANSFER, lambda f: f["exposed_comm_ns"] - f["wait_ns"]),
        Part("waiting for another rank", Role.WAIT, lambda f: f["wait_ns"]),
    )


def every_step(result: BreakdownResult, section: Section) -> pd.DataFrame:
    """The breakdown's rows with ``wait_ns``, the waiting in their exposed communication."""
    frame = result.per_step
    waits = exposed_waits(section.run)
    if waits.empty:
        return frame.assign(wait_ns=0.0)
    keys = pd.MultiIndex.from_arrays([frame["rank"], frame["step"]])
    known = waits.reindex(keys, fill_value=0.0).to_numpy()
    return frame.assign(wait_ns=np.minimum(known, frame["exposed_comm_ns"].to_numpy(dtype=float)))


def counted(result: BreakdownResult, section: Section) -> pd.DataFrame:
    """The rows that count in statistics."""
    frame = every_step(result, section)
    return frame[frame["counted"]]


def lost(frame: pd.DataFrame, section: Section) -> pd.Series:
    """Time that is certainly lost: off compute; on a CPU only what is named, not the rest."""
    named = frame["exposed_comm_ns"] + frame["exposed_memory_ns"]
    return named if section.on_cpu else named + frame["idle_ns"]


def per_rank(result: BreakdownResult, section: Section) -> pd.DataFrame:
    """Mean of each column over the counted steps, one row per rank, in rank order."""
    frame = counted(result, section).drop(columns=["step", "counted"])
    means = frame.groupby("rank").mean()
    return means.loc[[rank for rank in section.rank_order if rank in means.index]]


def cube(
    frame: pd.DataFrame,
    section: Section,
    values: Sequence[pd.Series],
    along: str,
    over: str = "mean",
) -> Cube:
    """The values of a chart by rank and step, for a selection.

    Args:
        frame: one row per rank, device and step, with "rank", "step" and "counted".
        section: for the order and names of ranks.
        values: one series over the rows of the frame for each series of the chart.
        along: what the bars stand for: "rank", "step" or "".
        over: what is taken over the rest.
    """
    ranks = [rank for rank in section.rank_order if rank in set(frame["rank"])]
    steps = sorted(set(frame["step"]))
    matrices = []
    for column in values:
        keyed = frame.assign(value=column.astype(float)).groupby(["rank", "step"])["value"].mean()
        grid = keyed.unstack("step").reindex(index=ranks, columns=steps)
        matrices.append(
            tuple(tuple(None if pd.isna(v) else v for v in row) for row in grid.to_numpy().tolist())
        )
    used = set(frame.loc[frame["counted"], "step"])
    return Cube(
        along,
        over,
        tuple(int(rank) for rank in ranks),
        tuple(section.rank_name(int(rank)) for rank in ranks),
        tuple(int(step) for step in steps),
        tuple(step in used for step in steps),
        tuple(matrices),
    )


def whole(result: BreakdownResult, section: Section) -> Bars:
    """One bar: where a step goes, as the mean over ranks and counted steps."""
    mean = counted(result, section).mean(numeric_only=True).to_frame().T
    title = "Where a step goes"
    if len(section.run.traces) > 1:
        title += " (mean over ranks)"
    # A part that does not occur is no news in a list of where time goes.
    present = [part for part in parts(section) if float(part.values(mean).iloc[0])]
    frame = every_step(result, section)
    return Bars(
        title,
        ("a step",),
        tuple(Series(p.label, p.role, (float(p.values(mean).iloc[0]),)) for p in present),
        "ns",
        "time per step",
        cube=cube(frame, section, [part.values(frame) for part in present], ""),
    )


def by_rank(
    result: BreakdownResult,
    section: Section,
    *,
    horizontal: bool,
    marked: Sequence[int] = (),
    legend: bool = True,
) -> Bars:
    """The same, rank by rank; for many ranks the worst few and quantiles over all."""
    means = per_rank(result, section)
    names = [section.rank_name(int(rank)) for rank in means.index]
    ticks = [str(rank) for rank in means.index]
    caption = "Mean over the counted steps."
    if len(means) > MANY_RANKS:
        means, names, caption = _condensed(means, section, marked)
        ticks = names
        horizontal = True
    elif len(section.hosts) and len(set(section.hosts.values())) > 1:
        caption += " Ranks are ordered by host."
    positions = [i for i, rank in enumerate(means.index) if rank in marked]
    if positions:
        caption += f" Outlined: {section.who(marked)}."
    present = [part for part in parts(section) if part.values(means).any()]
    frame = every_step(result, section)
    return Bars(
        "The same, rank by rank",
        tuple(names),
        tuple(Series(p.label, p.role, tuple(p.values(means).astype(float))) for p in present),
        "ns",
        "time per step",
        "" if horizontal else "rank",
        caption,
        horizontal,
        frozenset(positions),
        () if horizontal else tuple(ticks),
        legend,
        cube(frame, section, [part.values(frame) for part in present], "rank"),
    )


def _condensed(
    means: pd.DataFrame, section: Section, marked: Sequence[int]
) -> tuple[pd.DataFrame, list[str], str]:
    """The culprits and the ranks that lose most by name, then ranks at quantiles of lost time."""
    order = lost(means, section).sort_values(ascending=False, kind="stable").index
    last = len(order) - 1
    # Who makes the others wait waits least, so it is not among those that lose most.
    culprits = [rank for rank in means.index if rank in marked][:WORST_RANKS]
    worst = [*culprits, *(rank for rank in order if rank not in culprits)][:WORST_RANKS]
    at = [order[round((1 - q) * last)] for q, _ in QUANTILES]
    names = [section.rank_name(int(rank)) for rank in worst]
    names += [f"{label} of {len(order)} ranks" for _, label in QUANTILES]
    rows = pd.concat([means.loc[worst], means.loc[at]])
    rows.index = pd.Index([*worst, *([-1] * len(at))])
    caption = (
        f"{len(order)} ranks: {'the culprit and ' if culprits else ''}"
        f"the {WORST_RANKS - len(culprits)} that lose most, by name; below them the ranks at "
        "the quantiles of lost time. Mean over the counted steps; every rank is in the table."
    )
    return rows, names, caption
