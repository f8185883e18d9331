"""Runs made by hand for the report's tests: small, known, and as odd as asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.analysis._contract import analyzers, apply
from tracekit.core.run import Diagnostic, Run, Severity
from tracekit.core.topology import Group, Topology
from tracekit.core.trace import Calls, KernelKind, Kernels, RankTrace, StepFlag, Steps
from tracekit.report.section import Section

MS = 1_000_000
CONDITIONS: Mapping[str, Any] = {
    "workload": {"name": "tp", "mode": "train", "layers": 4, "hidden": 512, "params": None},
    "precision": "bf16",
    "parallel": {"world_size": 2, "tp": 2, "schedule": None},
    "hardware": {"device": "H100", "count": 2, "links": [["X", "NV18"], ["NV18", "X"]]},
    "environment": {"NCCL_DEBUG": "WARN"},
    "seed": 0,
}


def trace(
    rank: int,
    steps: int = 5,
    *,
    host: str | None = "node0",
    compute_ms: float = 6.0,
    device_type: str = "gpu",
    op: str = "all_reduce",
) -> RankTrace:
    """Steps of 10 ms: compute, a collective half hidden behind it, a copy, then nothing."""
    rows = []
    for step in range(steps):
        start = step * 10 * MS
        end = start + int(compute_ms * MS)
        rows.append((start, end, KernelKind.COMPUTE, 7, step))
        rows.append((end - MS, end + MS, KernelKind.COMMUNICATION, 9, step))
        rows.append((end + MS, end + 3 * MS // 2, KernelKind.MEMORY, 7, step))
    count = len(rows)
    column = list(zip(*rows, strict=True))
    calls = np.flatnonzero(np.array(column[2]) == KernelKind.COMMUNICATION)
    return RankTrace(
        rank=rank,
        host=host,
        device_type=device_type,
        steps=Steps(
            number=np.arange(10, 10 + steps),
            start_ns=np.arange(steps) * 10 * MS,
            end_ns=(np.arange(steps) + 1) * 10 * MS,
            flag=np.array([StepFlag.FIRST] + [StepFlag.OK] * (steps - 1), dtype=np.uint8),
        ),
        kernels=Kernels(
            start_ns=np.array(column[0], dtype=np.int64),
            end_ns=np.array(column[1], dtype=np.int64),
            device=np.full(count, 0 if device_type == "gpu" else -1, dtype=np.int16),
            stream=np.array(column[3], dtype=np.int32),
            kind=np.array(column[2], dtype=np.uint8),
            name_id=np.zeros(count, dtype=np.int32),
            correlation=np.full(count, -1, dtype=np.int64),
            step=np.array(column[4], dtype=np.int32),
            launch_ns=np.full(count, -1, dtype=np.int64),
        ),
        calls=Calls(
            kernel=calls.astype(np.int32),
            op_id=np.ones(len(calls), dtype=np.int32),
            group=np.zeros(len(calls), dtype=np.int32),
            seq=np.arange(len(calls), dtype=np.int64),
            in_bytes=np.full(len(calls), 1024, dtype=np.int64),
            out_bytes=np.full(len(calls), 1024, dtype=np.int64),
            dtype_id=np.zeros(len(calls), dtype=np.int32),
            peer=np.full(len(calls), -1, dtype=np.int32),
            root=np.full(len(calls), -1, dtype=np.int32),
        ),
        names=("gemm", op),
        groups=(Group("1", "tensor", (0, 1), "tp"),),
    )


def longer(trace: RankTrace, by_ms: float, jitter: Sequence[float] = ()) -> RankTrace:
    """The trace with every step and its compute ``by_ms`` longer, each by its own jitter."""
    steps, kernels = trace.steps, trace.kernels
    count = len(steps)
    noise = np.resize(np.array(jitter or (0.0,)), count)
    extra = ((by_ms + noise) * MS).astype(np.int64)
    shift = np.concatenate(([0], np.cumsum(extra)[:-1]))
    start = kernels.start_ns + shift[kernels.step]
    first = np.arange(len(kernels)) % 3 == 0  # each step's compute kernel
    end = kernels.end_ns + shift[kernels.step] + extra[kernels.step]
    return dataclasses.replace(
        trace,
        steps=dataclasses.replace(
            steps, start_ns=steps.start_ns + shift, end_ns=steps.end_ns + shift + extra
        ),
        kernels=dataclasses.replace(
            kernels, start_ns=np.where(first, start, start + extra[kernels.step]), end_ns=end
        ),
    )


def changed(group: str, **values: object) -> dict[str, object]:
    return {**CONDITIONS, group: {**CONDITIONS[group], **values}}


def run(
    *traces: RankTrace,
    name: str = "tp 2",
    conditions: Mapping[str, Any] = CONDITIONS,
    diagnostics: Sequence[Diagnostic] = (),
    axes: Mapping[str, int] | None = None,
    world_size: int | None = None,
) -> Run:
    """A run of these ranks, of two ordinary ones without any."""
    members = traces or (trace(0), trace(1))
    groups = (Group("1", "tensor", tuple(item.rank for item in members), "tp"),)
    return Run(
        name=name,
        traces=tuple(members),
        topology=Topology(world_size or len(members), axes or {"tp": len(members)}, groups),
        conditions=conditions,
        diagnostics=tuple(diagnostics),
    )


def section(made: Run | None = None) -> Section:
    """The run with every analysis applied, as the command line does."""
    made = made or run()
    return Section(made, tuple(apply(item, made) for item in analyzers().values()))


WARNING = Diagnostic("cut_file", Severity.WARNING, 1, 3, "3 events after the cut were dropped")

EVIL = "</script><script>alert(1)</script>"


def unavailable() -> Section:
    """A run without communication, for which overlap has no answer."""
    lone = trace(0)
    silent = np.where(lone.kernels.kind == KernelKind.COMMUNICATION, 0, lone.kernels.kind)
    kernels = dataclasses.replace(lone.kernels, kind=silent.astype(np.uint8))
    empty = {
        item.name: getattr(lone.calls, item.name)[:0].copy()
        for item in dataclasses.fields(lone.calls)
    }
    return section(run(dataclasses.replace(lone, kernels=kernels, calls=Calls(**empty))))


def hostile() -> Section:
    """A run whose every name tries to be more than a name."""
    return section(
        run(
            trace(0, op=EVIL, host='"><img src=x onerror=alert(1)>'),
            trace(1, op="K" * 10_000 + "\u202eabc", host="<b>bold</b><a href='//x.y'>"),
            name=EVIL + "\u202e'\"",
            conditions={
                **CONDITIONS,
                "command": EVIL,
                "x": {"y": "z" * 10_000, "\x1b[2J": "\ud800"},
            },
            diagnostics=[Diagnostic(EVIL, Severity.ERROR, None, 1, f"{EVIL} {{{{ 7 * 7 }}}}")],
        )
    )


def slow() -> Section:
    """Four ranks of which rank 2 computes longest."""
    return section(run(*(trace(rank, compute_ms=8 if rank == 2 else 6) for rank in range(4))))


def large(ranks: int = 100) -> Section:
    """More ranks than can be named one by one; rank 5 computes longest."""
    return section(
        run(
            *(
                trace(
                    rank, 3, host=f"node{rank // 8}", compute_ms=8 if rank == 5 else 6 + rank / 500
                )
                for rank in range(ranks)
            ),
            name="large",
        )
    )
