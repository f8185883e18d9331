"""Cost of the cross-rank analyses after load, for 8 to 512 ranks.

    python benchmarks/crossrank.py [--collectives 2000] [--ranks 8,64,512]

Each rank takes part in so many collectives: tensor-parallel groups of 8 and data-parallel
groups across them, ten steps. Peer figure for 8 ranks x 8,000: TraceLens, 201 s of CPU.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from tracekit.analysis import collectives, stragglers
from tracekit.core.clock import fit
from tracekit.core.match import match
from tracekit.core.run import Run
from tracekit.core.topology import Group, Topology
from tracekit.core.trace import Calls, KernelKind, Kernels, RankTrace, StepFlag, Steps

STEPS = 10
TP = 8


def job(ranks: int, collectives: int, slow: int = 3, seed: int = 0) -> Run:
    """Every call a compute of about 100 µs and an all_reduce; every fifth over dp."""
    rng = np.random.default_rng(seed)
    per_step = collectives // STEPS
    count = per_step * STEPS
    offset = rng.integers(-2_000_000, 2_000_000, ranks)
    work = rng.normal(100_000, 2_000, (count, ranks))
    work[:, slow] *= 1.25
    is_dp = (np.arange(count) % 5 == 4) & (ranks > TP)
    start, arrive, over = (np.empty((count, ranks)) for _ in range(3))
    now = np.zeros(ranks)
    for call in range(count):
        start[call] = now
        arrive[call] = now + work[call]
        shaped = arrive[call].reshape(ranks // TP, TP)
        last = (
            shaped.max(axis=0, keepdims=True) if is_dp[call] else shaped.max(axis=1, keepdims=True)
        )
        ends = np.broadcast_to(last, shaped.shape).reshape(-1) + 20_000
        over[call] = ends + rng.normal(0, 1_500, ranks)
        now = over[call] + 1_000
    mesh = np.arange(ranks).reshape(-1, TP)
    groups = [Group(f"tp{k}", "mesh_tp", tuple(row), "tp") for k, row in enumerate(mesh.tolist())]
    if ranks > TP:
        columns = mesh.T.tolist()
        groups += [Group(f"dp{k}", "mesh_dp", tuple(row), "dp") for k, row in enumerate(columns)]
    traces = [
        _trace(rank, start, arrive, over, is_dp, groups, int(offset[rank]), per_step)
        for rank in range(ranks)
    ]
    topology = Topology(ranks, {"dp": ranks // TP, "tp": TP}, tuple(groups))
    return Run("benchmark", tuple(traces), topology)


def _trace(
    rank: int, start: np.ndarray, arrive: np.ndarray, over: np.ndarray, is_dp: np.ndarray,
    groups: list[Group], offset: int, per_step: int,
) -> RankTrace:  # fmt: skip
    count = len(start)
    shift = offset + 1_000_000_000
    begin = np.stack((start[:, rank], arrive[:, rank]), axis=1).reshape(-1).astype(np.int64) + shift
    end = np.stack((arrive[:, rank], over[:, rank]), axis=1).reshape(-1).astype(np.int64) + shift
    kind = np.tile([KernelKind.COMPUTE, KernelKind.COMMUNICATION], count).astype(np.uint8)
    mine = [group for group in groups if rank in group.ranks]
    step = np.repeat(np.arange(STEPS), 2 * per_step).astype(np.int32)
    empty = np.full(2 * count, -1, dtype=np.int64)
    group = np.where(is_dp, len(mine) - 1, 0).astype(np.int32)
    # Every group counts its own calls.
    seq = np.where(is_dp, np.cumsum(is_dp), np.cumsum(~is_dp)).astype(np.int64)
    low = begin[:: 2 * per_step]
    return RankTrace(
        rank=rank,
        host=f"node{rank // 8}",
        device_type="gpu",
        steps=Steps(
            number=np.arange(STEPS),
            start_ns=low,
            end_ns=np.append(low[1:], end[-1]),
            flag=np.full(STEPS, StepFlag.OK, dtype=np.uint8),
        ),
        kernels=Kernels(
            start_ns=begin,
            end_ns=np.maximum(end, begin),
            device=np.zeros(2 * count, dtype=np.int16),
            stream=np.tile([7, 20], count).astype(np.int32),
            kind=kind,
            name_id=np.tile([0, 1], count).astype(np.int32),
            correlation=empty,
            step=step,
            launch_ns=empty,
        ),
        calls=Calls(
            kernel=np.arange(1, 2 * count, 2, dtype=np.int32),
            op_id=np.full(count, 2, dtype=np.int32),
            group=group,
            seq=seq,
            in_bytes=np.full(count, 1 << 20, dtype=np.int64),
            out_bytes=np.full(count, 1 << 20, dtype=np.int64),
            dtype_id=np.full(count, 3, dtype=np.int32),
            peer=np.full(count, -1, dtype=np.int32),
        ),
        names=("gemm", "ncclDevKernel_AllReduce", "all_reduce", "BFloat16"),
        groups=tuple(mine),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collectives", type=int, default=2000)
    parser.add_argument("--ranks", default="8,64,512")
    asked = parser.parse_args()
    print("ranks  calls     match  clock  collectives  stragglers  total s  µs/call  culprit")
    for ranks in map(int, asked.ranks.split(",")):
        run = job(ranks, asked.collectives)
        calls = sum(len(trace.calls) for trace in run.traces)
        times = [time.perf_counter()]
        matching = match(run.traces)
        times.append(time.perf_counter())
        clock = fit(run.traces, matching)
        times.append(time.perf_counter())
        whole = Run(run.name, run.traces, run.topology, matching=matching, clock=clock)
        collectives.analyze(whole)
        times.append(time.perf_counter())
        found = stragglers.analyze(whole)
        times.append(time.perf_counter())
        parts = np.diff(times)
        print(
            f"{ranks:5} {calls:9,} {parts[0]:6.2f} {parts[1]:6.2f} {parts[2]:12.2f} "
            f"{parts[3]:11.2f} {parts.sum():8.2f} {parts.sum() / calls * 1e6:8.1f}  "
            f"{found.culprit_kind} {found.culprit_members} S {found.slowdown:.3f}",
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
