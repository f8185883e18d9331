"""Collective latency: how long communication takes once all are there, and how long it waits.

Definition: an instance is one operation of a group. Its ``transfer`` is the time from the
last arrival to its end (median over members), its ``wait`` from the first arrival to the last,
its ``duration`` the longest call. Statistics are over instances in counted steps, by operation,
axis, group size, dtype and message size in powers of two: p95 from 20 instances, p99 from
100, with order-statistic 95 % intervals. ``busbw`` is that of nccl-tests: bytes / transfer ×
2(n-1)/n for all_reduce, (n-1)/n for all_gather (output bytes), reduce_scatter (input bytes)
and all_to_all, 1 otherwise. ``latency_ns`` and ``bandwidth_gbps`` fit ``transfer = latency +
bytes / bandwidth`` over the sizes of one operation and group size.
``contention_factor`` is the median transfer over ``alone_p50_ns``, what ``tracekit bench`` took
for the same operation, group size and message (between its sizes, never beyond them).
An instance with a member missing, or between clocks that nothing connects, counts in
duration only. Between clocks, wait and transfer are checked against durations alone:
``disagreeing`` counts instances where the two differ by more than three standard errors.
Limits: the last to arrive is only named when the gap to the second exceeds its uncertainty.
On a CPU the end of a call includes the wake-up of its thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.alone import alone_ns
from tracekit.core.collective import P2P_OP, Matching, bus_factor
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.latency import Latencies, counted, latencies
from tracekit.core.run import LinkLatency, Run, why_no_device_work
from tracekit.core.stats import fixed_effect, line, quantile, spread
from tracekit.core.table import Column, Schema
from tracekit.core.timing import Timing, across, timing

MOST_SLOWEST = 50
_FIT_SIZES = 3  # message sizes an α–β fit needs at least
_FIT_EXPLAINED = 0.8  # share of the scatter a fit must explain
_FIT_SPAN = 8.0  # largest ÷ smallest size it needs
_ANOMALY_SPREADS = 6.0


def _tails(what: str, name: str) -> tuple[Column, ...]:
    return tuple(
        Column(f"{name}_{q}_ns", "Float64", "ns", f"{label} {what}.")
        for q, label in (
            ("p50", "Median"), ("p95", "95th percentile of"), ("p99", "99th percentile of"),
            ("max", "Longest"),
        )
    )  # fmt: skip


LATENCY = Schema(
    Column("op", "str", "", "Collective, or p2p."),
    Column("axis", "str", "", "Mesh axis; else what the group is called."),
    Column("group_size", "int32", "count", "Members of the group."),
    Column("span", "str", "", "intra or inter host; empty when hosts are not recorded."),
    Column("dtype", "str", "", "Element type."),
    Column("bytes", "int64", "bytes", "Median message size of the bucket; -1 when not recorded."),
    Column("n", "int64", "count", "Instances in counted steps."),
    Column("n_complete", "int64", "count", "Those of them with all members here and comparable."),
    *_tails("transfer, from the last arrival to the end", "transfer"),
    Column("transfer_p50_low_ns", "Float64", "ns", "Lower end of the median's 95 % interval."),
    Column("transfer_p50_high_ns", "Float64", "ns", "Upper end of the median's 95 % interval."),
    Column("transfer_p99_low_ns", "Float64", "ns", "Lower end of the p99's 95 % interval."),
    Column("transfer_p99_high_ns", "Float64", "ns", "Upper end of the p99's 95 % interval."),
    *_tails("wait, from the first arrival to the last", "wait"),
    *_tails("duration of the longest call", "duration"),
    Column("tail_factor", "Float64", "", "p99 ÷ p50 of the transfer."),
    Column("algbw_p50_gbps", "Float64", "gbps", "Bytes ÷ median transfer."),
    Column("busbw_p50_gbps", "Float64", "gbps", "algbw by the operation's bus factor."),
    Column("alone_p50_ns", "Float64", "ns", "Median when nothing else runs, by tracekit bench."),
    Column("contention_factor", "Float64", "", "Median transfer here ÷ alone."),
    Column("alone_refused", "str", "", "Why there is no time alone; else empty."),
)
SLOWEST = Schema(
    Column("op", "str", "", "Collective, or p2p."),
    Column("group", "str", "", "What the group is called, and its ranks."),
    Column("axis", "str", "", "Mesh axis; else what the group is called."),
    Column("seq", "int64", "", "The group's sequence number, or its place in the matched order."),
    Column("step", "Int64", "", "Step number; null outside steps."),
    Column("bytes", "int64", "bytes", "Message size; -1 when not recorded."),
    Column("duration_ns", "int64", "ns", "Longest call of a member."),
    Column("transfer_ns", "Int64", "ns", "From the last arrival to the end."),
    Column("wait_ns", "Int64", "ns", "From the first arrival to the last."),
    Column("late_rank", "Int32", "", "Last to arrive; null for a tie."),
    Column("uncertainty_ns", "Int64", "ns", "One standard error of the wait."),
    Column("status", "str", "", "ok, tie, partial or not_comparable."),
    Column("excess", "str", "", "What made it long: wait, or more transfer than its kind's."),
)
FITS = Schema(
    Column("op", "str", "", "Collective, or p2p."),
    Column("axis", "str", "", "Mesh axis; else what the group is called."),
    Column("group_size", "int32", "count", "Members of the group."),
    Column("span", "str", "", "intra or inter host; empty when hosts are not recorded."),
    Column("n", "int64", "count", "Instances fitted."),
    Column("sizes", "int64", "count", "Message sizes among them."),
    Column("latency_ns", "Float64", "ns", "Transfer of an empty message; null without a fit."),
    Column("bandwidth_gbps", "Float64", "gbps", "Bytes per further time; null without a fit."),
    Column("explained_ratio", "Float64", "ratio", "Share of the scatter that the fit explains."),
    Column("refused", "str", "", "Why there is no fit; else empty."),
)
PER_RANK = Schema(
    Column("rank", "int32", "", "Global rank."),
    Column("n", "int64", "count", "Complete synchronising calls."),
    Column("wait_ns", "int64", "ns", "Time it waited for the last to arrive, in counted steps."),
    Column("last", "int64", "count", "Times it clearly arrived last."),
    Column("end_offset_ns", "Float64", "ns", "Median end after the other members' median end."),
    Column("late_end", "bool", "", "It ends later than the others by far more than they scatter."),
)


@dataclass(frozen=True, slots=True, eq=False)
class CollectivesResult:
    """Latency of every kind of collective, the slowest ones, bandwidths, odd ends."""

    latency: pd.DataFrame
    slowest: pd.DataFrame
    fits: pd.DataFrame
    per_rank: pd.DataFrame
    matched_ratio: float
    margin: float | None
    wait_ratio: float | None
    clamped: int
    disagreeing: int
    findings: tuple[Finding, ...]


def analyze(run: Run) -> CollectivesResult:
    """Measure the latency of all collectives.

    Raises:
        MissingDataError: no rank has communication.
    """
    calls = sum(len(trace.calls) for trace in run.traces)
    if not calls:
        if not any(len(trace.kernels) for trace in run.traces):
            raise MissingDataError(why_no_device_work(run))
        raise MissingDataError(
            "no communication in any trace; record a job of more than one rank, or name its "
            "kernels with --comm-pattern"
        )
    matching, clock = across(run)
    times = timing(run.traces, matching, clock)
    every = latencies(run, matching, times)
    complete = every.wait >= 0
    duration = int(every.duration[complete].sum())
    latency = _latency(every, run.baseline)
    return CollectivesResult(
        latency=latency,
        slowest=_slowest(every),
        fits=_fits(every),
        per_rank=_per_rank(run, matching, times),
        matched_ratio=len(matching.rows) / calls,
        margin=None if matching.margin is None or math.isinf(matching.margin) else matching.margin,
        wait_ratio=int(every.wait[complete].sum()) / duration if duration else None,
        clamped=times.clamped,
        disagreeing=times.disagreeing,
        findings=_findings(run, every, latency),
    )


# -- latency -------------------------------------------------------------------------


def _kinds(every: Latencies, fields: Sequence[str]) -> list[npt.NDArray[np.intp]]:
    """Rows of counted instances by equal values of these fields, in order of the values."""
    frame = pd.DataFrame({name: getattr(every, name) for name in fields})
    if "bytes" in fields:
        positive = np.maximum(every.bytes, 1)
        frame["bytes"] = np.where(every.bytes > 0, np.floor(np.log2(positive)), every.bytes - 1)
    frame = frame[every.counted]
    groups = frame.groupby(list(fields), sort=True, dropna=False)
    return [np.asarray(rows) for _, rows in sorted(groups.groups.items(), key=lambda x: str(x[0]))]


def _latency(every: Latencies, baseline: Sequence[LinkLatency]) -> pd.DataFrame:
    rows = [
        _against_alone(_latency_row(every, chosen), baseline)
        for chosen in _kinds(every, ("op", "axis", "size", "span", "dtype", "bytes"))
    ]
    rows.sort(key=lambda row: -row["n"] * (row["duration_p50_ns"] or 0.0))
    return _frame(LATENCY, rows)


def _against_alone(row: dict[str, Any], baseline: Sequence[LinkLatency]) -> dict[str, Any]:
    alone, refused = alone_ns(baseline, row["op"], row["group_size"], row["bytes"])
    typical = row["transfer_p50_ns"]
    factor = None if alone is None or typical is None else typical / alone
    return row | {
        "alone_p50_ns": alone,
        "contention_factor": factor,
        "alone_refused": refused,
    }


def _frame(schema: Schema, rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in schema.names}
    return table(schema, columns)


def _latency_row(every: Latencies, chosen: npt.NDArray[np.intp]) -> dict[str, Any]:
    first = int(chosen[0])
    known = chosen[every.transfer[chosen] >= 0]
    size, op = int(every.size[first]), str(every.op[first])
    bytes_ = int(np.median(every.bytes[chosen]))
    row: dict[str, Any] = {
        "op": op,
        "axis": str(every.axis[first]),
        "group_size": size,
        "span": str(every.span[first]),
        "dtype": str(every.dtype[first]),
        "bytes": bytes_,
        "n": len(chosen),
        "n_complete": len(known),
    }
    row |= _quantiles("transfer", every.transfer[known])
    row |= _quantiles("wait", every.wait[known])
    row |= _quantiles("duration", every.duration[chosen])
    middle, last = quantile(every.transfer[known], 0.5), quantile(every.transfer[known], 0.99)
    for name, value in (("p50", middle), ("p99", last)):
        row[f"transfer_{name}_low_ns"] = None if value is None else value.low
        row[f"transfer_{name}_high_ns"] = None if value is None else value.high
    typical = row["transfer_p50_ns"]
    row["tail_factor"] = row["transfer_p99_ns"] / typical if last and typical else None
    # bytes per ns are GB/s.
    speed = bytes_ / typical if typical and bytes_ > 0 else None
    row["algbw_p50_gbps"] = speed
    row["busbw_p50_gbps"] = None if speed is None else speed * bus_factor(op, size)
    return row


def _quantiles(name: str, values: npt.NDArray[np.int64]) -> dict[str, float | None]:
    found = {
        q: quantile(values, level) for q, level in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    out = {f"{name}_{q}_ns": None if item is None else item.value for q, item in found.items()}
    out[f"{name}_max_ns"] = float(values.max()) if len(values) else None
    return out


def _slowest(every: Latencies) -> pd.DataFrame:
    """The longest instances, and what made each longer than its kind."""
    order = np.argsort(-every.duration, kind="stable")[:MOST_SLOWEST]
    transfer = _typical(every, every.transfer)
    excess = []
    for row in order.tolist():
        if every.wait[row] < 0:
            excess.append("")
            continue
        moved = every.transfer[row] - transfer[row]
        excess.append("wait" if every.wait[row] >= moved else "transfer")
    return table(
        SLOWEST,
        {
            "op": every.op[order],
            "group": every.group[order],
            "axis": every.axis[order],
            "seq": every.seq[order],
            "step": _nullable(every.step[order]),
            "bytes": every.bytes[order],
            "duration_ns": every.duration[order],
            "transfer_ns": _nullable(every.transfer[order]),
            "wait_ns": _nullable(every.wait[order]),
            "late_rank": _nullable(every.late[order]),
            "uncertainty_ns": _nullable(
                np.where(every.wait >= 0, np.nan_to_num(every.sigma), -1)[order].astype(np.int64)
            ),
            "status": every.status[order],
            "excess": excess,
        },
    )


def _nullable(values: npt.NDArray[np.int64]) -> pd.Series:
    return pd.Series(values, dtype="Int64").mask(pd.Series(values < 0))


def _typical(every: Latencies, values: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Median over the known instances of a row's kind."""
    frame = pd.DataFrame(
        {name: getattr(every, name) for name in ("op", "axis", "size", "dtype", "bytes")}
    )
    frame["value"] = np.where(values >= 0, values, np.nan)
    keys = ["op", "axis", "size", "dtype", "bytes"]
    out: npt.NDArray[np.float64] = (
        frame.groupby(keys, dropna=False)["value"].transform("median").to_numpy()
    )
    return out


