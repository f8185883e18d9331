"""A run: the traces of its ranks, with everything known about how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tracekit.core.clock import ClockFit
from tracekit.core.collective import Matching
from tracekit.core.topology import Topology
from tracekit.core.trace import RankTrace


class Severity(str, Enum):
    """How much a diagnostic should worry the reader of a number."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something that was dropped, guessed or repaired, counted."""

    code: str
    severity: Severity
    rank: int | None
    count: int
    message: str


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What one trace file is; None or empty where it does not say.

    Attributes:
        rank_from: where its rank comes from: "content", "name" or "order".
        device_type: "gpu", "cpu", or "none" without device work.
        software: versions by name, as far as the header tells.
        bytes: size of the file as stored.
        events: complete events kept.
        calls: communication calls; grouped_calls: those of them whose group is known.
        steps: numbers of its steps.
    """

    name: str
    bytes: int
    rank: int
    rank_from: str
    world_size: int | None
    backend: str | None
    host: str | None
    device_type: str
    devices: tuple[str, ...]
    software: Mapping[str, str]
    events: int
    kernels: int
    calls: int
    grouped_calls: int
    steps: tuple[int, ...]
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class LinkLatency:
    """How long one collective takes when nothing else runs, as ``tracekit bench`` measured it.

    ``bytes`` is the larger side: the input of a reduce_scatter, the output of an all_gather.
    """

    op: str
    group_size: int
    bytes: int
    p50_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """All loaded ranks of one job, in rank order. Only ``io.load`` makes one.

    ``conditions`` follows the schema of ``run.json``; it is empty when the
    traces came without one. ``truth`` lists the faults planted on purpose,
    ``files`` what each trace file is, in the order of reading. ``matching`` joins the
    ranks' calls and ``clock`` has one fit per rank; both are there for a loaded run.
    ``baseline`` is what a benchmark of the links gave, if one lies with the run.
    """

    name: str
    traces: tuple[RankTrace, ...]
    topology: Topology
    conditions: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    truth: tuple[Mapping[str, Any], ...] = ()
    files: tuple[FileFacts, ...] = ()
    matching: Matching | None = None
    clock: tuple[ClockFit, ...] = ()
    baseline: tuple[LinkLatency, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that are loaded, sorted."""
        return tuple(trace.rank for trace in self.traces)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Global ranks of the job that have no trace here, sorted; empty if the size is unknown."""
        here = set(self.ranks)
        return tuple(rank for rank in range(self.topology.world_size or 0) if rank not in here)


_NO_DEVICE_WORK = frozenset({"no-device-work", "foreign-device"})


def why_no_device_work(run: Run) -> str:
    """Why no trace of this run shows what its device did, and what to record instead."""
    told = [note.message for note in run.diagnostics if note.code in _NO_DEVICE_WORK]
    return (
        told[0]
        if told
        else (
            "no rank has device work inside a step; "
            "record with ProfilerActivity.CUDA (or CPU operators for a CPU job)"
        )
    )
