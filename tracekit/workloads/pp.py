"""Pipeline parallelism: consecutive layers are stages on the axis ``pp``; microbatches flow.

A stage may itself be split over ``tp`` or hold experts over ``ep``, and the
whole pipeline may be replicated over ``dp``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from tracekit.workloads import ep, model, tp
from tracekit.workloads.spec import Spec, Workload

SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
}


def build(spec: Spec, mesh: DeviceMesh, device: torch.device) -> Workload:
    """This rank's stage and the schedule that runs it."""
    group = mesh.get_group("pp")
    index, stages = group.rank(), group.size()
    axes = mesh.mesh_dim_names or ()
    feed_forward = ep.experts(spec, mesh) if "ep" in axes else model.dense(spec)
    part = model.Transformer(spec, feed_forward, index, stages).to(device)
    if "tp" in axes:
        tp.shard(part, mesh["tp"])
    stage = PipelineStage(part, index, stages, device, group=group)
    schedule = SCHEDULES[spec.schedule](stage, spec.microbatches, loss_fn=model.loss)
    optimizer = model.optimizer(part.parameters())
    experts = mesh["ep"].size() if "ep" in axes else 1
    replica = model.coordinate(mesh, "dp") * experts + model.coordinate(mesh, "ep")

    def step(number: int) -> Tensor | None:
        tokens, targets = model.batch(spec, number, replica, device)
        losses: list[Tensor] = []
        inputs = (tokens,) if stage.is_first else ()
        if stage.is_last:
            schedule.step(*inputs, target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs, return_outputs=False)
        ep.average_gradients(part, mesh)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().detach() if losses else None

    return Workload(step, part)
