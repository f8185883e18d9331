"""A run: the traces of its ranks, with everything known about how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

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


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """All loaded ranks of one job, in rank order. Only ``io.load`` makes one.

    ``conditions`` follows the schema of ``run.json``; it is empty when the
    traces came without one. ``truth`` lists the faults planted on purpose.
    """

    name: str
    traces: tuple[RankTrace, ...]
    topology: Topology
    conditions: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    truth: tuple[Mapping[str, Any], ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that are loaded, sorted."""
        return tuple(trace.rank for trace in self.traces)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Global ranks of the job that have no trace here, sorted; empty if the size is unknown."""
        here = set(self.ranks)
        return tuple(rank for rank in range(self.topology.world_size or 0) if rank not in here)


def why_no_device_work(run: Run) -> str:
    """Why no trace of this run shows what its device did, and what to record instead."""
    told = [note.message for note in run.diagnostics if note.code == "no-device-work"]
    return (
        told[0]
        if told
        else (
            "no rank has device work inside a step; "
            "record with ProfilerActivity.CUDA (or CPU operators for a CPU job)"
        )
    )
