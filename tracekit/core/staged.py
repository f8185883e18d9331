"""Pipeline ranks of a CPU whose stages show as marks only: the marked spans as their work.

A stage that sleeps, or computes where no operator is recorded, leaves no kernel. Its marks
do tell when it worked: a span of one microbatch through one stage, less the waits for its
input. Where operators fill most of that time they say more than the marks, and stay.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tracekit.core.intervals import covered_within, union
from tracekit.core.stagework import KINDS, stage_work
from tracekit.core.trace import KernelKind, Kernels, Phase, RankTrace

_FILLED = 0.5  # share of the marked work in operators from which these are the work
_NAMES = tuple(f"marked {kind.name.lower()}" for kind in KINDS)


def staged(trace: RankTrace) -> RankTrace:
    """The trace with one piece of work per mark in place of the operators inside it.

    The trace itself where it is no CPU's, has no marks of waits and stages, or has operators
    that fill its marks. Calls keep their order.
    """
    if trace.device_type != "cpu" or not (trace.spans.phase == Phase.RECV).any():
        return trace
    work = stage_work(trace, None, -1, waits_inside=True)
    work = work.take(work.busy_ns > 0)
    if len(work) == 0:
        return trace
    kernels = trace.kernels
    compute = kernels.kind == KernelKind.COMPUTE
    ran = union(kernels.start_ns[compute], kernels.end_ns[compute])
    begin = work.end_ns - work.busy_ns
    if covered_within(ran, begin, work.end_ns).sum() > _FILLED * work.busy_ns.sum():
        return trace
    inside = covered_within(
        union(begin, work.end_ns), kernels.start_ns, np.maximum(kernels.end_ns, kernels.start_ns)
    )
    keep = ~(compute & (inside > 0))
    place = np.cumsum(keep) - 1
    count = len(work)
    new = {
        "start_ns": begin,
        "end_ns": work.end_ns,
        "device": np.full(count, kernels.device[0] if len(kernels) else 0),
        "stream": np.full(count, -1),
        "kind": np.full(count, KernelKind.COMPUTE),
        "name_id": len(trace.names) + work.kind.astype(np.int64),
        "correlation": np.full(count, -1),
        "step": work.step,
        "launch_ns": np.full(count, -1),
    }
    joined = {
        name: np.concatenate((getattr(kernels, name)[keep], np.asarray(column))).astype(
            getattr(kernels, name).dtype
        )
        for name, column in new.items()
    }
    return dataclasses.replace(
        trace,
        kernels=Kernels(**joined),
        calls=dataclasses.replace(
            trace.calls, kernel=place[trace.calls.kernel].astype(trace.calls.kernel.dtype)
        ),
        names=(*trace.names, *_NAMES),
        origins=None,
    )


def is_staged(trace: RankTrace) -> bool:
    """Whether marks stand for the trace's work."""
    return trace.names[-len(_NAMES) :] == _NAMES
