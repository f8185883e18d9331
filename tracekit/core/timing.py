"""Wait and transfer of every call: by aligned clocks, and checked without clocks.

Definitions: ``arrival`` is when a rank enters an instance, on the common clock of
its component; ``wait = last arrival - own arrival``; ``transfer = own end - last
arrival``, at least 0. Without clocks, a synchronising collective transfers for about
the shortest duration among its members, and a member waits the rest of its own.
The transfer of a coalesced kernel is an upper bound: the least of its members'.
An instance with a member missing has neither: the last to arrive may be the one that
is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.clock import END_SIGMA_NS, END_SIGMA_RATIO, ClockFit, fit
from tracekit.core.coalesced import carried_of
from tracekit.core.collective import Matching
from tracekit.core.match import match
from tracekit.core.onesided import bounded
from tracekit.core.run import Run
from tracekit.core.trace import Int64, RankTrace

Bool = npt.NDArray[np.bool_]
Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """Columns beside ``matching.rows``, and per instance. Times in ns on the common clock.

    Attributes:
        arrival_ns, end_ns: (rows,) int64.
        wait_ns, transfer_ns: (rows,) int64; -1 where the instance is partial or its
            ranks cannot be compared.
        last: (instances,) row of the last to arrive, -1 for a tie or an unknown one.
        transfer: (instances,) int64 ns, median over the members; -1 when unknown.
        shortest_ns: (instances,) int64 ns, the shortest duration: the transfer without clocks.
        sigma_ns: (instances,) float64 ns, one standard error of a member's wait.
        comparable: (instances,) whether wait and transfer are known.
        waits_for_all: (instances,) whether no member left before the last had arrived.
        clamped: rows whose end lay before the last arrival, by more than the uncertainty.
        disagreeing: complete instances whose two transfers differ by more than 3 sigma.
    """

    arrival_ns: Int64
    end_ns: Int64
    wait_ns: Int64
    transfer_ns: Int64
    last: Int64
    transfer: Int64
    shortest_ns: Int64
    sigma_ns: Float
    comparable: Bool
    waits_for_all: Bool
    clamped: int
    disagreeing: int


def across(run: Run) -> tuple[Matching, tuple[ClockFit, ...]]:
    """The matching and the clocks of a run; worked out where the run was not loaded."""
    matching = match(run.traces) if run.matching is None else run.matching
    return matching, run.clock or bounded(run.traces, matching, fit(run.traces, matching))[0]


def timing(traces: Sequence[RankTrace], matching: Matching, clock: Sequence[ClockFit]) -> Timing:
    """Wait and transfer of every matched call."""
    rows = matching.rows
    size = len(matching.instances)
    arrival, end = rows.start_ns.copy(), rows.end_ns.copy()
    for place in np.unique(rows.trace).tolist():
        mine = rows.trace == place
        arrival[mine] = clock[place].aligned(arrival[mine])
        end[mine] = clock[place].aligned(end[mine])
    instance = rows.instance
    component = np.array([item.component for item in clock] or [0], dtype=np.int64)
    comparable = matching.complete() & _single(component[rows.trace], instance, size)
    low = np.iinfo(np.int64).min
    last_at = np.full(size, low)
    np.maximum.at(last_at, instance, arrival)
    shortest = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(shortest, instance, rows.end_ns - rows.start_ns)
    error = np.array([item.uncertainty_ns for item in clock] or [0.0])
    worst = np.zeros(size)
    np.maximum.at(worst, instance, error[rows.trace])
    cpu = np.array([trace.device_type == "cpu" for trace in traces] or [False], dtype=np.bool_)
    sigma = np.hypot(np.hypot(END_SIGMA_NS, END_SIGMA_RATIO * shortest), worst)
    known = comparable[instance]
    raw = end - last_at[instance]
    transfer = np.where(known, np.maximum(raw, 0), -1)
    # A coalesced kernel goes on after a transfer of its own: the earlier of two ends is nearer.
    shared = carried_of(traces, matching) > 1
    least = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(least, instance, transfer)
    transfer = np.where(shared, least[instance], transfer)
    wait = np.where(known, last_at[instance] - arrival, -1)
    early = np.zeros(size, dtype=np.bool_)
    slack = np.where(cpu[rows.trace], 1_000_000.0, 3 * sigma[instance])
    too_early = known & (raw < -slack) & ~_eager(traces, matching)
    np.logical_or.at(early, instance, too_early)
    per_instance = _medians(transfer, instance, size)
    per_instance[~comparable] = -1
    off = np.abs(per_instance - shortest) > 3 * sigma
    synchronising = matching.synchronising() & comparable & matching.even()
    return Timing(
        arrival_ns=arrival,
        end_ns=end,
        wait_ns=wait,
        transfer_ns=transfer,
        last=_last(arrival, instance, size, last_at, comparable, sigma),
        transfer=per_instance,
        shortest_ns=shortest,
        sigma_ns=sigma,
        comparable=comparable,
        waits_for_all=comparable & ~early,
        clamped=int(too_early.sum()),
        disagreeing=int((off & synchronising).sum()),
    )


def _eager(traces: Sequence[RankTrace], matching: Matching) -> Bool:
    """(rows,) sends of a CPU backend, which may be over before their receiver arrives."""
    return matching.per_row(
        [trace.calls_of({"send"}) & (trace.device_type == "cpu") for trace in traces]
    )


def _single(values: Int64, instance: npt.NDArray[np.int32], size: int) -> Bool:
    """(instances,) whether all rows of an instance have the same value."""
    low = np.full(size, np.iinfo(np.int64).max)
    high = np.full(size, -1, dtype=np.int64)
    np.minimum.at(low, instance, values)
    np.maximum.at(high, instance, values)
    out: Bool = low == high
    return out


def _medians(values: Int64, instance: npt.NDArray[np.int32], size: int) -> Int64:
    """(instances,) lower median of the rows of each instance."""
    order = np.lexsort((values, instance))
    count = np.bincount(instance, minlength=size)
    first = np.cumsum(count) - count
    out: Int64 = values[order][first + np.maximum(count - 1, 0) // 2]
    return out


def _last(
    arrival: Int64, instance: npt.NDArray[np.int32], size: int,
    last_at: Int64, comparable: Bool, sigma: Float,
) -> Int64:  # fmt: skip
    """Row of the last to arrive, where the gap to the second exceeds its uncertainty."""
    order = np.lexsort((arrival, instance))
    count = np.bincount(instance, minlength=size)
    final = np.cumsum(count) - 1
    out = order[final].astype(np.int64)
    second = arrival[order[np.maximum(final - 1, 0)]]
    clear = comparable & (count > 1) & (last_at - second > 2 * np.sqrt(2) * sigma)
    out[~clear] = -1
    return out
