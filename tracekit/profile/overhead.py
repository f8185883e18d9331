"""What recording costs a step: torch.profiler's share, and ours on top of it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tracekit.core.stats import quantile

TURNS = 3  # at least
# In one recording at most: torch.profiler keeps what it saw, and a long one pays for that too.
TURN_STEPS = 10
# Which steps of four in a row carry our marks: a pace that drifts hits both kinds alike.
MARKED = (False, True, True, False)

Open = Callable[[], contextlib.AbstractContextManager[Any]]


def measure(
    step: Callable[[str, bool], None], profiler: Open, watch: Open, steps: int
) -> dict[str, Any]:
    """The time of a step without a profiler, with torch's alone, and with our marks as well.

    Steps with and without marks are neighbours in one recording and compared pair by
    pair: what else the machine does changes a step by more than the marks cost.

    Args:
        step: runs one step to its end; takes what to report, and whether to mark the step.
        profiler: torch's profiler, opened once per turn.
        watch: our marks and records.
        steps: the steps of each kind are three times as many, or a few more.

    Returns:
        The manifest's entry: number of steps of each kind, their median times in ns, the
        cost of torch.profiler (ratio of medians), and ours: median of the pairs' ratios
        with its 95 % interval, both less one.
    """
    times: dict[str, list[int]] = {"bare": [], "torch_profiler": [], "tracekit": []}

    def timed(kind: str, line: str) -> None:
        start = time.perf_counter_ns()
        step(f"{line}: {kind}", kind != "bare")
        times[kind].append(time.perf_counter_ns() - start)

    turns = max(TURNS, math.ceil(TURNS * steps / TURN_STEPS))
    share = math.ceil(TURNS * steps / turns)
    for turn in range(turns):
        line = f"measuring overhead, turn {turn + 1} of {turns}"
        for _ in range(share):
            timed("bare", line)
        with profiler():
            step(line, True)  # pays for the start
            for number in range(2 * share):
                marked = MARKED[number % len(MARKED)]
                with watch() if marked else contextlib.nullcontext():
                    timed("tracekit" if marked else "torch_profiler", line)
    medians = {kind: int(np.median(found)) for kind, found in times.items()}
    ours = quantile(np.divide(times["tracekit"], times["torch_profiler"]) - 1, 0.5)
    assert ours is not None  # at least one step is recorded
    return {
        "n": len(times["bare"]),
        "step_p50_ns": medians,
        "torch_profiler_ratio": medians["torch_profiler"] / medians["bare"] - 1,
        "tracekit_ratio": ours.value,
        "tracekit_ratio_interval": [ours.low, ours.high],
    }
