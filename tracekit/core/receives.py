"""What needs a receive, by the marks of the stages' work.

The k-th forward of a stage needs the k-th receive from the stage before it, the k-th backward
(or gradient of its input) the k-th from the stage after it. That holds for ranks with one
stage; others are left to what their idle stretches show.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracekit.core.clock import ClockFit
from tracekit.core.collective import Matching
from tracekit.core.trace import Int64, KernelKind, Phase, RankTrace

_BACKWARDS = (Phase.BACKWARD, Phase.INPUT)


def received(
    traces: Sequence[RankTrace], clock: Sequence[ClockFit], matching: Matching
) -> tuple[Int64, ...]:
    """Per trace and call: when, on the common clock, the first work that needs it ran; else -1."""
    stages = [_stage(trace) for trace in traces]
    partner = _partners(matching)
    out = []
    for place, trace in enumerate(traces):
        at = np.full(len(trace.calls), -1, dtype=np.int64)
        if stages[place] >= 0:
            rows = np.flatnonzero(matching.rows.trace == place)
            _fill(at, trace, clock[place], matching, rows, partner, stages, stages[place])
        out.append(at)
    return tuple(out)


def _stage(trace: RankTrace) -> int:
    """The only stage of a rank, -1 when it has several or none is marked."""
    found = np.unique(trace.spans.stage[trace.spans.stage >= 0])
    return int(found[0]) if len(found) == 1 else -1


def _partners(matching: Matching) -> Int64:
    """(rows,) trace at the other end of a transfer, -1 for collectives and lone rows."""
    rows = matching.rows
    out = np.full(len(rows), -1, dtype=np.int64)
    pair = matching.p2p() & (matching.present() == 2)
    mine = np.flatnonzero(pair[rows.instance])
    # Rows lie in order of instance: the two of a pair are neighbours.
    out[mine[0::2]] = rows.trace[mine[1::2]]
    out[mine[1::2]] = rows.trace[mine[0::2]]
    return out


def _fill(
    at: Int64, trace: RankTrace, fit: ClockFit, matching: Matching, rows: Int64,
    partner: Int64, stages: Sequence[int], stage: int,
) -> None:  # fmt: skip
    """Enter the times of one rank, step by step where receives and marks agree in number."""
    calls = matching.rows.call[rows]
    op = np.array([trace.names[code] for code in trace.calls.op_id[calls].tolist()], dtype=object)
    others = np.array([stages[p] if p >= 0 else -1 for p in partner[rows].tolist()], dtype=np.int64)
    start = trace.kernels.start_ns[trace.calls.kernel[calls]]
    kernels = _Work(trace, fit)
    phases = trace.spans.phase
    for before, wanted in ((stage - 1, (Phase.FORWARD,)), (stage + 1, _BACKWARDS)):
        recvs = np.flatnonzero((op == "recv") & (others == before))
        recvs = recvs[np.argsort(start[recvs], kind="stable")]
        spans = np.flatnonzero(np.isin(phases, wanted))
        for low, high in zip(trace.steps.start_ns, trace.steps.end_ns, strict=True):
            mine = recvs[(start[recvs] >= low) & (start[recvs] < high)]
            marks = trace.spans.start_ns[spans]
            begun = marks[(marks >= low) & (marks < high)]
            if len(mine) and len(mine) == len(begun):
                at[calls[mine]] = kernels.first_after(begun)


class _Work:
    """Computing of a rank in the order of its launches."""

    def __init__(self, trace: RankTrace, fit: ClockFit) -> None:
        own = trace.kernels.kind == KernelKind.COMPUTE
        launch, start = trace.kernels.launch_ns[own], trace.kernels.start_ns[own]
        # Without launches, as on a CPU, work begins when it is marked.
        launch = np.where(launch >= 0, launch, start)
        order = np.argsort(launch, kind="stable")
        self._launch = launch[order]
        self._start = fit.aligned(start[order])

    def first_after(self, host_ns: Int64) -> Int64:
        """When the first work launched at or after each time of the host ran; -1 for none."""
        place = np.searchsorted(self._launch, host_ns, side="left")
        if len(self._start) == 0:
            return np.full(len(host_ns), -1, dtype=np.int64)
        found = self._start[np.minimum(place, len(self._start) - 1)]
        return np.where(place < len(self._start), found, -1)