# -- latency and bandwidth -----------------------------------------------------------


def _fits(every: Latencies) -> pd.DataFrame:
    rows = []
    for chosen in _kinds(every, ("op", "axis", "size", "span")):
        known = chosen[(every.transfer[chosen] > 0) & (every.bytes[chosen] > 0)]
        if not len(known):
            continue
        first = int(chosen[0])
        found, refused = _fit(every.bytes[known], every.transfer[known])
        rows.append(
            {
                "op": str(every.op[first]),
                "axis": str(every.axis[first]),
                "group_size": int(every.size[first]),
                "span": str(every.span[first]),
                "n": len(known),
                "sizes": len(np.unique(every.bytes[known])),
                "latency_ns": found[0] if found else None,
                "bandwidth_gbps": found[1] if found else None,
                "explained_ratio": found[2] if found else None,
                "refused": refused,
            }
        )
    return _frame(FITS, rows)


def _fit(
    sizes: npt.NDArray[np.int64], transfer: npt.NDArray[np.int64]
) -> tuple[tuple[float, float, float] | None, str]:
    """Latency (ns), bandwidth (GB/s) and the share explained; or why there is no fit.

    One point per size, its median, weighted so that relative errors count alike.
    """
    unique = np.unique(sizes)
    if len(unique) < _FIT_SIZES:
        return None, f"{len(unique)} message sizes; {_FIT_SIZES} are needed"
    if unique[-1] / unique[0] < _FIT_SPAN:
        return None, f"sizes span less than {_FIT_SPAN:.0f}×"
    middle = np.array([np.median(transfer[sizes == size]) for size in unique])
    latency, slope, explained = line(unique.astype(np.float64), middle, 1 / middle**2)
    if slope <= 0 or latency < 0:
        return None, "transfer does not grow with size from a positive latency"
    if explained < _FIT_EXPLAINED:
        return None, f"a line explains only {percent(explained)} of the scatter"
    return (latency, 1 / slope, explained), ""


