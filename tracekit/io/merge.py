"""Successive windows of one rank, from several profiler cycles, as one trace."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from typing import Any

import numpy as np

from tracekit.core.errors import InputError
from tracekit.core.topology import Group
from tracekit.core.trace import (
    Calls,
    Columns,
    ExpertLoads,
    Int32,
    Kernels,
    Origins,
    RankTrace,
    Spans,
    Splits,
    Steps,
)
from tracekit.io.assemble import Window
from tracekit.io.discover import TraceFile
from tracekit.io.events import StringTable


def merge(rank: int, files: list[tuple[TraceFile, Window]]) -> RankTrace:
    """One trace from the successive windows of a rank.

    Raises:
        InputError: two files cover the same time, so one is a copy or the rank is wrong.
    """
    if len(files) == 1:
        return dataclasses.replace(files[0][1].trace, rank=rank)
    files = sorted(files, key=lambda item: _extent(item[1].trace)[0])
    for (first, one), (second, other) in itertools.pairwise(files):
        if _extent(other.trace)[0] < _extent(one.trace)[1]:
            raise InputError(
                f"{first.name} and {second.name} both hold rank {rank} at the same time; "
                "move one away, or name a single file"
            )
    table = StringTable()
    groups: dict[Group, int] = {}
    parts: dict[str, list[Columns]] = defaultdict(list)
    kernels = calls = steps = 0
    for _, window in files:
        trace = window.trace
        name = np.array([table[text] for text in trace.names], dtype=np.int32)
        group = np.array(
            [groups.setdefault(item, len(groups)) for item in trace.groups], dtype=np.int32
        )
        step = trace.kernels.step
        parts["kernels"].append(
            dataclasses.replace(
                trace.kernels,
                name_id=_mapped(name, trace.kernels.name_id),
                step=np.where(step >= 0, step + steps, step).astype(np.int32),
            )
        )
        parts["calls"].append(
            dataclasses.replace(
                trace.calls,
                kernel=trace.calls.kernel + np.int32(kernels),
                op_id=_mapped(name, trace.calls.op_id),
                dtype_id=_mapped(name, trace.calls.dtype_id),
                group=_mapped(group, trace.calls.group),
            )
        )
        parts["steps"].append(trace.steps)
        parts["spans"].append(trace.spans)
        origin = trace.origin()
        parts["origins"].append(
            Origins(
                *(_mapped(name, ids) for ids in (origin.op_id, origin.scope_id, origin.shape_id))
            )
        )
        parts["splits"].append(
            dataclasses.replace(trace.splits, call=trace.splits.call + np.int32(calls))
        )
        parts["loads"].append(trace.loads)
        kernels += len(trace.kernels)
        calls += len(trace.calls)
        steps += len(trace.steps)
    first_trace = files[0][1].trace
    return RankTrace(
        rank=rank,
        host=first_trace.host,
        device_type=first_trace.device_type,
        steps=_concatenated(Steps, parts["steps"]),
        kernels=_concatenated(Kernels, parts["kernels"]),
        calls=_concatenated(Calls, parts["calls"]),
        names=tuple(table),
        groups=tuple(groups),
        spans=_concatenated(Spans, parts["spans"]),
        origins=_concatenated(Origins, parts["origins"]),
        splits=_concatenated(Splits, parts["splits"]),
        loads=_concatenated(ExpertLoads, parts["loads"]),
        steps_marked=all(window.trace.steps_marked for _, window in files),
    )


def _extent(trace: RankTrace) -> tuple[int, int]:
    """First start and last end of anything in a window, in ns."""
    starts = (trace.steps.start_ns, trace.kernels.start_ns)
    ends = (trace.steps.end_ns, trace.kernels.end_ns)
    low = [int(values.min()) for values in starts if len(values)]
    high = [int(values.max()) for values in ends if len(values)]
    return (min(low), max(high)) if low else (0, 0)


def _mapped(table: Int32, ids: Int32) -> Int32:
    """Ids through a table, -1 kept."""
    out: Int32 = ids.copy()
    out[ids >= 0] = table[ids[ids >= 0]]
    return out


def _concatenated(kind: type[Any], parts: list[Columns]) -> Any:
    return kind(
        **{
            item.name: np.concatenate([getattr(part, item.name) for part in parts])
            for item in dataclasses.fields(kind)
        }
    )
