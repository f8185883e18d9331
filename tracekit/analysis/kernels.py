"""Kernels: which device work takes the time, who launched it, and where one rank is slower.

Definition: over all kernels launched in counted steps of all ranks, grouped by
name, by the operator that launched them and by the innermost annotation of the
user's own around the launch: number, summed time, median and 95 % quantile of
one kernel's time, and the share of all kernel time. Sums are of kernels, not of
covered time, so kernels that run side by side count each. The rows of each of
the three tables sum to the same whole.
A rank is compared with its peers kernel by kernel: its median against the lower
median of the others of its role (same pipeline stage) that run the kernel equally often.
Its excess is the sum over compute kernels of n × (own median − peers' median),
told only above three standard errors of it and 2 % of the step, over kernels that
run at least 5 times.
Limits: a kernel replayed from a graph has no operator; the share of time that is
not linked, and of communication known by its name only, are stated. On a CPU a
"kernel" is a stretch of an operator's self time. A collective's time holds its
wait for a late peer, so only compute is compared between ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracekit.analysis._contract import Analyzer, table
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence, Finding, percent
from tracekit.core.grouped import Codes, Summary, summaries
from tracekit.core.roles import roles
from tracekit.core.run import Run, why_no_device_work
from tracekit.core.stats import low_median_of_others
from tracekit.core.table import Column, Schema
from tracekit.core.timing import across
from tracekit.core.trace import Int64, KernelKind, RankTrace

Mask = npt.NDArray[np.bool_]

NOT_LINKED = "(not linked)"
NO_SCOPE = "(no annotation)"
COMPARED = 50  # kernels with most time that are compared between ranks
_STANDARD_ERRORS = 3
_EQUALLY = 0.01  # relative difference in launches per step between peers
_LEAST_N = 5  # of a kernel on one rank, for its median to have an error
_LEAST_SHARE = 0.02  # of the step
_KINDS = {
    KernelKind.COMPUTE: "compute",
    KernelKind.COMMUNICATION: "communication",
    KernelKind.MEMORY: "memory",
}

_SHARE = Column("share", "float64", "ratio", "Share of the time of all kernels.")
_N = Column("n", "int64", "count", "Kernels in counted steps, over all ranks.")
_TOTAL = Column("total_ns", "int64", "ns", "Sum of their times.")
PER_KERNEL = Schema(
    Column("kernel", "str", "", "Name of the kernel; on a CPU, of the operator."),
    Column("kind", "str", "", "What it is for: compute, communication or memory."),
    _N,
    _TOTAL,
    Column("p50_ns", "float64", "ns", "Median time of one kernel."),
    Column("p95_ns", "Float64", "ns", "95 % quantile; null below 20 kernels."),
    Column("max_ns", "int64", "ns", "Longest one."),
    _SHARE,
)
_BY_KIND = (
    Column("compute_ns", "int64", "ns", "Part of total_ns in compute kernels."),
    Column("comm_ns", "int64", "ns", "Part of total_ns in communication kernels."),
    Column("memory_ns", "int64", "ns", "Part of total_ns in copies and sets."),
)
PER_OP = Schema(
    Column("op", "str", "", f"Operator that launched them; {NOT_LINKED} where none is recorded."),
    _N,
    _TOTAL,
    *_BY_KIND,
    _SHARE,
)
PER_SCOPE = Schema(
    Column("scope", "str", "", f"Innermost annotation around the launch; {NO_SCOPE} without one."),
    _N,
    _TOTAL,
    *_BY_KIND,
    _SHARE,
)
PER_RANK = Schema(
    Column("kernel", "str", "", f"One of the {COMPARED} compute kernels with most time."),
    Column("rank", "int32", "", "Global rank."),
    Column("n", "int64", "count", "Kernels in counted steps of this rank."),
    Column("p50_ns", "float64", "ns", "Median time of one kernel on this rank."),
    Column("peers_p50_ns", "Float64", "ns", "Lower median of the same over peers; null if none."),
    Column("slowdown", "Float64", "", "p50_ns / peers_p50_ns; null without peers."),
)


@dataclass(frozen=True, slots=True, eq=False)
class KernelsResult:
    """Kernel time by name, operator, annotation and rank."""

    per_kernel: pd.DataFrame
    per_op: pd.DataFrame
    per_scope: pd.DataFrame
    per_rank: pd.DataFrame
    unlinked_ratio: float
    by_name_ratio: float | None
    outside_count: int
    findings: tuple[Finding, ...]


def analyze(run: Run) -> KernelsResult:
    """Sum kernel times up.

    Raises:
        MissingDataError: no rank has device work inside a counted step.
    """
    names, kernels = _collected(run)
    if len(kernels.ns) == 0:
        raise MissingDataError(why_no_device_work(run))
    texts = names.texts()
    total = int(kernels.ns.sum())
    matching, clock = across(run)
    role = np.array(roles(run.traces, run.topology, matching, clock).stage, dtype=np.int64)
    by_rank = _ByRank.of(run, kernels, len(texts), role)
    return KernelsResult(
        per_kernel=_per_kernel(kernels, texts, total),
        per_op=_grouped(PER_OP, "op", kernels, kernels.op, (*texts, NOT_LINKED), total),
        per_scope=_grouped(PER_SCOPE, "scope", kernels, kernels.scope, (*texts, NO_SCOPE), total),
        per_rank=_per_rank(run, by_rank, texts),
        unlinked_ratio=int(kernels.ns[kernels.op < 0].sum()) / total if total else 0.0,
        by_name_ratio=_by_name_ratio(run),
        outside_count=sum(int((~_counted(trace)).sum()) for trace in run.traces),
        findings=_findings(run, by_rank, texts),
    )


class _Kernels(NamedTuple):
    """Kernels of counted steps of all ranks, with codes that hold over ranks."""

    ns: Int64
    name: Int64
    kind: Int64
    op: Int64
    scope: Int64
    trace: Int64  # index into Run.traces


def _counted(trace: RankTrace) -> Mask:
    """(kernels,) whether each belongs to a counted step."""
    use = np.append(trace.statistic_steps(), False)
    out: Mask = use[trace.kernels.step]
    return out


def _collected(run: Run) -> tuple[Codes, _Kernels]:
    names = Codes()
    parts: list[_Kernels] = []
    for place, trace in enumerate(run.traces):
        use, code = _counted(trace), names.of(trace.names)
        kernels, origin = trace.kernels, trace.origin()
        parts.append(
            _Kernels(
                ns=(kernels.end_ns - kernels.start_ns)[use],
                name=code[kernels.name_id[use]],
                kind=kernels.kind[use].astype(np.int64),
                op=code[origin.op_id[use]],
                scope=code[origin.scope_id[use]],
                trace=np.full(int(use.sum()), place, dtype=np.int64),
            )
        )
    if not parts:
        return names, _Kernels(*(np.empty(0, dtype=np.int64) for _ in _Kernels._fields))
    return names, _Kernels(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _per_kernel(kernels: _Kernels, texts: tuple[str, ...], total: int) -> pd.DataFrame:
    """One row per name and kind, most time first."""
    count = len(_KINDS)
    found = summaries(kernels.ns, kernels.name * count + kernels.kind, len(texts) * count)
    rows = _descending(found)
    return table(
        PER_KERNEL,
        {
            "kernel": [texts[row // count] for row in rows],
            "kind": [_KINDS[KernelKind(row % count)] for row in rows],
            "n": found.n[rows],
            "total_ns": found.total[rows],
            "p50_ns": found.p50[rows],
            "p95_ns": pd.array(found.p95[rows], dtype="Float64"),
            "max_ns": found.largest[rows],
            "share": found.total[rows] / total if total else np.zeros(len(rows)),
        },
    )


def _descending(found: Summary) -> npt.NDArray[np.intp]:
    """Groups that have members, most time first."""
    rows = np.flatnonzero(found.n)
    return rows[np.lexsort((rows, -found.total[rows]))]


def _grouped(
    schema: Schema, key: str, kernels: _Kernels, code: Int64, texts: tuple[str, ...], total: int
) -> pd.DataFrame:
    """One row per code, most time first; a code of -1 has the last of the texts."""
    size = len(texts)
    place = np.where(code < 0, size - 1, code)
    found = summaries(kernels.ns, place, size)
    rows = _descending(found)
    parts: dict[str, npt.ArrayLike] = {}
    for kind, column in zip(_KINDS, ("compute_ns", "comm_ns", "memory_ns"), strict=True):
        of = kernels.kind == kind
        parts[column] = summaries(kernels.ns[of], place[of], size).total[rows]
    columns: Mapping[str, npt.ArrayLike] = {
        key: [texts[row] for row in rows],
        "n": found.n[rows],
        "total_ns": found.total[rows],
        **parts,
        "share": found.total[rows] / total if total else np.zeros(len(rows)),
    }
    return table(schema, columns)


def _by_name_ratio(run: Run) -> float | None:
    """Share of communication time whose group and size are not recorded; None without any."""
    known = whole = 0
    for trace in run.traces:
        kernels, use = trace.kernels, _counted(trace)
        ns = kernels.end_ns - kernels.start_ns
        whole += int(ns[use & (kernels.kind == KernelKind.COMMUNICATION)].sum())
        told = (trace.calls.group >= 0) | (trace.calls.in_bytes >= 0)
        rows = np.unique(trace.calls.kernel[told])
        known += int(ns[rows[use[rows]]].sum())
    return 1 - known / whole if whole else None


# -- between ranks -------------------------------------------------------------------------


class _ByRank(NamedTuple):
    """Compute kernels by name and rank: (names, ranks) each; NaN where a rank has none."""

    n: Int64
    total: Int64
    p50: npt.NDArray[np.float64]
    peers: npt.NDArray[np.float64]  # the peers' median
    error: npt.NDArray[np.float64]  # standard error of p50 - peers

    @classmethod
    def of(cls, run: Run, kernels: _Kernels, names: int, role: Int64) -> _ByRank:
        ranks = len(run.traces)
        compute = kernels.kind == KernelKind.COMPUTE
        key = kernels.name[compute] * ranks + kernels.trace[compute]
        found = summaries(kernels.ns[compute], key, names * ranks)
        away = np.abs(kernels.ns[compute] - found.p50[key])
        with np.errstate(divide="ignore", invalid="ignore"):
            # Of a median: 1.2533 robust deviations over the root of n.
            error = (
                1.2533
                * 1.4826
                * summaries(away.astype(np.int64), key, names * ranks).p50
                / np.sqrt(found.n)
            )
        error[found.n < _LEAST_N] = np.nan
        steps = [max(1, int(trace.statistic_steps().sum())) for trace in run.traces]
        n, p50 = found.n.reshape(names, ranks), found.p50.reshape(names, ranks)
        peers, peers_error = _peers(n / np.array(steps), p50, error.reshape(names, ranks), role)
        return cls(
            n, found.total.reshape(names, ranks), p50, peers,
            np.hypot(error.reshape(names, ranks), peers_error),
        )  # fmt: skip


def _peers(
    per_step: npt.NDArray[np.float64],
    p50: npt.NDArray[np.float64],
    error: npt.NDArray[np.float64],
    role: Int64,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What other ranks of the same role show that run a kernel equally often, and its error.

    Equally often: between neighbours in that order lies less than 1 %.
    """
    peers, errors = np.full(p50.shape, np.nan), np.full(p50.shape, np.nan)
    for name in range(len(p50)):
        use = np.flatnonzero(per_step[name] > 0)
        order = use[np.lexsort((per_step[name, use], role[use]))]
        often, same = per_step[name, order], role[order]
        apart = (np.diff(same) != 0) | (np.diff(often) > _EQUALLY * often[:-1])
        for part in np.split(order, np.flatnonzero(apart) + 1):
            peers[name, part] = low_median_of_others(p50[name, part])
            errors[name, part] = low_median_of_others(error[name, part])
    return peers, errors


