"""One rank of a profiled job: meet the others, warm up, record, write."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._profiler import _ExperimentalConfig
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from tracekit import workloads
from tracekit.core.fault import SlowLink
from tracekit.io import manifest, records
from tracekit.profile import clock, conditions, groups, network, overhead, recorder
from tracekit.profile import plan as plans
from tracekit.profile.faults import Planter
from tracekit.profile.place import Meeting, Place
from tracekit.profile.plan import Plan

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one rank tells rank 0 for the manifest."""

    file: manifest.FileEntry
    groups: list[manifest.GroupEntry]
    losses: list[float]  # one per recorded step, empty where the rank does not know it


def join(plan: Meeting, place: Place) -> None:
    """Meet the other ranks; a rank waits ``plan.timeout_s`` at most for another."""
    recorder.prepare()
    network.choose_interface(place.init_method)
    torch.set_num_threads(1)  # ranks share the cores
    here = device(plan, place)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    dist.init_process_group(
        plan.backend,
        init_method=place.init_method,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=plan.timeout_s),
        device_id=here if plan.backend == "nccl" else None,
    )


def device(plan: Meeting, place: Place) -> torch.device:
    """This rank's device; several ranks may share a GPU where the backend allows it."""
    if plan.device != "cuda":
        return torch.device("cpu")
    return torch.device("cuda", place.local_rank % torch.cuda.device_count())


def leave() -> None:
    """Take the process groups down."""
    dist.destroy_process_group()


def run_rank(plan: Plan, folder: str, place: Place, report: Report) -> None:
    """Be one rank of a job from beginning to end."""
    report("meeting")
    join(plan, place)
    profile(plan, place, Path(folder), report)
    leave()


def profile(plan: Plan, place: Place, folder: Path, report: Report) -> None:
    """Run and record this rank; rank 0 then writes the manifest, last of all files.

    Args:
        plan: the job.
        place: which rank this is; :func:`join` has been called.
        folder: the run folder, the same on all ranks.
        report: takes one line on how far this rank is.

    Raises:
        RuntimeError: the loss is not finite, or the records do not fit.
    """
    here = device(plan, place)
    leaders = clock.hosts(place)
    samples = clock.sample(place, leaders)
    load = conditions.load() if place.rank == 0 else None
    mesh = make_mesh(plan, here.type)
    workload = workloads.build(plan.spec, mesh, here)
    planter = Planter(plan, place.rank, workload)
    steps = _Steps(workload, planter, report)
    for number in range(plan.warmup):
        steps.run(f"warm-up step {number + 1} of {plan.warmup}")

    file = manifest.FileEntry(
        rank=place.rank,
        path=f"traces/rank-{place.rank:05}.0.pt.trace.json.gz",
        records=f"records/rank-{place.rank:05}.json",
    )
    recording = _record(plan, steps, workload)
    samples += clock.sample(place, leaders)
    report("writing")
    _write(recording, place.rank, samples, folder, file)
    cost = _overhead(plan, steps, workload) if plan.measure_overhead else None
    part = _Part(file, groups.entries(_axes(mesh)), recording.losses)
    parts: list[Any] = [None] * place.world_size
    dist.gather_object(part, parts if place.rank == 0 else None)
    if place.rank == 0:
        known = conditions.collect(plan, load_before=load, nodes=len(leaders))
        manifest.write(folder, _manifest(plan, parts, known, cost))


class _Steps:
    """Runs the steps of a workload one after the other, faults included."""

    def __init__(self, workload: workloads.Workload, planter: Planter, report: Report) -> None:
        self._workload, self._planter, self._report = workload, planter, report
        self.number = 0

    def run(self, line: str, *, marked: bool = False) -> torch.Tensor | None:
        """Run the next step, marked as torch.profiler itself marks steps or not at all."""
        self._report(line)
        self._planter.begin(self.number)
        name = f"ProfilerStep#{self.number}"
        with record_function(name) if marked else contextlib.nullcontext():
            loss = self._workload.step(self.number)
        self.number += 1
        return loss


