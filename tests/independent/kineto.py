"""Writes a job of ``generate`` as Kineto writes traces: one file per rank, by its own clock."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.independent.generate import Call, HostSpan, Job, Kernel, Rank

BASE_NS = 1767189312000000000
BASE_US = 4458676400000.0
ANNOTATIONS = {
    "allreduce": "nccl:all_reduce",
    "all_to_allv": "nccl:all_to_all",
    "send": "nccl:send",
    "recv": "nccl:recv",
}
DEVICE = {
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 85029158912,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}

Event = dict[str, Any]


def write(job: Job, folder: Path) -> list[float]:
    """Writes the ranks' traces and returns how far their clocks are ahead, in µs."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"{job.spec.seed}/windows")
    offsets_us = []
    for rank in job.ranks:
        offset_us = rng.uniform(-1, 1) * job.spec.offset_ms * 1000
        offset_us = {0: 0.0, 1: job.spec.offset_ms * 1000}.get(rank.rank, offset_us)
        offsets_us.append(offset_us)
        first, last = 1, job.spec.steps
        if job.spec.windows != "full":
            first += rng.choice((0, 0, 0, 1, 1, 2))
            last -= rng.choice((0, 0, 0, 1, 1, 2))
        path = folder / f"rank{rank.rank}_trace.json"
        path.write_text(json.dumps(_document(rank, offset_us, first, last)))
    return offsets_us


def _document(rank: Rank, offset_us: float, first: int, last: int) -> Event:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": i, **DEVICE} for i in range(8)],
        "cupti_version": 24,
        "cuda_runtime_version": 12060,
        "distributedInfo": _distributed(rank),
        "host_name": f"node{rank.rank if rank.spec.offset_ms else rank.rank // 8}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": _Events(rank, offset_us, first, last).made,
    }


def _distributed(rank: Rank) -> Event:
    groups = [of[rank.rank] for of in rank.job.groups.values() if rank.rank in of]
    config = [
        {
            "pg_name": group.name,
            "pg_desc": group.description,
            "backend_config": "cuda:nccl",
            "pg_size": len(group.ranks),
            "ranks": group.ranks,
        }
        for group in groups
    ]
    return {
        "backend": "nccl",
        "rank": rank.rank,
        "world_size": rank.spec.size,
        "pg_count": len(config),
        "pg_config": config,
        "nccl_version": "2.21.5",
    }


class _Events:
    """The events of one rank's window."""

    def __init__(self, rank: Rank, offset_us: float, first: int, last: int) -> None:
        self.rank, self.base_us = rank, BASE_US + offset_us
        self.process, self.device = 4000 + rank.rank, rank.rank % 8
        self.first, self.last = first, last
        self.begin_us, self.end_us = rank.step_host_us[first][0], rank.step_host_us[last][1]
        self.within_steps = rank.spec.windows == "times"
        if self.within_steps:
            rng = random.Random(f"{rank.spec.seed}/times/{rank.rank}")
            self.begin_us += rng.random() * (rank.step_host_us[first][1] - self.begin_us)
            self.end_us -= rng.random() * (self.end_us - rank.step_host_us[last][0])
        self.made: list[Event] = [
            self.label("process_name", self.process, {"name": "python3"}),
            self.label("process_labels", self.process, {"labels": "CPU"}),
            self.label("process_labels", self.device, {"labels": f"GPU {self.device}"}),
        ]
        for span in rank.spans:
            self.add_span(span)
        for kernel in rank.kernels:
            self.add_kernel(kernel)

    def label(self, name: str, process: int, args: Event) -> Event:
        ts = round(self.base_us + self.begin_us, 3)
        return {"ph": "M", "name": name, "pid": process, "tid": 0, "ts": ts, "args": args}

    def add(
        self, category: str, name: str, thread: int, start_us: float, end_us: float, args: Event
    ) -> None:
        on_device = category in ("kernel", "gpu_memcpy")
        self.made.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": self.device if on_device else self.process,
                "tid": thread,
                "ts": round(self.base_us + start_us, 3),
                "dur": round(end_us - start_us, 3),
                "args": args,
            }
        )

    def add_span(self, span: HostSpan) -> None:
        if not self.first <= span.step <= self.last:
            return
        if self.within_steps and (span.start_us < self.begin_us or span.end_us > self.end_us):
            return
        runtime = {"cbid": 131, "correlation": 10_000_000 + len(self.made)}
        args = runtime if span.category == "cuda_runtime" else self.ids()
        self.add(span.category, span.name, span.thread, span.start_us, span.end_us, args)

    def ids(self) -> Event:
        number = len(self.made) + 1
        return {"External id": number, "Record function id": 0, "Ev Idx": number}

    def add_kernel(self, kernel: Kernel) -> None:
        """A kernel with its launch, or alone where it was launched before the window began."""
        launched = self.first <= kernel.step <= self.last
        runs_in = kernel.step == self.first - 1 and kernel.start_us >= self.begin_us
        if not launched and not runs_in:
            return
        if self.within_steps:
            if kernel.start_us < self.begin_us or kernel.end_us > self.end_us:
                return
            launched = launched and kernel.host_us >= self.begin_us
        args: Event = {"device": self.device, "context": 1, "stream": kernel.stream}
        args["correlation"] = kernel.correlation
        if kernel.is_copy:
            args |= {"bytes": 4096, "memory bandwidth (GB/s)": 1.2}
        else:
            args |= {"queued": 0, "grid": [kernel.grid, 1, 1], "block": [256, 1, 1]}
        if launched:
            args["External id"] = self.add_launch(kernel)
            args |= self.transfer_of(kernel)
        category = "gpu_memcpy" if kernel.is_copy else "kernel"
        self.add(category, kernel.name, kernel.stream, kernel.start_us, kernel.end_us, args)

    def add_launch(self, kernel: Kernel) -> int:
        """The operator, its annotation where it communicates, and the runtime call in it."""
        ids, thread = self.ids(), kernel.thread
        begin_us, end_us = kernel.host_us, kernel.host_us + kernel.costs_us
        args = ids | self.transfer_of(kernel)
        self.add("cpu_op", kernel.operator, thread, begin_us, end_us, args)
        if kernel.call:
            name = ANNOTATIONS[kernel.call.kind]
            self.add("user_annotation", name, thread, begin_us + 1, end_us - 1, self.ids())
        runtime = {"External id": ids["External id"], "cbid": 211}
        runtime["correlation"] = kernel.correlation
        name = "cudaMemcpyAsync" if kernel.is_copy else "cudaLaunchKernel"
        returns_us = kernel.launch_us + 0.3 * kernel.costs_us
        self.add("cuda_runtime", name, thread, kernel.launch_us, returns_us, runtime)
        return int(ids["External id"])

    def transfer_of(self, kernel: Kernel) -> Event:
        """What Kineto says of a transfer, on its operator and on its kernel."""
        call: Call | None = kernel.call
        if not call:
            return {}
        group = self.rank.job.groups[call.axis][self.rank.rank]
        args: Event = {
            "Collective name": call.kind,
            "In msg nelems": call.sent,
            "Out msg nelems": call.received,
            "Group size": len(group.ranks),
            "dtype": "BFloat16",
            "In split size": json.dumps(call.send_split),
            "Out split size": json.dumps(call.receive_split),
            "Process Group Name": group.name,
            "Process Group Description": group.description,
            "Process Group Ranks": json.dumps(group.ranks),
        }
        if call.peer >= 0:
            args["Dst Rank" if call.kind == "send" else "Src Rank"] = call.peer
        elif self.rank.spec.numbered:
            args["Seq"] = kernel.number
        return args
