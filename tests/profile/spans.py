"""What the markers of a recorded run say, as plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

import tracekit
from tracekit.core.run import Run
from tracekit.core.trace import Phase, RankTrace

WORK = (Phase.FORWARD, Phase.BACKWARD, Phase.INPUT, Phase.WEIGHT, Phase.LOSS)


def load(folder: Path) -> Run:
    """A run that needed no repair and whose collectives all have their group."""
    run = tracekit.load(folder)
    assert {note.code for note in run.diagnostics} <= {"p2p-upper-bound", "small-steps"}
    for file in run.files:
        assert file.calls == file.grouped_calls
    return run


def durations_ms(trace: RankTrace, phases: Iterable[Phase], step: int | None = None) -> np.ndarray:
    """Length of each span of these phases, in order; in one step or in all."""
    spans = trace.spans
    chosen = np.isin(spans.phase, [int(phase) for phase in phases])
    if step is not None:
        # By its middle: the window of a step lasts to the end of its last gloo call, which the
        # thread of gloo may mark some microseconds after the next step has begun on the host.
        low, high = trace.steps.start_ns[step], trace.steps.end_ns[step]
        middle = (spans.start_ns + spans.end_ns) // 2
        chosen &= (middle >= low) & (middle < high)
    return (spans.end_ns - spans.start_ns)[chosen] / 1e6


def bubble_ratio(run: Run) -> float:
    """Idle share of the pipeline from the first to the last work of its least disturbed step.

    Whatever else runs on the machine can only add to it.
    """
    ratios = []
    for step in range(1, len(run.traces[0].steps)):
        first, last, busy = [], [], []
        for trace in run.traces:
            spans = trace.spans
            low, high = trace.steps.start_ns[step], trace.steps.end_ns[step]
            chosen = np.isin(spans.phase, [int(phase) for phase in WORK])
            chosen &= (spans.start_ns >= low) & (spans.start_ns < high)
            first.append(spans.start_ns[chosen].min())
            last.append(spans.end_ns[chosen].max())
            busy.append((spans.end_ns - spans.start_ns)[chosen].sum())
        ratios.append(1 - np.mean(busy) / (max(last) - min(first)))
    return float(min(ratios))
