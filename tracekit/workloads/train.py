"""Training without a pipeline: forward, backward and optimizer on one batch per step."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import loss_parallel

from tracekit.workloads import dp, model, parts
from tracekit.workloads.data import Batches
from tracekit.workloads.spec import Spec, Workload


def build(spec: Spec, mesh: DeviceMesh, device: torch.device) -> Workload:
    """The whole model, split or replicated over the mesh's axes."""
    part = parts.transformer(spec, mesh, device)
    whole: nn.Module = part
    axes = parts.axes(mesh)
    by_hand = "ep" in axes or "fsdp" in axes  # or sharding averages on its own
    if "dp" in axes and not by_hand:
        whole = dp.replicate(part, mesh.get_group("dp"))
    optimizer = model.optimizer(part.parameters())
    batches = Batches(spec, parts.replica(mesh), device, spec.batch)

    def step(number: int) -> Tensor:
        tokens, targets = next(batches)
        with loss_parallel() if spec.loss_parallel else contextlib.nullcontext():
            loss = model.loss(whole(tokens), targets)
            torch.autograd.backward(loss)
        if "ep" in axes:
            parts.average_gradients([part], mesh)
        optimizer.step()
        optimizer.zero_grad()
        return parts.value(loss)

    exchange = parts.first_exchange(part, spec, mesh)
    return Workload(
        step=step,
        first_exchange=exchange,
        layers=list(part.blocks),
        batches=batches,
        experts=parts.expert_layers([part]),
    )