def _per_rank(run: Run, found: _ByRank, texts: tuple[str, ...]) -> pd.DataFrame:
    rows = []
    for name in _most_time(found):
        for place, trace in enumerate(run.traces):
            if not found.n[name, place]:
                continue
            peers = found.peers[name, place]
            p50 = found.p50[name, place]
            slow = None if np.isnan(peers) or not peers else p50 / peers
            rows.append(
                (texts[name], trace.rank, found.n[name, place], p50,
                 None if np.isnan(peers) else peers, slow)
            )  # fmt: skip
    columns = list(zip(*rows, strict=True)) or [()] * len(PER_RANK.names)
    return table(PER_RANK, dict(zip(PER_RANK.names, map(list, columns), strict=True)))


def _most_time(found: _ByRank) -> list[int]:
    total = found.total.sum(axis=1)
    order = np.lexsort((np.arange(len(total)), -total))
    return [int(name) for name in order[:COMPARED] if total[name] > 0]


# -- findings --------------------------------------------------------------------------------


class _Slow(NamedTuple):
    """A rank whose kernels take longer than its peers'."""

    rank: int
    excess_ns: float  # per step
    share: float  # of the step
    slowdown: float  # of the kernels compared
    worst: str  # the kernel with most excess
    kernels: int


def _slow_ranks(run: Run, found: _ByRank, texts: tuple[str, ...]) -> Iterator[_Slow]:
    sound = np.isfinite(found.error)
    excess = np.where(sound, found.n * (found.p50 - found.peers), np.nan)
    error = found.n * found.error
    for place, trace in enumerate(run.traces):
        own = np.nan_to_num(excess[:, place])
        known = sound[:, place]
        if not known.any():
            continue
        use = trace.statistic_steps()
        step_ns = int((trace.steps.end_ns - trace.steps.start_ns)[use].sum())
        sure = own.sum() > _STANDARD_ERRORS * np.sqrt(np.nansum(error[:, place] ** 2))
        if step_ns <= 0 or not sure or own.sum() < _LEAST_SHARE * step_ns:
            continue
        healthy = float((found.n * found.peers)[known, place].sum())
        yield _Slow(
            trace.rank,
            float(own.sum()) / int(use.sum()),
            float(own.sum()) / step_ns,
            1 + float(own.sum()) / healthy if healthy else float("inf"),
            texts[int(own.argmax())],
            int(known.sum()),
        )


