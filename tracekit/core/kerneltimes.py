"""Kernel time of all ranks by step and name, and the node of the replay each kernel is in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.exchange import token_work
from tracekit.core.intervals import covered_within, union
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.trace import Int64, KernelKind, RankTrace

ALONE, BESIDE, PARTLY = range(3)  # how much of a kernel's time communication runs beside it
_NEARLY_NONE = 0.1  # of that time
_ON_TOKENS = " between exchanges"
_MAIN_NAMES = 0.001  # share of all kernel time from which a name is a class of its own


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """Kernel time of all ranks by step and name.

    Attributes:
        names: of the classes; the last one is the rest.
        total_ns: (traces, steps, names) float64.
        count: (traces, steps, names) int64.
        kernels: per trace: node, class and length of each kernel in the window.
        shape: per trace: number of the grid and block of each of them, alike on all ranks;
            -1 where not recorded.
        beside: per trace: ALONE, BESIDE communication or PARTLY, of each of them.
    """

    names: tuple[str, ...]
    total_ns: Float
    count: npt.NDArray[np.int64]
    kernels: tuple[tuple[npt.NDArray[np.intp], Int64, Float], ...]
    shape: tuple[Int64, ...]
    beside: tuple[Int64, ...]


def kernels(traces: Sequence[RankTrace], clock: Sequence[ClockFit], program: Program) -> Kernel:
    """Kernel time by rank, step and name; rare names are one class."""
    seen = [_kernels_of(trace, clock[p], program, p) for p, trace in enumerate(traces)]
    totals: dict[str, float] = defaultdict(float)
    texts = [(*trace.names, *(text + _ON_TOKENS for text in trace.names)) for trace in traces]
    for text, own in zip(texts, seen, strict=True):
        sums = np.bincount(own.name, weights=own.length, minlength=len(text))
        for code in np.flatnonzero(sums).tolist():
            totals[text[code]] += float(sums[code])
    least = _MAIN_NAMES * sum(totals.values())
    names = (*sorted(text for text, total in totals.items() if total >= least), "")
    place_of = {text: code for code, text in enumerate(names)}
    shape_of: dict[str, int] = {}
    shape = (len(traces), program.window.steps, len(names))
    total = np.zeros(shape)
    count = np.zeros(shape, dtype=np.int64)
    out, shapes = [], []
    for place, (trace, own) in enumerate(zip(traces, seen, strict=True)):
        table = np.array(
            [place_of.get(text, len(names) - 1) for text in texts[place]], dtype=np.int64
        )
        code = table[own.name]
        np.add.at(total[place], (own.step, code), own.length)
        np.add.at(count[place], (own.step, code), 1)
        out.append((own.node, code, own.length))
        shapes.append(_numbered(trace, own.shape, shape_of))
    return Kernel(names, total, count, tuple(out), tuple(shapes), tuple(o.beside for o in seen))


def _numbered(trace: RankTrace, shape: Int64, shape_of: dict[str, int]) -> Int64:
    """The number of each shape by its text, as ranks have their own tables of names."""
    found, at = np.unique(shape, return_inverse=True)
    number = [
        -1 if code < 0 else shape_of.setdefault(trace.names[code], len(shape_of))
        for code in found.tolist()
    ]
    return np.array(number, dtype=np.int64)[at.reshape(-1)]


class _Own(NamedTuple):
    """Columns of each kernel of a rank that is not communication."""

    name: Int64
    step: Int64
    length: Float
    node: npt.NDArray[np.intp]
    shape: Int64
    beside: Int64


def _kernels_of(trace: RankTrace, fit: ClockFit, program: Program, place: int) -> _Own:
    bounds = program.window.bounds_ns[place]
    kernels = trace.kernels
    rows = np.flatnonzero(kernels.kind != KernelKind.COMMUNICATION)
    start = fit.aligned(kernels.start_ns[rows])
    inside = (start >= bounds[0]) & (start < bounds[-1])
    rows, start = rows[inside], start[inside]
    length = np.maximum((kernels.end_ns - kernels.start_ns)[rows].astype(np.float64), 0)
    cut, node = program.cuts[place]
    at = np.minimum(np.searchsorted(cut, start, side="right"), len(node) - 1)
    step = np.clip(np.searchsorted(bounds, start, side="right") - 1, 0, len(bounds) - 2)
    # One name may stand for work on tokens and for other work: those are two classes.
    work = token_work(trace) if trace.device_type != "cpu" else union(rows[:0], rows[:0])
    middle = (kernels.start_ns[rows] + kernels.end_ns[rows]) // 2
    on_tokens = covered_within(work, middle, middle + 1) > 0
    return _Own(
        kernels.name_id[rows].astype(np.int64) + on_tokens * len(trace.names),
        step.astype(np.int64),
        length,
        node[at],
        trace.origin().shape_id[rows].astype(np.int64),
        _beside(trace, rows, length),
    )


def _beside(trace: RankTrace, rows: npt.NDArray[np.intp], length: Float) -> Int64:
    """Whether communication runs beside each kernel. On a CPU it says little: all are alone."""
    if trace.device_type == "cpu":
        return np.full(len(rows), ALONE, dtype=np.int64)
    kernels = trace.kernels
    other = kernels.kind == KernelKind.COMMUNICATION
    communicates = union(kernels.start_ns[other], kernels.end_ns[other])
    covered = covered_within(communicates, kernels.start_ns[rows], kernels.end_ns[rows])
    share = covered / np.maximum(length, 1)
    out = np.full(len(rows), PARTLY, dtype=np.int64)
    out[share <= _NEARLY_NONE] = ALONE
    out[share >= 1 - _NEARLY_NONE] = BESIDE
    return out
