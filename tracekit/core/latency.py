"""How long each instance of communication took, one row per instance.

``transfer`` is the time from the last arrival to the end (median over members), ``wait`` from
the first arrival to the last, ``duration`` the longest call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.collective import P2P, P2P_OP, Matching
from tracekit.core.run import Run
from tracekit.core.timing import Timing


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """One row per instance; calls that nothing was matched with are instances of one."""

    op: npt.NDArray[np.object_]
    axis: npt.NDArray[np.object_]
    group: npt.NDArray[np.object_]
    size: npt.NDArray[np.int64]
    span: npt.NDArray[np.object_]
    dtype: npt.NDArray[np.object_]
    bytes: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    duration: npt.NDArray[np.int64]
    transfer: npt.NDArray[np.int64]  # -1 unknown
    wait: npt.NDArray[np.int64]  # -1 unknown
    late: npt.NDArray[np.int64]  # rank, -1 for none
    sigma: npt.NDArray[np.float64]
    status: npt.NDArray[np.object_]
    counted: npt.NDArray[np.bool_]


def latencies(run: Run, matching: Matching, times: Timing) -> Latencies:
    """Of all calls of a run, matched ones first."""
    return _together(_instances(run, matching, times), _alone(run, matching))


def _instances(run: Run, matching: Matching, times: Timing) -> Latencies:
    instances, rows = matching.instances, matching.rows
    host = _hosts(run)
    count = len(instances)
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, np.iinfo(np.int64).min)
    longest = np.zeros(count, dtype=np.int64)
    np.minimum.at(low, rows.instance, times.arrival_ns)
    np.maximum.at(high, rows.instance, times.arrival_ns)
    np.maximum.at(longest, rows.instance, rows.end_ns - rows.start_ns)
    waits = times.comparable & times.waits_for_all
    ranks = np.array(run.ranks, dtype=np.int64)
    late = np.where(
        waits & (times.last >= 0), ranks[rows.trace[np.maximum(times.last, 0)]] if count else 0, -1
    )
    status = np.where(late >= 0, "ok", "tie").astype(object)
    status[~waits] = "not_comparable"
    status[~matching.complete()] = "partial"
    names = np.array((*matching.names, ""), dtype=object)
    group = instances.group
    return Latencies(
        op=names[instances.op],
        axis=_lookup([_axis(g.axis, g.description) for g in matching.groups], group),
        group=_lookup([_named(g.description or g.name, g.ranks) for g in matching.groups], group),
        size=instances.members.astype(np.int64),
        span=_lookup([_span(host, g.ranks) for g in matching.groups], group),
        dtype=names[instances.dtype],
        bytes=instances.bytes,
        seq=instances.seq,
        step=instances.step,
        duration=longest,
        transfer=np.where(waits, times.transfer, -1),
        wait=np.where(waits, high - low, -1),
        late=late,
        sigma=times.sigma_ns,
        status=status,
        counted=counted(run, matching),
    )


def _lookup(values: Sequence[str], index: npt.NDArray[np.int32]) -> npt.NDArray[np.object_]:
    return np.array([*values, ""], dtype=object)[index]


def _axis(axis: str | None, description: str) -> str:
    if axis is not None:
        return axis
    return "world" if description in {"default_pg", "undefined", ""} else description


def _named(name: str, ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"{name} ({listed})" if ranks else name


def _hosts(run: Run) -> dict[int, str | None]:
    return {trace.rank: trace.host for trace in run.traces}


def _span(host: Mapping[int, str | None], ranks: Sequence[int]) -> str:
    """Whether a group stays on one host; empty when that is not known."""
    known = [host.get(rank) for rank in ranks]
    if not known or None in known:
        return ""
    return "intra" if len(set(known)) == 1 else "inter"


def counted(run: Run, matching: Matching) -> npt.NDArray[np.bool_]:
    """(instances,) in a step that statistics use on every rank that has it."""
    rows = matching.rows
    good = np.ones(len(matching.instances), dtype=np.bool_)
    for place, trace in enumerate(run.traces):
        mine = np.flatnonzero(rows.trace == place)
        step = trace.kernels.step[trace.calls.kernel[rows.call[mine]]]
        use = np.concatenate((trace.statistic_steps(), [False]))
        np.logical_and.at(good, rows.instance[mine], use[step])
    return good if good.any() else np.ones(len(good), dtype=np.bool_)


def _alone(run: Run, matching: Matching) -> Latencies:
    """Calls that were not matched: only their durations are known."""
    partial = "partial" if run.missing_ranks else "not_comparable"
    host = _hosts(run)
    frames = []
    for place, trace in enumerate(run.traces):
        free = np.ones(len(trace.calls), dtype=np.bool_)
        free[matching.rows.call[matching.rows.trace == place]] = False
        rows = np.flatnonzero(free)
        calls = trace.calls
        kernel = calls.kernel[rows]
        names = np.array((*trace.names, ""), dtype=object)
        group = calls.group[rows]
        op = names[calls.op_id[rows]]
        step = trace.kernels.step[kernel]
        use = trace.statistic_steps()
        counted = np.concatenate((use, [not len(use)]))[step]
        numbers = np.concatenate((trace.steps.number, [-1]))
        empty = np.full(len(rows), -1, dtype=np.int64)
        frames.append(
            Latencies(
                op=np.array([P2P_OP if item in P2P else item for item in op], dtype=object),
                axis=_lookup([_axis(g.axis, g.description) for g in trace.groups], group)
                if len(trace.groups)
                else np.full(len(rows), "", dtype=object),
                group=_lookup(
                    [_named(g.description or g.name, g.ranks) for g in trace.groups], group
                ),
                size=np.array([*(max(len(g.ranks), 1) for g in trace.groups), 1])[group],
                span=_lookup([_span(host, g.ranks) for g in trace.groups], group),
                dtype=names[calls.dtype_id[rows]],
                bytes=np.maximum(calls.in_bytes, calls.out_bytes)[rows],
                seq=calls.seq[rows],
                step=numbers[step],
                duration=(trace.kernels.end_ns - trace.kernels.start_ns)[kernel],
                transfer=empty,
                wait=empty,
                late=empty,
                sigma=np.full(len(rows), np.nan),
                status=np.full(len(rows), partial, dtype=object),
                counted=counted,
            )
        )
    if not frames:
        raise AssertionError("a run has at least one rank")
    return _together(*frames)


def _together(*parts: Latencies) -> Latencies:
    return Latencies(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Latencies.__slots__)
    )
