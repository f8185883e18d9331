"""Communication overlap: how much communication is hidden behind compute.

Definition: C = time covered by communication, K = by compute, inside a step;
``hidden = |C & K|``, ``exposed = |C - K|``, ``overlap_ratio = hidden / |C|`` (null
where there is no communication). Per mesh axis and per operation, C is the
communication of that axis or operation alone, so their parts may overlap each
other and need not sum to the whole.
Limits: a collective that spins for a late peer counts as communication, so
hidden time may be hidden waiting, which is no win.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.activity import devices, kernel_union
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.intervals import Intervals, covered_within, intersect, length
from tracekit.core.run import Run, why_no_device_work
from tracekit.core.table import Column, Schema
from tracekit.core.trace import KernelKind, RankTrace

_TIMES = (
    Column("comm_ns", "int64", "ns", "Time covered by communication."),
    Column("hidden_ns", "int64", "ns", "Part of comm_ns with a compute kernel running."),
    Column("exposed_ns", "int64", "ns", "Part of comm_ns with no compute kernel running."),
    Column("overlap_ratio", "Float64", "ratio", "hidden_ns / comm_ns; null without communication."),
)
PER_STEP = Schema(
    Column("rank", "int32", "", "Global rank."),
    Column("device", "int32", "", "Device index; -1 for the CPU."),
    Column("step", "int64", "", "Step number."),
    *_TIMES,
    Column("counted", "bool", "", "Used in statistics: not the first step of a capture, not cut."),
)
PER_RANK = Schema(
    Column("rank", "int32", "", "Global rank."),
    Column("device", "int32", "", "Device index; -1 for the CPU."),
    *_TIMES,
)
PER_AXIS = Schema(
    Column("axis", "str", "", "Mesh axis; else the group's name; 'unknown' without a group."),
    Column("n", "int64", "count", "Communication kernels in counted steps, over all ranks."),
    *_TIMES,
)
PER_OP = Schema(
    Column("op", "str", "", "Collective or p2p operation."),
    Column("n", "int64", "count", "Communication kernels in counted steps, over all ranks."),
    *_TIMES,
)


@dataclass(frozen=True, slots=True, eq=False)
class OverlapResult:
    """Hidden and exposed communication; ratios are over counted steps."""

    per_step: pd.DataFrame
    per_rank: pd.DataFrame  # over the whole capture, steps or not
    per_axis: pd.DataFrame  # over counted steps of all ranks
    per_op: pd.DataFrame
    overlap_ratio: float | None
    exposed_ratio: float
    worst_rank: int
    findings: tuple[Finding, ...]


def analyze(run: Run) -> OverlapResult:
    """Measure overlap per rank and step, per mesh axis and per operation.

    Raises:
        MissingDataError: no rank has communication.
    """
    if not any((trace.kernels.kind == KernelKind.COMMUNICATION).any() for trace in run.traces):
        if not any(len(trace.kernels) for trace in run.traces):
            raise MissingDataError(why_no_device_work(run))
        raise MissingDataError(
            "no communication in any trace; record a job of more than one rank, or name its "
            "kernels with --comm-pattern"
        )
    per_step = pd.concat([_per_step(trace) for trace in run.traces], ignore_index=True)
    per_rank = pd.concat([_per_rank(trace) for trace in run.traces], ignore_index=True)
    counted = per_step[per_step.counted]
    step_ns = _counted_step_ns(run)
    exposed = counted.groupby("rank").exposed_ns.sum()
    comm_ns = int(counted.comm_ns.sum())
    result_ratio = int(counted.hidden_ns.sum()) / comm_ns if comm_ns else None
    per_axis = _grouped(run, PER_AXIS, "axis", _axis_of_calls)
    return OverlapResult(
        per_step=per_step,
        per_rank=per_rank,
        per_axis=per_axis,
        per_op=_grouped(run, PER_OP, "op", _op_of_calls),
        overlap_ratio=result_ratio,
        exposed_ratio=int(counted.exposed_ns.sum()) / step_ns if step_ns else 0.0,
        worst_rank=int(exposed.idxmax()) if len(exposed) else run.ranks[0],
        findings=_findings(run, counted, per_axis, step_ns),
    )


def _ratio(hidden: npt.ArrayLike, comm: npt.ArrayLike) -> list[float | None]:
    """hidden / comm, null where there is no communication."""
    pairs = zip(np.asarray(hidden).tolist(), np.asarray(comm).tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]


def _times(comm: npt.ArrayLike, hidden: npt.ArrayLike) -> dict[str, npt.ArrayLike]:
    """The shared columns of all tables."""
    comm, hidden = np.asarray(comm), np.asarray(hidden)
    return {
        "comm_ns": comm,
        "hidden_ns": hidden,
        "exposed_ns": comm - hidden,
        "overlap_ratio": _ratio(hidden, comm),
    }


def _per_step(trace: RankTrace) -> pd.DataFrame:
    """One row per device and step of one rank."""
    frames = [table(PER_STEP, dict.fromkeys(PER_STEP.names, ()))]
    start, end = trace.steps.start_ns, trace.steps.end_ns
    count = len(trace.steps)
    for device, activity in devices(trace):
        comm_ns = covered_within(activity.communication, start, end)
        hidden = intersect(activity.communication, activity.compute)
        frames.append(
            table(
                PER_STEP,
                {
                    "rank": np.full(count, trace.rank),
                    "device": np.full(count, device),
                    "step": trace.steps.number,
                    **_times(comm_ns, covered_within(hidden, start, end)),
                    "counted": trace.statistic_steps(),
                },
            )
        )
    return pd.concat(frames, ignore_index=True)


def _per_rank(trace: RankTrace) -> pd.DataFrame:
    """One row per device of one rank, over the whole capture."""
    found = list(devices(trace))
    comm = [length(activity.communication) for _, activity in found]
    hidden = [length(intersect(item.communication, item.compute)) for _, item in found]
    return table(
        PER_RANK,
        {
            "rank": np.full(len(found), trace.rank),
            "device": [device for device, _ in found],
            **_times(np.array(comm, dtype=np.int64), np.array(hidden, dtype=np.int64)),
        },
    )


# -- by axis and by operation --------------------------------------------------------


def _axis_of_calls(trace: RankTrace) -> Iterable[str]:
    """A label per call: its axis, else its group's name."""
    labels = [group.axis or _group_label(group.description) for group in trace.groups]
    return (labels[group] if group >= 0 else "unknown" for group in trace.calls.group.tolist())