def make_mesh(plan: Plan, device_type: str) -> DeviceMesh:
    """The device mesh of a job: one axis per degree, outermost first.

    Every axis has groups of its own, also one that spans all ranks: the default
    group is left to the runner's barriers. And every group has the plan's timeout,
    where ``init_device_mesh`` would let a rank wait half an hour.
    """
    ranks = torch.arange(plan.world_size).view(*plan.degrees.values())
    own = []
    for place, (axis, degree) in enumerate(plan.degrees.items()):
        group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
            ranks.movedim(place, -1).reshape(-1, degree).tolist(),
            timeout=timedelta(seconds=plan.timeout_s),
            group_desc=f"mesh_{axis}",
        )
        own.append(group)
    return DeviceMesh.from_group(own, device_type, mesh=ranks, mesh_dim_names=tuple(plan.degrees))


@dataclass(frozen=True, slots=True)
class _Recording:
    profiler: torch_profile
    watcher: recorder.Recorder
    start_ns: int
    end_ns: int
    losses: list[float]


def _profiler(plan: Plan) -> torch_profile:
    activities = [ProfilerActivity.CPU]
    if plan.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # A transfer that a slow link sends later is sent by a thread of its own.
    every_thread = any(isinstance(fault, SlowLink) for fault in plan.faults)
    config = _ExperimentalConfig(profile_all_threads=True) if every_thread else None
    return torch_profile(activities=activities, record_shapes=True, experimental_config=config)


def _record(plan: Plan, steps: _Steps, workload: workloads.Workload) -> _Recording:
    """Profile the active steps.

    Raises:
        RuntimeError: the loss is not finite.
    """
    profiler = _profiler(plan)
    watcher = recorder.Recorder(workload.experts)
    losses: list[torch.Tensor] = []
    profiler.prepare_trace()
    dist.barrier()
    profiler.start_trace()
    start_ns = time.time_ns()
    with watcher.watch():
        # Starting takes each rank another while: without a barrier the first step would show it.
        dist.barrier()
        for step in range(plan.steps):
            loss = steps.run(f"recording step {step + 1} of {plan.steps}", marked=True)
            if loss is not None:
                losses.append(loss)
        # A transfer still under way when the recording stops would be missing from it.
        if plan.device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
    end_ns = time.time_ns()
    profiler.stop_trace()
    values = [float(loss) for loss in losses]
    if not all(map(math.isfinite, values)):
        raise RuntimeError(f"the loss is not finite: {values}")
    return _Recording(profiler, watcher, start_ns, end_ns, values)


def _write(
    recording: _Recording,
    rank: int,
    samples: Sequence[records.ClockRecord],
    folder: Path,
    file: manifest.FileEntry,
) -> None:
    trace = folder / file.path
    trace.parent.mkdir(exist_ok=True)
    recording.profiler.export_chrome_trace(str(trace))
    assert file.records is not None
    path = folder / file.records
    path.parent.mkdir(exist_ok=True)
    window = (recording.start_ns, recording.end_ns)
    records.write(path, recording.watcher.records(rank, *window, samples))


def _overhead(plan: Plan, steps: _Steps, workload: workloads.Workload) -> dict[str, Any]:
    def step(line: str, marked: bool) -> None:
        steps.run(line, marked=marked)
        if plan.device == "cuda":
            torch.cuda.synchronize()

    return overhead.measure(
        step,
        profiler=lambda: _profiler(plan),
        watch=lambda: recorder.Recorder(workload.experts).watch(),
        steps=plan.steps,
    )


def _axes(mesh: DeviceMesh) -> dict[str, str]:
    """Mesh axis of each group by the group's name."""
    return {mesh.get_group(name).group_name: name for name in mesh.mesh_dim_names or ()}


def _manifest(
    plan: Plan, parts: list[_Part], known: dict[str, Any], cost: dict[str, Any] | None
) -> manifest.Manifest:
    members = {(group.name, *group.ranks): group for part in parts for group in part.groups}
    losses = [part.losses for part in parts if part.losses]
    return manifest.Manifest(
        schema=manifest.SCHEMA,
        name=plan.name,
        conditions=known,
        topology=manifest.TopologyEntry(
            world_size=plan.world_size,
            axes=plan.degrees,
            groups=sorted(members.values(), key=lambda group: (group.axis or "", group.ranks)),
        ),
        steps=manifest.StepsEntry(warmup=plan.warmup, active=plan.steps),
        files=[part.file for part in parts],
        truth=plans.truth(plan),
        losses=[sum(step) / len(step) for step in zip(*losses, strict=True)],
        overhead=cost,
    )
