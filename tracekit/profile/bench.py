"""How long collectives take when nothing else runs: the baseline of a link.

Method: barrier, then the clock around one operation, and of each iteration the
slowest rank. Measuring back to back instead would show the pipelining of a
broadcast, not its latency. A group of half the ranks is measured while the
others wait.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tracekit.io import baseline
from tracekit.io.baseline import Baseline, Latency
from tracekit.profile import conditions, worker
from tracekit.profile.benchplan import BenchPlan
from tracekit.profile.place import Place

WARMUP = 5
LENGTH_S = 0.15  # of one measurement
FEWEST, MOST = 20, 200
P95_N, P99_N = 20, 100

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Case:
    """One operation on buffers of one size, ready to run."""

    run: Callable[[], None]
    in_bytes: int
    out_bytes: int


def run_rank(plan: BenchPlan, path: str, place: Place, report: Report) -> None:
    """Be one rank of a benchmark; rank 0 writes the baseline."""
    report("meeting")
    worker.join(plan, place)
    load = conditions.load() if place.rank == 0 else None
    rows: list[Latency] = []
    for size in plan.groups:
        ranks = list(range(size))
        group = dist.new_group(ranks, timeout=timedelta(seconds=plan.timeout_s))
        if place.rank in ranks:
            rows.extend(_measure_group(plan, place, group, ranks, report))
        dist.barrier()
    if place.rank == 0:
        report("writing")
        known = {
            **conditions.machine(plan.device, place.init_method, load),
            "parallel": {"world_size": place.world_size, "backend": plan.backend},
            "precision": plan.dtype,
        }
        baseline.write(Path(path), Baseline(conditions=known, rows=rows))
    dist.barrier()
    worker.leave()


def _measure_group(
    plan: BenchPlan, place: Place, group: dist.ProcessGroup, ranks: Sequence[int], report: Report
) -> list[Latency]:
    device = worker.device(plan, place)
    cores = os.cpu_count() or 1
    rows = []
    total = len(plan.ops) * len(plan.sizes)
    for number, (op, size) in enumerate((op, size) for op in plan.ops for size in plan.sizes):
        report(f"{len(ranks)} ranks, {op} of {size} bytes ({number + 1} of {total})")
        case = _case(op, size, plan.dtype, device, group)
        times = _times(case, device, group)
        whole = max(case.in_bytes, case.out_bytes)
        median = int(np.median(times))
        algbw = whole / median
        rows.append(
            Latency(
                op=op,
                backend=plan.backend,
                dtype=plan.dtype,
                group_size=len(ranks),
                ranks=list(ranks),
                bytes=whole,
                in_bytes=case.in_bytes,
                out_bytes=case.out_bytes,
                n=len(times),
                min_ns=int(times.min()),
                p50_ns=median,
                p95_ns=_percentile(times, 95, P95_N),
                p99_ns=_percentile(times, 99, P99_N),
                max_ns=int(times.max()),
                algbw_gbps=algbw,
                busbw_gbps=algbw * bus_factor(op, len(ranks)),
                crowded=plan.device == "cpu" and place.world_size > cores,
            )
        )
    return rows


def _percentile(times: np.ndarray[Any, Any], which: int, fewest: int) -> int | None:
    return int(np.percentile(times, which)) if len(times) >= fewest else None


def bus_factor(op: str, ranks: int) -> float:
    """What the slowest link carries, over the message (nccl-tests, PERFORMANCE.md)."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def _times(
    case: _Case, device: torch.device, group: dist.ProcessGroup
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(n,) int64 ns: each iteration's time on its slowest rank."""
    for _ in range(WARMUP):
        one = _once(case, device, group)
    # All must make as many iterations, so the slowest rank's estimate counts.
    estimate = torch.tensor([one], dtype=torch.int64, device=device)
    dist.all_reduce(estimate, dist.ReduceOp.MAX, group=group)
    count = min(max(int(LENGTH_S * 1e9 / max(int(estimate), 1)), FEWEST), MOST)
    own = [_once(case, device, group) for _ in range(count)]
    slowest = torch.tensor(own, dtype=torch.int64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    found: np.ndarray[Any, np.dtype[np.int64]] = slowest.cpu().numpy()
    return found


def _once(case: _Case, device: torch.device, group: dist.ProcessGroup) -> int:
    dist.barrier(group)
    start = time.perf_counter_ns()
    case.run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter_ns() - start


# -- operations -----------------------------------------------------------------------

Make = Callable[[int, dist.ProcessGroup, Mapping[str, Any]], _Case]


def _case(op: str, size: int, dtype: str, device: torch.device, group: dist.ProcessGroup) -> _Case:
    """The operation on a message of this size, rounded up to whole shares of each rank."""
    kind: torch.dtype = getattr(torch, dtype)
    ranks = group.size()
    share = max(math.ceil(size / kind.itemsize / ranks), 1)
    return OPS[op](share, group, {"dtype": kind, "device": device})


def _all_reduce(share: int, group: dist.ProcessGroup, kind: Mapping[str, Any]) -> _Case:
    x = torch.zeros(share * group.size(), **kind)
    return _Case(lambda: _done(dist.all_reduce(x, group=group)), x.nbytes, x.nbytes)


def _all_gather(share: int, group: dist.ProcessGroup, kind: Mapping[str, Any]) -> _Case:
    x, out = torch.zeros(share, **kind), torch.zeros(share * group.size(), **kind)
    run = lambda: _done(dist.all_gather_into_tensor(out, x, group=group))  # noqa: E731
    return _Case(run, x.nbytes, out.nbytes)


def _reduce_scatter(share: int, group: dist.ProcessGroup, kind: Mapping[str, Any]) -> _Case:
    x, out = torch.zeros(share * group.size(), **kind), torch.zeros(share, **kind)
    run = lambda: _done(dist.reduce_scatter_tensor(out, x, group=group))  # noqa: E731
    return _Case(run, x.nbytes, out.nbytes)


def _all_to_all(share: int, group: dist.ProcessGroup, kind: Mapping[str, Any]) -> _Case:
    x = torch.zeros(share * group.size(), **kind)
    out = torch.zeros_like(x)
    run = lambda: _done(dist.all_to_all_single(out, x, group=group))  # noqa: E731
    return _Case(run, x.nbytes, out.nbytes)


def _broadcast(share: int, group: dist.ProcessGroup, kind: Mapping[str, Any]) -> _Case:
    x = torch.zeros(share * group.size(), **kind)
    return _Case(lambda: _done(dist.broadcast(x, group_src=0, group=group)), x.nbytes, x.nbytes)


def _send_recv(share: int, group: dist.ProcessGroup, kind: Mapping[str, Any]) -> _Case:
    """From the first rank to the second; any others only take part in the barrier."""
    x = torch.zeros(share * group.size(), **kind)

    def run() -> None:
        if group.rank() == 0:
            dist.send(x, group=group, group_dst=1)
        elif group.rank() == 1:
            dist.recv(x, group=group, group_src=0)

    return _Case(run, x.nbytes, x.nbytes)


def _done(work: dist.Work | None) -> None:
    """Operations that are asked to wait have waited."""


OPS: dict[str, Make] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send_recv": _send_recv,
}