def _group_label(description: str) -> str:
    return "world" if description in {"default_pg", "undefined", ""} else description


def _op_of_calls(trace: RankTrace) -> Iterable[str]:
    return (trace.names[op] for op in trace.calls.op_id.tolist())


def _grouped(run: Run, schema: Schema, key: str, labels_of: object) -> pd.DataFrame:
    """Sums over all ranks and counted steps for each label of a communication call."""
    assert callable(labels_of)
    totals: dict[str, list[int]] = {}
    for trace in run.traces:
        labels = np.array(list(labels_of(trace)), dtype=object)
        for label in sorted(set(labels.tolist())):
            chosen = np.zeros(len(trace.kernels), dtype=np.bool_)
            chosen[trace.calls.kernel[labels == label]] = True
            counts = _label_totals(trace, chosen)
            total = totals.setdefault(label, [0, 0, 0])
            for place, value in enumerate(counts):
                total[place] += value
    rows = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))
    n, comm, hidden = (np.array([row[1][i] for row in rows], dtype=np.int64) for i in range(3))
    columns: Mapping[str, npt.ArrayLike] = {
        key: [label for label, _ in rows],
        "n": n,
        **_times(comm, hidden),
    }
    return table(schema, columns)


def _label_totals(trace: RankTrace, chosen: npt.NDArray[np.bool_]) -> tuple[int, int, int]:
    """Kernels, communication ns and hidden ns of the chosen kernels in counted steps."""
    use = trace.statistic_steps()
    start, end = trace.steps.start_ns[use], trace.steps.end_ns[use]
    comm_ns = hidden_ns = 0
    for device, activity in devices(trace):
        spans = kernel_union(trace, chosen & (trace.kernels.device == device))
        comm_ns += _inside(spans, start, end)
        hidden_ns += _inside(intersect(spans, activity.compute), start, end)
    step = trace.kernels.step[chosen]
    return int(use[step[step >= 0]].sum()), comm_ns, hidden_ns


def _inside(spans: Intervals, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> int:
    return int(covered_within(spans, start, end).sum())


# -- findings ------------------------------------------------------------------------


def _counted_step_ns(run: Run) -> int:
    """Sum of the counted steps over ranks and devices, in ns."""
    total = 0
    for trace in run.traces:
        use = trace.statistic_steps()
        length_ns = int((trace.steps.end_ns - trace.steps.start_ns)[use].sum())
        total += length_ns * len(np.unique(trace.kernels.device))
    return total


def _findings(
    run: Run, counted: pd.DataFrame, per_axis: pd.DataFrame, step_ns: int
) -> tuple[Finding, ...]:
    """Exposed communication of each axis."""
    made = []
    for row in per_axis.itertuples():
        if not row.exposed_ns or not step_ns:
            continue
        where = "" if row.axis == "unknown" else f"{row.axis} "
        made.append(
            Finding(
                analysis="overlap",
                title=f"{percent(row.exposed_ns / step_ns)} of step time is exposed {where}"
                f"communication; compute hides {percent(row.overlap_ratio)} of all {where}"
                "communication",
                lost_ns_per_step=int(row.exposed_ns) // len(counted),
                lost_ratio=row.exposed_ns / step_ns,
                ranks=run.ranks if run.missing_ranks else (),
                evidence=f"{row.n} kernels on {len(run.traces)} rank{'s' * (len(run.traces) > 1)}",
                confidence=Confidence.EXACT,
                advice=_ADVICE.get(row.axis, _DEFAULT_ADVICE),
            )
        )
    return tuple(made)


_DEFAULT_ADVICE = (
    "start collectives earlier or in smaller pieces; see whether a rank is late before them"
)
_ADVICE = {
    "tp": "use sequence parallelism or asynchronous tensor parallelism, or a smaller tp degree",
    "pp": "use more microbatches or an interleaved schedule; balance the stages",
    "ep": "balance the routing; overlap the dispatch with shared experts or another microbatch",
    "dp": "tune the gradient bucket size; accumulate gradients without synchronising",
    "fsdp": "prefetch the next layer's parameters; shard within a host",
}

ANALYZER = Analyzer(
    name="overlap",
    question="How much communication is not hidden behind compute?",
    analyze=analyze,
    result=OverlapResult,
    tables={
        "per_step": PER_STEP,
        "per_rank": PER_RANK,
        "per_axis": PER_AXIS,
        "per_op": PER_OP,
    },
    scalars=(
        Column("overlap_ratio", "float64", "ratio", "Hidden share of all communication."),
        Column("exposed_ratio", "float64", "ratio", "Exposed communication as share of step time."),
        Column("worst_rank", "int32", "", "Rank with the most exposed communication."),
    ),
)
