"""Records small runs, and reads their files without tracekit's own reader."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.io import manifest
from tracekit.profile import launch
from tracekit.profile.plan import Options

SMALL = {"hidden": 64, "heads": 4, "seq": 32, "vocab": 128, "steps": 3, "warmup": 1}


def record(out: Path, workload: str, **options: Any) -> RawRun:
    """Profile a workload that takes about a second."""
    launch.run(
        Options(workload=workload, **{**SMALL, **options}), out, on_progress=lambda line: None
    )
    return RawRun(out)


@dataclass(frozen=True)
class Span:
    name: str
    category: str
    start_ns: int  # wall clock
    end_ns: int
    args: Mapping[str, Any]

    @property
    def ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(frozen=True)
class RawRun:
    folder: Path

    @functools.cached_property
    def manifest(self) -> manifest.Manifest:
        found = manifest.read(self.folder)
        assert found is not None
        return found

    def spans(self, rank: int, prefix: str = "") -> list[Span]:
        path = self.folder / self.manifest.files[rank].path
        trace = json.loads(gzip.decompress(path.read_bytes()))
        base = trace["baseTimeNanoseconds"]
        spans = [
            Span(
                event["name"],
                event["cat"],
                base + round(event["ts"] * 1000),
                base + round((event["ts"] + event["dur"]) * 1000),
                event.get("args", {}),
            )
            for event in trace["traceEvents"]
            if event["ph"] == "X" and event["name"].startswith(prefix)
        ]
        return sorted(spans, key=lambda span: span.start_ns)

    def records(self, rank: int) -> dict[str, Any]:
        name = self.manifest.files[rank].records
        assert name is not None
        found: dict[str, Any] = json.loads((self.folder / name).read_text())
        return found

    def longest_ms(self, rank: int, prefix: str) -> list[float]:
        """The longest such span of each step, in ms."""
        inside = self.spans(rank, prefix)
        return [
            max(span.ms for span in inside if step.start_ns <= span.start_ns < step.end_ns)
            for step in self.spans(rank, "ProfilerStep#")
        ]