# -- ranks ---------------------------------------------------------------------------


def _per_rank(run: Run, matching: Matching, times: Timing) -> pd.DataFrame:
    """Waiting, arriving last, and ending late."""
    rows = matching.rows
    use = matching.synchronising() & times.comparable & counted(run, matching)
    middle = _median_end(matching, times)
    last = times.last[(times.last >= 0) & use]
    counts = np.bincount(rows.trace[last], minlength=len(run.traces))
    out: dict[str, Any] = {name: [] for name in PER_RANK.names}
    scatter: list[float] = []
    for place, trace in enumerate(run.traces):
        mine = np.flatnonzero((rows.trace == place) & use[rows.instance])
        offset, error = fixed_effect(times.end_ns[mine] - middle[rows.instance[mine]])
        scatter.append(error)
        out["rank"].append(trace.rank)
        out["n"].append(len(mine))
        out["wait_ns"].append(int(np.maximum(times.wait_ns[mine], 0).sum()))
        out["last"].append(int(counts[place]))
        out["end_offset_ns"].append(offset if len(mine) else None)
    known = [value for value in out["end_offset_ns"] if value is not None]
    width = spread(known) if len(known) >= 4 else 0.0
    for value, error in zip(out["end_offset_ns"], scatter, strict=True):
        limit = max(_ANOMALY_SPREADS * max(width, error), 10_000.0)
        out["late_end"].append(value is not None and width > 0 and value > limit)
    return table(PER_RANK, out)


