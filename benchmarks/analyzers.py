"""What each analysis costs: seconds per million kernels on one core.

    python benchmarks/analyzers.py [--kernels 1000000] [--ranks 2] [--check]

The traces are simulated: a pipeline with experts and data parallelism, every kind of call,
all markers, repeated in time until a rank has so many kernels. ``--check`` fails above one
second per million kernels, for the analyses this file is about.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import sys
import time
from typing import Any

import numpy as np

from tracekit import simulate
from tracekit.analysis._contract import analyzers
from tracekit.core.errors import MissingDataError
from tracekit.core.run import Run
from tracekit.core.timing import across
from tracekit.core.trace import RankTrace

CHECKED = ("breakdown", "contention", "experts", "kernels", "launch", "overlap", "pipeline")
LIMIT_S = 1.0
JOB = {
    "pp": 2, "ep": 2, "layers": 8, "microbatches": 8, "steps": 4, "routing": "zipf:1.1",
    "contention": {"*": 1.1},
}  # fmt: skip


def repeated(trace: RankTrace, times: int) -> RankTrace:
    """The trace so many times in a row, with all its steps and calls."""
    low = int(min(trace.steps.start_ns[0], trace.kernels.start_ns.min()))
    period = int(max(trace.steps.end_ns[-1], trace.kernels.end_ns.max())) - low + 1_000_000
    shift = np.arange(times, dtype=np.int64)

    def column(name: str, values: Any) -> Any:
        many = np.tile(values, times)
        turn = np.repeat(shift, len(values))
        if name.endswith("_ns") and name != "shape_ns":
            return np.where(many < 0, many, many + turn * period).astype(values.dtype)
        step = {"step": len(trace.steps), "kernel": len(trace.kernels), "call": len(trace.calls),
                "number": len(trace.steps), "seq": 1 << 20}.get(name, 0)  # fmt: skip
        return np.where(many < 0, many, many + turn * step).astype(values.dtype)

    def table(part: Any) -> Any:
        return type(part)(
            **{
                item.name: column(item.name, getattr(part, item.name))
                for item in dataclasses.fields(part)
            }
        )

    return dataclasses.replace(
        trace,
        steps=table(trace.steps),
        kernels=table(trace.kernels),
        calls=table(trace.calls),
        spans=table(trace.spans),
        origins=table(trace.origin()),
        splits=table(trace.splits),
        loads=table(trace.loads),
    )


def large(kernels: int, ranks: int) -> Run:
    """A run of this many ranks, with about this many kernels in all."""
    spec = simulate.made({**JOB, "dp": max(1, ranks // 4)})
    run = simulate.load(spec)
    chosen = run.traces
    each = len(chosen[0].kernels)
    times = max(1, round(kernels / (each * len(chosen))))
    traces = tuple(repeated(trace, times) for trace in chosen)
    made = dataclasses.replace(run, traces=traces, matching=None, clock=())
    matching, clock = across(made)
    return dataclasses.replace(made, matching=matching, clock=clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    run = large(options.kernels, options.ranks)
    total = sum(len(trace.kernels) for trace in run.traces)
    print(f"{len(run.traces)} ranks, {total:,} kernels, {len(run.traces[0].steps)} steps each")
    slow = []
    for name, analyzer in analyzers().items():
        begin = time.process_time()
        try:
            analyzer.analyze(run)
            word = ""
        except MissingDataError as error:
            word = f"refused: {error}"
        spent = (time.process_time() - begin) / (total / 1e6)
        print(f"{name:13} {spent:6.2f} s per million kernels {word}")
        if name in CHECKED and spent > LIMIT_S:
            slow.append(name)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak {peak:,.0f} MiB")
    if options.check and slow:
        sys.exit(f"too slow: {', '.join(slow)}")


if __name__ == "__main__":
    main()