def _findings(run: Run, found: _ByRank, texts: tuple[str, ...]) -> tuple[Finding, ...]:
    """Ranks whose compute kernels are slower than the same kernels elsewhere."""
    on_cpu = all(trace.device_type == "cpu" for trace in run.traces)
    slow = sorted(_slow_ranks(run, found, texts), key=lambda item: -item.excess_ns)
    # When most ranks differ from each other, no one of them is the slow one.
    if len(slow) > max(1, len(run.traces) // 4):
        return ()
    return tuple(
        Finding(
            analysis="kernels",
            title=f"rank {item.rank} runs its compute kernels {percent(item.slowdown - 1)} slower "
            f"than its peers; most of it in {_short(item.worst)}",
            lost_ns_per_step=round(item.excess_ns),
            lost_ratio=item.share,
            ranks=(item.rank,),
            evidence=f"medians of {item.kernels} kernels that its peers run equally often; above "
            f"{_STANDARD_ERRORS} standard errors. Others lose this time waiting for it, if at all",
            confidence=Confidence.LOW if on_cpu or len(run.traces) < 3 else Confidence.HIGH,
            advice="one kernel slow: more work there (routing, sequence length); all of them slow: "
            "clocks, power, temperature or another job on that device",
        )
        for item in slow
    )


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"


ANALYZER = Analyzer(
    name="kernels",
    question="Which kernels take the time, and does one rank run them slower?",
    analyze=analyze,
    result=KernelsResult,
    tables={
        "per_kernel": PER_KERNEL,
        "per_op": PER_OP,
        "per_scope": PER_SCOPE,
        "per_rank": PER_RANK,
    },
    scalars=(
        Column("unlinked_ratio", "float64", "ratio", "Kernel time not linked to an operator."),
        Column("by_name_ratio", "float64", "ratio", "Communication known by its name only."),
        Column("outside_count", "int64", "count", "Kernels outside counted steps, left out."),
    ),
)
