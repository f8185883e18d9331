"""Writes a run job as a run folder: one trace per rank, the manifest, the truth."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tracekit
from tracekit.core.errors import UsageError
from tracekit.core.trace import Int64
from tracekit.io import manifest, records
from tracekit.simulate import calls, cpu, gpu, truth
from tracekit.simulate.clock import BASE_GRID_NS, BASE_NS, Clock, clocks, windows
from tracekit.simulate.engine import Timeline
from tracekit.simulate.events import Pattern, filled, times
from tracekit.simulate.job import Job
from tracekit.simulate.program import Do, Op
from tracekit.simulate.spec import AXES, Spec

Progress = Callable[[str], None]
_FIRST_PID = 10_000
_FASTEST = 1  # of gzip's levels: traces are large and made to be read once


def write(
    timeline: Timeline, folder: Path, *, compress: bool, truth_too: bool, progress: Progress
) -> None:
    """Write the run folder; the manifest comes last, so a folder that has one is whole."""
    spec, job = timeline.job.spec, timeline.job
    traces = folder / "traces"
    traces.mkdir(parents=True)
    own = clocks(spec)
    seen = windows(spec, timeline.step_starts(), timeline.step_ends())
    files = []
    for pp, lane in enumerate(timeline.lanes):
        pattern = (gpu if spec.backend == "nccl" else cpu).pattern(job, lane)
        for place, rank in enumerate(job.ranks(pp)):
            if rank in spec.missing:
                continue
            progress(f"rank {rank} of {spec.world_size}")
            one = _Rank(timeline, (pp, place), own[rank])
            name = f"rank-{rank:05}.0.pt.trace.json" + (".gz" if compress else "")
            _store(traces / name, one.document(pattern, seen[rank]), compress)
            files.append(manifest.FileEntry(rank, f"traces/{name}", one.write_records(folder)))
    if truth_too:
        progress("truth")
        found = truth.of(timeline, own, seen)
        (folder / "truth.json").write_text(json.dumps(found) + "\n")
    manifest.write(folder, _manifest(job, files))


def fresh(folder: Path, force: bool) -> None:
    """Make room for a run folder.

    Raises:
        UsageError: something is there already.
    """
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else (folder,)):
        ours = (folder / manifest.FILE_NAME).is_file()
        if not (force and ours):
            raise UsageError(
                f"{folder}: is there already; "
                + ("use --force to replace it" if ours else "it is no run folder, name another")
            )
        shutil.rmtree(folder)


def _store(path: Path, text: str, compress: bool) -> None:
    data = text.encode()
    if compress:
        # Without name and time in the header, the same seed gives the same bytes.
        data = gzip.compress(data, _FASTEST, mtime=0)
    path.write_bytes(data)


class _Rank:
    """One rank's view of the timeline."""

    def __init__(self, timeline: Timeline, place: tuple[int, int], clock: Clock) -> None:
        self.timeline, self.job, self.clock = timeline, timeline.job, clock
        self.pp, self.place = place
        self.rank = self.job.ranks(self.pp)[self.place]
        self.groups = self.job.named(self.rank)
        lane = self.lane = timeline.lanes[self.pp]
        columns = (lane.launch, lane.launched, lane.start, lane.end)
        self.times = clock.shown(times(*(values[:, self.place] for values in columns)))

    def document(self, pattern: Pattern, window: Int64) -> str:
        """The whole file."""
        base = base_ns(self.job.spec, self.rank)
        flat = self.times.ravel() + (BASE_NS - base)
        shown = self.clock.shown(window) + (BASE_NS - base)
        body = filled(pattern, self._words(), flat[pattern.begin], flat[pattern.end], shown)
        return f"{self._header(base)}\n{body}\n]}}\n"

    def _words(self) -> dict[str, str]:
        """What the tokens of the pattern stand for on this rank."""
        pid = _FIRST_PID + self.rank
        words = {"pid": str(pid)}
        for number in range(len(AXES) + 2):
            words[f"worker{number}"] = str(pid + 20 + number)
        for axis, group in self.groups.items():
            words[axis] = calls.group_arguments(group)
        for peer in range(self.job.spec.pp):
            words[f"peer{peer}"] = str(self.rank + (peer - self.pp) * self.job.width)
        for row, (sent, got) in self.exchanges().items():
            hidden = self.job.spec.hidden
            words[f"in {row}"], words[f"out {row}"] = (
                str(int(rows.sum()) * hidden) for rows in (sent, got)
            )
            words[f"in split {row}"], words[f"out split {row}"] = (
                calls.list_text(rows.tolist()) for rows in (sent, got)
            )
        return words

    def exchanges(self) -> dict[int, Int64]:
        """(2, ep) rows sent and got by this rank, for each routed exchange by its row."""
        out = {}
        size = len(self.lane.ops)
        routed = [
            (place, op)
            for place, op in enumerate(self.lane.ops)
            if op.routed and op.do is Do.COLLECTIVE
        ]
        for step in range(self.job.spec.steps):
            for place, op in routed:
                rows = self.timeline.routing.splits(
                    self.pp, step, op.layer, op.microbatch, self.place
                )
                out[step * size + place] = rows[::-1] if goes_back(op) else rows
        return out

    def _tokens(self) -> dict[int, list[int]]:
        """Tokens of each expert of this rank, for each forward of experts by its row."""
        size = len(self.lane.ops)
        return {
            step * size + place: self.timeline.routing.held(
                self.pp, step, op.layer, op.microbatch, self.place
            ).tolist()
            for place, op in enumerate(self.lane.ops)
            if op.routed and op.do is Do.COMPUTE and op.work == "F"
            for step in range(self.job.spec.steps)
        }

    def _header(self, base: int) -> str:
        spec = self.job.spec
        gpus = spec.backend == "nccl"
        info: dict[str, Any] = {
            "backend": spec.backend,
            "rank": self.rank,
            "world_size": spec.world_size,
        }
        if spec.pg_config:
            info["pg_count"] = len(self.groups)
            info["pg_config"] = [
                {
                    "pg_name": group.name, "pg_desc": group.description,
                    "backend_config": f"cuda:{spec.backend}" if gpus else f"cpu:{spec.backend}",
                    "pg_size": len(group.ranks), "ranks": list(group.ranks),
                }
                for group in self.groups.values()
            ]  # fmt: skip
        devices = [{"id": 0, "name": "Simulated GPU", "totalGlobalMem": 85028765696}]
        head = {
            "schemaVersion": 1,
            "deviceProperties": devices if gpus else [],
            "distributedInfo": info,
            "host_name": self.job.host(self.rank),
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": base,
            "traceEvents": [],
        }
        return json.dumps(head).removesuffix("]}")

    def write_records(self, folder: Path) -> str | None:
        """The runner's records, where a trace of this kind needs them; their path."""
        spec = self.job.spec
        if spec.backend != "gloo" or spec.comm_args == "none":
            return None
        name = f"records/rank-{self.rank:05}.json"
        (folder / "records").mkdir(exist_ok=True)
        sizes = {row: int(rows[0].sum()) * spec.hidden for row, rows in self.exchanges().items()}
        found = cpu.records(self.job, self.lane, self.rank, self.times, sizes, self._tokens())
        records.write(folder / name, found)
        return name


