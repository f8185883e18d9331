"""One rank of a profiled job: meet the others, warm up, record, write."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from tracekit import workloads
from tracekit.io import manifest, records
from tracekit.profile import conditions, recorder
from tracekit.profile import plan as plans
from tracekit.profile.faults import Planter
from tracekit.profile.place import Place
from tracekit.profile.plan import Plan

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one rank tells rank 0 for the manifest."""

    file: manifest.FileEntry
    groups: list[manifest.GroupEntry]
    losses: list[float]  # one per recorded step, empty where the rank does not know it


def join(plan: Plan, place: Place) -> None:
    """Meet the other ranks; a rank waits ``plan.timeout_s`` at most for another."""
    recorder.prepare()
    torch.set_num_threads(1)  # ranks share the cores
    device_id = None
    if plan.device == "cuda":
        torch.cuda.set_device(place.local_rank)
        device_id = torch.device("cuda", place.local_rank)
    dist.init_process_group(
        "nccl" if plan.device == "cuda" else "gloo",
        init_method=place.init_method,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=plan.timeout_s),
        device_id=device_id,
    )


def leave() -> None:
    """Take the process groups down."""
    dist.destroy_process_group()


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
    device = (
        torch.device("cuda", place.local_rank) if plan.device == "cuda" else torch.device("cpu")
    )
    mesh = make_mesh(plan, device.type)
    workload = workloads.build(plan.spec, mesh, device)
    planter = Planter(plan.faults, place.rank, workload)
    for step in range(plan.warmup):
        report(f"warm-up step {step + 1} of {plan.warmup}")
        planter.begin(step)
        workload.step(step)

    file = manifest.FileEntry(
        rank=place.rank,
        path=f"traces/rank-{place.rank:05}.0.pt.trace.json.gz",
        records=f"records/rank-{place.rank:05}.json",
    )
    losses = _record(plan, workload, planter, folder, file, report)
    report("writing")
    part = _Part(file, _groups(mesh), losses)
    parts: list[Any] = [None] * place.world_size
    dist.gather_object(part, parts if place.rank == 0 else None)
    if place.rank == 0:
        manifest.write(folder, _manifest(plan, parts))


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


def _record(
    plan: Plan,
    workload: workloads.Workload,
    planter: Planter,
    folder: Path,
    file: manifest.FileEntry,
    report: Report,
) -> list[float]:
    """Profile the active steps, write trace and records, and return the losses."""
    activities = [ProfilerActivity.CPU]
    if plan.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    profiler = torch_profile(activities=activities, record_shapes=True)
    watcher = recorder.Recorder()
    losses: list[torch.Tensor] = []
    profiler.prepare_trace()
    dist.barrier()
    profiler.start_trace()
    start_ns = time.time_ns()
    with watcher.watch():
        # Starting takes each rank another while: without a barrier the first step would show it.
        dist.barrier()
        for step in range(plan.warmup, plan.warmup + plan.steps):
            report(f"recording step {step - plan.warmup + 1} of {plan.steps}")
            planter.begin(step)
            # The name that torch.profiler itself gives to steps.
            with record_function(f"ProfilerStep#{step}"):
                loss = workload.step(step)
            if loss is not None:
                losses.append(loss)
        # A transfer still under way when the recording stops would be missing from it.
        if plan.device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
    end_ns = time.time_ns()
    profiler.stop_trace()
    _write(profiler, watcher.records(file.rank, start_ns, end_ns), folder, file)
    values = [float(loss) for loss in losses]
    if not all(map(math.isfinite, values)):
        raise RuntimeError(f"the loss is not finite: {values}")
    return values


def _write(
    profiler: torch_profile, record: records.Records, folder: Path, file: manifest.FileEntry
) -> None:
    trace = folder / file.path
    trace.parent.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(trace))
    assert file.records is not None
    path = folder / file.records
    path.parent.mkdir(exist_ok=True)
    records.write(path, record)


def _groups(mesh: DeviceMesh) -> list[manifest.GroupEntry]:
    """The process groups that this rank is a member of."""
    axes = {mesh.get_group(name).group_name: name for name in mesh.mesh_dim_names or ()}
    return [
        manifest.GroupEntry(
            name=group.group_name,
            description=group.group_desc,
            axis=axes.get(group.group_name),
            ranks=sorted(members),
        )
        for group, members in dist.distributed_c10d._world.pg_group_ranks.items()
        if isinstance(group, dist.ProcessGroup)
    ]


def _manifest(plan: Plan, parts: list[_Part]) -> manifest.Manifest:
    groups = {(group.name, *group.ranks): group for part in parts for group in part.groups}
    known = [part.losses for part in parts if part.losses]
    return manifest.Manifest(
        schema=manifest.SCHEMA,
        name=plan.name,
        conditions=conditions.collect(plan),
        topology=manifest.TopologyEntry(
            world_size=plan.world_size,
            axes=plan.degrees,
            groups=sorted(groups.values(), key=lambda group: (group.axis or "", group.ranks)),
        ),
        steps=manifest.StepsEntry(warmup=plan.warmup, active=plan.steps),
        files=[part.file for part in parts],
        truth=plans.truth(plan),
        losses=[sum(step) / len(step) for step in zip(*known, strict=True)],
    )
