"""Kernel time of all ranks by step and name, and the node of the replay each kernel is in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import ClockFit
from tracekit.core.program import Program
from tracekit.core.replay import Float
from tracekit.core.trace import Int64, KernelKind, RankTrace

_MAIN_NAMES = 0.001  # share of all kernel time from which a name is a class of its own


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """Kernel time of all ranks by step and name.

    Attributes:
        names: of the classes; the last one is the rest.
        total_ns: (traces, steps, names) float64.
        count: (traces, steps, names) int64.
        typical_ns: (traces, names) median length of one kernel, NaN without any.
        kernels: per trace: node, class and length of each kernel in the window.
    """

    names: tuple[str, ...]
    total_ns: Float
    count: npt.NDArray[np.int64]
    typical_ns: Float
    kernels: tuple[tuple[npt.NDArray[np.intp], Int64, Float], ...]


def kernels(traces: Sequence[RankTrace], clock: Sequence[ClockFit], program: Program) -> Kernel:
    """Kernel time by rank, step and name; rare names are one class."""
    seen = [_kernels_of(trace, clock[p], program, p) for p, trace in enumerate(traces)]
    totals: dict[str, float] = defaultdict(float)
    for trace, (name, _, length, _) in zip(traces, seen, strict=True):
        sums = np.bincount(name, weights=length, minlength=len(trace.names))
        for code in np.flatnonzero(sums).tolist():
            totals[trace.names[code]] += float(sums[code])
    least = _MAIN_NAMES * sum(totals.values())
    names = (*sorted(text for text, total in totals.items() if total >= least), "")
    place_of = {text: code for code, text in enumerate(names)}
    shape = (len(traces), program.window.steps, len(names))
    total = np.zeros(shape)
    count = np.zeros(shape, dtype=np.int64)
    typical = np.full((len(traces), len(names)), np.nan)
    out = []
    for place, (trace, (name, step, length, node)) in enumerate(zip(traces, seen, strict=True)):
        table = np.array(
            [place_of.get(text, len(names) - 1) for text in trace.names], dtype=np.int64
        )
        code = table[name]
        np.add.at(total[place], (step, code), length)
        np.add.at(count[place], (step, code), 1)
        order = np.lexsort((length, code))
        first = np.searchsorted(code[order], np.arange(len(names)))
        size = np.searchsorted(code[order], np.arange(len(names)), side="right") - first
        has = size > 0
        typical[place, has] = length[order][first[has] + (size[has] - 1) // 2]
        out.append((node, code, length))
    return Kernel(names, total, count, typical, tuple(out))


def _kernels_of(
    trace: RankTrace, fit: ClockFit, program: Program, place: int
) -> tuple[Int64, Int64, Float, npt.NDArray[np.intp]]:
    """Name, step, length and node of each kernel that is not communication."""
    bounds = program.window.bounds_ns[place]
    own = trace.kernels.kind != KernelKind.COMMUNICATION
    start = fit.aligned(trace.kernels.start_ns[own])
    length = (trace.kernels.end_ns - trace.kernels.start_ns)[own].astype(np.float64)
    inside = (start >= bounds[0]) & (start < bounds[-1])
    start, length = start[inside], np.maximum(length[inside], 0)
    cut, node = program.cuts[place]
    at = np.minimum(np.searchsorted(cut, start, side="right"), len(node) - 1)
    step = np.clip(np.searchsorted(bounds, start, side="right") - 1, 0, len(bounds) - 2)
    return (
        trace.kernels.name_id[own][inside].astype(np.int64), step.astype(np.int64), length, node[at]
    )  # fmt: skip
