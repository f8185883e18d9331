"""Launch: why the device stands idle, gap by gap.

Definition: idle = the part of a step in which the device does nothing, as in the breakdown;
each gap ends with a kernel. With a = when the device ran dry, L = when the host began to
launch that kernel: a < L means that the device waits for the host. Of the time up to L,
what the host spends fetching data is ``dataloader``, collecting garbage ``gc``; the rest is
``sync`` where the host was in a synchronisation at a, which let the device run dry, else
``host_bound``, as are up to 50 µs from L to the kernel's begin. L < a means that it was launched in
time: ``dependency`` where its own stream was idle before, so it waited for another one. What
is left is ``other``: turnaround between kernels of one stream, the ends of a capture, kernels
that begin long after their launch, gaps before kernels whose launch is not recorded. The six
sum to idle exactly.
On a CPU there is no launch: ``dependency`` is the host waiting for a receive, and the rest but
data and garbage collection is ``other``.
Limits: after a synchronisation all of the host's work up to the next launch counts as its
cost. Kernels without a launch, and those of a replayed graph, which share one, say less;
how many have none, and how many are linked to no operator, is stated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.gaps import Cause, Gaps, causes, gaps, spans_of
from tracekit.core.intervals import Intervals, covered_within, subtract, union
from tracekit.core.run import Run, why_no_device_work
from tracekit.core.table import Column, Schema
from tracekit.core.trace import KernelKind, Phase, RankTrace

Mask = npt.NDArray[np.bool_]

LONGEST = 50  # gaps that are listed
_PER_DEVICE = 50
_LEAST_SHARE = 0.01  # of the step, for a cause to be a finding
_MOST_UNLINKED = 0.05  # of kernels, for the split to be trusted
NONE = "(not linked)"
WORDS = {
    Cause.HOST_BOUND: "host-bound",
    Cause.DEPENDENCY: "dependency",
    Cause.DATALOADER: "dataloader",
    Cause.GC: "gc",
    Cause.SYNC: "sync",
    Cause.OTHER: "other",
}
_ON_CPU = "null on a CPU."
PER_STEP = Schema(
    Column("rank", "int32", "", "Global rank."),
    Column("device", "int32", "", "Device index; -1 for the CPU."),
    Column("step", "int64", "", "Step number."),
    Column("step_ns", "int64", "ns", "Length of the step window."),
    Column("idle_ns", "int64", "ns", "Nothing running on the device; the sum of the parts."),
    Column("host_bound_ns", "Int64", "ns", f"Waiting for the host to launch; {_ON_CPU}"),
    Column("dependency_ns", "int64", "ns", "Launched in time, waiting for another stream."),
    Column("dataloader_ns", "int64", "ns", "Waiting while the host fetches data."),
    Column("gc_ns", "int64", "ns", "Waiting while Python collects garbage."),
    Column("sync_ns", "Int64", "ns", f"Run dry while the host waits for the device; {_ON_CPU}"),
    Column("other_ns", "int64", "ns", "The rest: turnaround, ends of a capture, no launch known."),
    Column("counted", "bool", "", "Used in statistics: not the first step of a capture, not cut."),
)
LONGEST_GAPS = Schema(
    Column("rank", "int32", "", "Global rank."),
    Column("device", "int32", "", "Device index; -1 for the CPU."),
    Column("step", "int64", "", "Step number."),
    Column("at_ns", "int64", "ns", "Begin of the gap, from the begin of the step."),
    Column("gap_ns", "int64", "ns", "Length of the gap."),
    Column("cause", "str", "", "Largest part of it."),
    Column("late_ns", "Int64", "ns", "From its begin to the next launch; null without one."),
    Column("op", "str", "", f"Operator of the kernel that ends it; {NONE} without one."),
    Column("scope", "str", "", "Innermost annotation around that launch."),
    Column("kernel", "str", "", "The kernel that ends it."),
    Column("before", "str", "", "The kernel before it."),
)
PER_OP = Schema(
    Column("op", "str", "", f"Operator whose kernels end gaps; {NONE} without one."),
    Column("n", "int64", "count", "Gaps in counted steps, over all ranks."),
    Column("idle_ns", "int64", "ns", "Their sum."),
    Column("host_bound_ns", "int64", "ns", "Part of it in which the launch had not begun."),
)


@dataclass(frozen=True, slots=True, eq=False)
class LaunchResult:
    """Idle time by cause; ratios are over counted steps."""

    per_step: pd.DataFrame
    longest_gaps: pd.DataFrame
    per_op: pd.DataFrame
    idle_ratio: float
    host_bound_ratio: float | None
    kernel_count: int
    no_launch_count: int
    no_op_count: int
    by_name_ratio: float | None
    findings: tuple[Finding, ...]


def analyze(run: Run) -> LaunchResult:
    """Split the idle time of every device and step by cause.

    Raises:
        MissingDataError: no rank has device work inside a step.
    """
    found = [item for trace in run.traces for item in _devices(trace)]
    frames = [_per_step(item) for item in found]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        raise MissingDataError(why_no_device_work(run))
    per_step = pd.concat(frames, ignore_index=True)
    counted = per_step[per_step.counted]
    step_ns = int(counted.step_ns.sum())
    host = counted.host_bound_ns
    kernels = sum(len(trace.kernels) for trace in run.traces)
    per_op = _per_op(found)
    numbers = _Links(
        kernels,
        sum(int((trace.kernels.launch_ns < 0).sum()) for trace in run.traces),
        sum(int((trace.origin().op_id < 0).sum()) for trace in run.traces),
    )
    return LaunchResult(
        per_step=per_step,
        longest_gaps=_longest(found),
        per_op=per_op,
        idle_ratio=int(counted.idle_ns.sum()) / step_ns if step_ns else 0.0,
        host_bound_ratio=None if host.isna().any() or not step_ns else int(host.sum()) / step_ns,
        kernel_count=numbers.kernels,
        no_launch_count=numbers.no_launch,
        no_op_count=numbers.no_op,
        by_name_ratio=_by_name_ratio(run),
        findings=_findings(run, counted, per_op, numbers),
    )


class _Links(NamedTuple):
    """How many kernels there are, and how many of them are not linked."""

    kernels: int
    no_launch: int
    no_op: int


class _Device(NamedTuple):
    """One device of one rank: when it works, its gaps, why it stands idle."""

    trace: RankTrace
    device: int
    busy: Intervals
    gaps: Gaps
    causes: dict[Cause, Intervals]


def _devices(trace: RankTrace) -> Iterator[_Device]:
    for device in np.unique(trace.kernels.device).tolist():
        chosen = trace.kernels.device == device
        busy = union(trace.kernels.start_ns[chosen], trace.kernels.end_ns[chosen])
        found = gaps(trace, chosen)
        on_cpu = trace.device_type == "cpu"
        yield _Device(
            trace, device, busy, found, _cpu_causes(trace, busy) if on_cpu else causes(trace, found)
        )


def _cpu_causes(trace: RankTrace, busy: Intervals) -> dict[Cause, Intervals]:
    """On a CPU the host is the device: what it is known to do between operators."""
    none = np.empty(0, dtype=np.int64)
    taken = busy
    out = {Cause.HOST_BOUND: Intervals(none, none), Cause.SYNC: Intervals(none, none)}
    for cause, phase in (
        (Cause.DATALOADER, Phase.DATA),
        (Cause.GC, Phase.GC),
        (Cause.DEPENDENCY, Phase.RECV),
    ):
        out[cause] = subtract(spans_of(trace, phase), taken)
        taken = union(
            np.concatenate((taken.starts, out[cause].starts)),
            np.concatenate((taken.ends, out[cause].ends)),
        )
    return out


def _per_step(item: _Device) -> pd.DataFrame:
    """One row per step of one device; ``other`` is what no cause explains."""
    steps = item.trace.steps
    start, end = steps.start_ns, steps.end_ns
    count = len(steps)
    idle = (end - start) - covered_within(item.busy, start, end)
    parts = {cause: covered_within(part, start, end) for cause, part in item.causes.items()}
    on_cpu = item.trace.device_type == "cpu"
    unknown = pd.array([None] * count, dtype="Int64")
    return table(
        PER_STEP,
        {
            "rank": np.full(count, item.trace.rank),
            "device": np.full(count, item.device),
            "step": steps.number,
            "step_ns": end - start,
            "idle_ns": idle,
            "host_bound_ns": unknown if on_cpu else parts[Cause.HOST_BOUND],
            "dependency_ns": parts[Cause.DEPENDENCY],
            "dataloader_ns": parts[Cause.DATALOADER],
            "gc_ns": parts[Cause.GC],
            "sync_ns": unknown if on_cpu else parts[Cause.SYNC],
            "other_ns": idle - sum(parts.values()),
            "counted": item.trace.statistic_steps(),
        },
    )


# -- single gaps ---------------------------------------------------------------------------------


def _longest(found: Sequence[_Device]) -> pd.DataFrame:
    """The longest gaps of all devices, with what ended them."""
    rows = [row for item in found for row in _rows(item)]
    rows.sort(key=lambda row: (-row[4], row[0], row[1], row[3]))
    columns = list(zip(*rows[:LONGEST], strict=True)) or [()] * len(LONGEST_GAPS.names)
    return table(LONGEST_GAPS, dict(zip(LONGEST_GAPS.names, map(list, columns), strict=True)))


_Row = tuple[int, int, int, int, int, str, int | None, str, str, str, str]


def _rows(item: _Device) -> Iterator[_Row]:
    """The longest gaps of one device that begin inside a step."""
    trace, found = item.trace, item.gaps
    length = found.end_ns - found.start_ns
    step = np.searchsorted(trace.steps.start_ns, found.start_ns, side="right") - 1
    inside = (step >= 0) & (found.start_ns < np.append(trace.steps.end_ns, 0)[step])
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(-length[rows], kind="stable")][:_PER_DEVICE]
    names, origin = (*trace.names, ""), trace.origin()
    shares = {
        cause: covered_within(part, found.start_ns[rows], found.end_ns[rows])
        for cause, part in item.causes.items()
    }
    on_cpu = trace.device_type == "cpu"
    for place, row in enumerate(rows.tolist()):
        told = {cause: int(values[place]) for cause, values in shares.items()}
        told[Cause.OTHER] = int(length[row]) - sum(told.values())
        largest = max(told, key=lambda cause: (told[cause], -cause))
        after = int(found.after[row])
        op, scope = int(origin.op_id[after]), int(origin.scope_id[after])
        yield (
            trace.rank, item.device, int(trace.steps.number[step[row]]),
            int(found.start_ns[row] - trace.steps.start_ns[step[row]]), int(length[row]),
            WORDS[largest],
            int(found.late_ns[row]) if found.linked[row] and not on_cpu else None,
            names[op] if op >= 0 else NONE, names[scope] if scope >= 0 else "",
            names[trace.kernels.name_id[after]],
            names[trace.kernels.name_id[int(found.before[row])]],
        )  # fmt: skip


def _per_op(found: Sequence[_Device]) -> pd.DataFrame:
    """Idle time by the operator whose kernel ends the gap, over counted steps."""
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for item in found:
        trace, gap = item.trace, item.gaps
        use = np.append(trace.statistic_steps(), False)[trace.kernels.step[gap.after]]
        op = trace.origin().op_id[gap.after]
        late = covered_within(item.causes[Cause.HOST_BOUND], gap.start_ns, gap.end_ns)
        length = gap.end_ns - gap.start_ns
        names = (*trace.names, NONE)
        for code in np.unique(op[use]).tolist():
            mine = use & (op == code)
            row = total[names[code]]
            row[0] += int(mine.sum())
            row[1] += int(length[mine].sum())
            row[2] += int(late[mine].sum())
    rows = sorted(
        ((op, n, idle, host) for op, (n, idle, host) in total.items()),
        key=lambda row: (-row[2], row[0]),
    )
    columns = list(zip(*rows, strict=True)) or [()] * len(PER_OP.names)
    return table(PER_OP, dict(zip(PER_OP.names, map(list, columns), strict=True)))


def _by_name_ratio(run: Run) -> float | None:
    """Share of communication kernels that only their name tells; None without any."""
    known = whole = 0
    for trace in run.traces:
        whole += int((trace.kernels.kind == KernelKind.COMMUNICATION).sum())
        told = (trace.calls.group >= 0) | (trace.calls.in_bytes >= 0)
        known += len(np.unique(trace.calls.kernel[told]))
    return 1 - known / whole if whole else None


# -- findings ------------------------------------------------------------------------------------


def _findings(
    run: Run, counted: pd.DataFrame, per_op: pd.DataFrame, links: _Links
) -> tuple[Finding, ...]:
    """One for each cause that costs at least a per cent of the step."""
    step_ns = int(counted.step_ns.sum())
    if not step_ns:
        return ()
    unlinked = links.no_launch / links.kernels if links.kernels else 0.0
    on_cpu = all(trace.device_type == "cpu" for trace in run.traces)
    sure = on_cpu or unlinked <= _MOST_UNLINKED
    host_ops = per_op.sort_values("host_bound_ns", ascending=False, kind="stable")
    top = ", ".join(host_ops.op[host_ops.op != NONE].head(2))
    made = []
    for column, (title, advice) in _TEXTS.items():
        if counted[column].isna().all():
            continue
        lost = int(counted[column].sum())
        share = lost / step_ns
        if share < _LEAST_SHARE:
            continue
        by_rank = counted.groupby("rank")[[column, "step_ns"]].sum()
        ratio = (by_rank[column] / by_rank.step_ns).astype(float)
        worst = int(ratio.idxmax())
        alone = len(ratio) > 1 and float(ratio[worst]) > 2 * float(ratio.drop(worst).median())
        where = f", most on rank {worst} ({percent(float(ratio[worst]))})" if alone else ""
        before = f", most before {top}" if column == "host_bound_ns" and top else ""
        made.append(
            Finding(
                analysis="launch",
                title=f"{percent(share)} of step time the device {title}{before}{where}",
                lost_ns_per_step=lost // len(counted),
                lost_ratio=share,
                ranks=(worst,) if alone else (),
                evidence=f"{len(counted)} steps; {links.no_launch:,} of {links.kernels:,} kernels "
                f"have no recorded launch, {links.no_op:,} no operator",
                confidence=Confidence.HIGH if sure else Confidence.LOW,
                advice=advice,
            )
        )
    return tuple(made)


_TEXTS = {
    "host_bound_ns": (
        "waits for the host to launch work",
        "fewer, larger kernels: torch.compile, CUDA graphs, fused optimizers; move Python work "
        "out of the step",
    ),
    "dependency_ns": (
        "waits for another stream or rank",
        "look at what the waiting stream needs: start that work earlier, or in smaller pieces",
    ),
    "dataloader_ns": (
        "waits for the next batch",
        "more data loader workers, prefetching, pinned memory; cheaper preprocessing",
    ),
    "gc_ns": (
        "waits while Python collects garbage",
        "gc.disable() in the loop and gc.collect() at chosen steps, on all ranks alike",
    ),
    "sync_ns": (
        "runs dry because the host waited for it",
        "avoid .item(), printing tensors, boolean indexing and explicit synchronisation in the "
        "step",
    ),
}

ANALYZER = Analyzer(
    name="launch",
    question="Why does the device stand idle?",
    analyze=analyze,
    result=LaunchResult,
    tables={"per_step": PER_STEP, "longest_gaps": LONGEST_GAPS, "per_op": PER_OP},
    scalars=(
        Column("idle_ratio", "float64", "ratio", "Share of step time with nothing running."),
        Column("host_bound_ratio", "float64", "ratio", "Share waiting for a launch."),
        Column("kernel_count", "int64", "count", "Kernels in the traces."),
        Column("no_launch_count", "int64", "count", "Of them without a recorded launch."),
        Column("no_op_count", "int64", "count", "Of them not linked to an operator."),
        Column("by_name_ratio", "float64", "ratio", "Communication known by its name only."),
    ),
)