def goes_back(op: Op) -> bool:
    """Whether an exchange takes results back: a combine forward, a dispatch backward."""
    return (op.key == ("combine",)) == (op.work == "F")


def base_ns(spec: Spec, rank: int) -> int:
    """The base time in a rank's header: Kineto floors it to a grid, so ranks can differ."""
    return BASE_NS - (BASE_GRID_NS if spec.bases == "mixed" and rank % 2 else 0)


def _manifest(job: Job, files: list[manifest.FileEntry]) -> manifest.Manifest:
    spec = job.spec
    topology = None
    if spec.manifest:
        topology = manifest.TopologyEntry(
            spec.world_size,
            {axis: spec.degree(axis) for axis in AXES if spec.degree(axis) > 1},
            [
                manifest.GroupEntry(g.name, g.description, g.axis, list(g.ranks))
                for g in job.all_named
            ],
        )
    return manifest.Manifest(
        schema=manifest.SCHEMA,
        name=spec.name,
        conditions=conditions(spec),
        topology=topology,
        steps=manifest.StepsEntry(0, spec.steps),
        files=files,
        truth=truth.planted(job),
    )


def conditions(spec: Spec) -> dict[str, Any]:
    """What is known of the conditions: everything but a real machine."""
    plan = spec.pipeline()
    return {
        "workload": {
            "name": "simulated", "mode": "train", "layers": spec.layer_count,
            "hidden": spec.hidden, "seq": spec.seq,
            "experts": spec.experts if spec.ep > 1 else None,
            "top_k": spec.top_k if spec.ep > 1 else None,
            "routing": spec.routing if spec.ep > 1 else None,
        },
        "batch": {"micro": spec.batch, "microbatches": spec.microbatch_count},
        "precision": "bfloat16",
        "parallel": {
            "world_size": spec.world_size,
            "nodes": -(-spec.world_size // spec.ranks_per_host),
            **{axis: spec.degree(axis) for axis in AXES},
            "schedule": spec.schedule if spec.pp > 1 else None,
            "chunks": plan.placement.chunks if spec.pp > 1 else None,
        },
        "hardware": {"device": "simulated"},
        "software": {"tracekit": tracekit.__version__},
        "seed": spec.seed,
    }  # fmt: skip
