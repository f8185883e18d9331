"""Waiting for another rank, which pages show apart from transfer."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from tracekit.core.activity import devices
from tracekit.core.collective import Matching
from tracekit.core.intervals import covered_within, subtract, union
from tracekit.core.run import Run
from tracekit.core.timing import Timing, across, timing
from tracekit.core.trace import Int64, RankTrace


@functools.lru_cache(maxsize=4)
def timed(run: Run) -> tuple[Matching, Timing]:
    """The calls of a run matched across ranks, with their waits; several pages need them."""
    matching, clock = across(run)
    return matching, timing(run.traces, matching, clock)


def last_arrivals(run: Run, place: int) -> Int64:
    """(calls,) when the last member of each call arrived, on the clock of that trace.

    Long before the call where that is not known.
    """
    matching, known = timed(run)
    out = np.full(len(run.traces[place].calls), np.iinfo(np.int64).min)
    mine = np.flatnonzero((matching.rows.trace == place) & (known.wait_ns > 0))
    out[matching.rows.call[mine]] = matching.rows.start_ns[mine] + known.wait_ns[mine]
    return out


@functools.lru_cache(maxsize=4)
def exposed_waits(run: Run) -> pd.Series:
    """Time of each (rank, step) spent in waiting with no compute running, in ns.

    Empty where no wait is known. Ranks with several devices are left out: their
    waits cannot be told apart by device here.
    """
    found: dict[tuple[int, int], int] = {}
    for place, trace in enumerate(run.traces):
        until = last_arrivals(run, place)
        if (until > 0).any():
            waits = _in_steps(trace, until)
            found |= {
                (trace.rank, int(number)): int(wait)
                for number, wait in zip(trace.steps.number, waits, strict=True)
            }
    index = pd.MultiIndex.from_tuples(found, names=["rank", "step"]) if found else None
    return pd.Series(list(found.values()), index=index, dtype=float)


def _in_steps(trace: RankTrace, until: Int64) -> Int64:
    """(steps,) ns of waiting that no compute hides."""
    own = [activity for _, activity in devices(trace)]
    if len(own) != 1:
        return np.zeros(len(trace.steps), dtype=np.int64)
    start = trace.kernels.start_ns[trace.calls.kernel]
    end = np.minimum(until, trace.kernels.end_ns[trace.calls.kernel])
    waiting = end > start
    spans = subtract(union(start[waiting], end[waiting]), own[0].compute)
    return covered_within(spans, trace.steps.start_ns, trace.steps.end_ns)