def _median_end(matching: Matching, times: Timing) -> npt.NDArray[np.int64]:
    rows = matching.rows
    order = np.lexsort((times.end_ns, rows.instance))
    count = np.bincount(rows.instance, minlength=len(matching.instances))
    first = np.cumsum(count) - count
    out: npt.NDArray[np.int64] = times.end_ns[order][first + np.maximum(count - 1, 0) // 2]
    return out


# -- findings ------------------------------------------------------------------------


def _findings(run: Run, every: Latencies, latency: pd.DataFrame) -> tuple[Finding, ...]:
    """Waiting inside collectives, by axis; and tails of the transfer itself."""
    step_ns, steps = _step_time(run)
    if not step_ns:
        return ()
    made = []
    # A pipeline's receives wait by design; its bubbles are another analysis' subject.
    known = every.counted & (every.wait >= 0) & (every.op != P2P_OP)
    for axis in sorted({str(item) for item in every.axis[known]}):
        chosen = known & (every.axis == axis)
        # Above the resolution of the clocks only.
        wait = np.where(every.wait[chosen] > 3 * every.sigma[chosen], every.wait[chosen], 0)
        duration = int(every.duration[chosen].sum())
        share = int(wait.sum()) / duration if duration else 0.0
        # The longest wait of each instance, as if every group had one such rank.
        per_rank = int((wait * every.size[chosen]).sum()) / 2 / max(len(run.traces), 1)
        lost = per_rank / max(steps, 1)
        if share < 0.1 or lost < 0.01 * step_ns:
            continue
        made.append(
            Finding(
                analysis="collectives",
                title=f"{percent(share)} of the time in {axis} communication is waiting for the "
                "last rank to arrive, not transfer",
                lost_ns_per_step=round(lost),
                lost_ratio=min(lost / step_ns, 1.0),
                ranks=(),
                evidence=f"{int(chosen.sum())} complete instances, clocks aligned",
                confidence=Confidence.HIGH,
                advice="find out who arrives late and why: the stragglers page follows it up",
            )
        )
    for row in latency.itertuples():
        if pd.isna(row.transfer_p99_ns) or row.tail_factor < 3:
            continue
        lost = 0.01 * row.n / max(steps, 1) * (row.transfer_p99_ns - row.transfer_p50_ns)
        if lost < 0.005 * step_ns:
            continue
        made.append(
            Finding(
                analysis="collectives",
                title=f"{row.op} over {row.axis} has a heavy tail: its p99 transfer is "
                f"{row.tail_factor:.1f} times its median",
                lost_ns_per_step=round(lost),
                lost_ratio=lost / step_ns,
                ranks=(),
                evidence=f"{row.n_complete} transfers of {row.bytes} bytes",
                confidence=Confidence.HIGH,
                advice="look for other traffic on these links at those times",
            )
        )
    return tuple(made)


def _step_time(run: Run) -> tuple[float, int]:
    """Median counted step in ns, and how many a rank has."""
    lengths = [
        (trace.steps.end_ns - trace.steps.start_ns)[trace.statistic_steps()]
        for trace in run.traces
        if len(trace.steps)
    ]
    if not lengths:
        return 0.0, 0
    return float(np.median(np.concatenate(lengths))), max(map(len, lengths))


ANALYZER = Analyzer(
    name="collectives",
    question="How long do collectives take, and how long do they wait?",
    analyze=analyze,
    result=CollectivesResult,
    tables={"latency": LATENCY, "slowest": SLOWEST, "fits": FITS, "per_rank": PER_RANK},
    scalars=(
        Column("matched_ratio", "float64", "ratio", "Share of the calls matched across ranks."),
        Column("margin", "float64", "", "Least margin of a vote; null when none was needed."),
        Column("wait_ratio", "float64", "ratio", "Longest wait as a share of the longest call."),
        Column("clamped", "int64", "count", "Ends before the last arrival, counted as 0 transfer."),
        Column("disagreeing", "int64", "count", "Instances whose two transfers differ by > 3 σ."),
    ),
)
