"""Data parallelism: every replica on the axis ``dp`` has its own batch; gradients are averaged.

Inside a replica the model may be split over the axis ``tp``.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

from tracekit.workloads import model, tp
from tracekit.workloads.spec import Spec, Workload

# Small enough for several buckets per step, so that reduction can overlap the backward pass.
BUCKET_MB = 1


def build(spec: Spec, mesh: DeviceMesh, device: torch.device) -> Workload:
    """The model under DistributedDataParallel."""
    transformer = model.Transformer(spec, model.dense(spec)).to(device)
    if "tp" in (mesh.mesh_dim_names or ()):
        tp.shard(transformer, mesh["tp"])
        # DDP's reducer takes plain tensors: this shows it the local shards.
        _pre_dp_module_transform(transformer)
        first_exchange = tp.first_row_parallel(transformer)
    else:
        first_exchange = transformer
    replica = DistributedDataParallel(
        transformer, process_group=mesh.get_group("dp"), bucket_cap_mb=BUCKET_MB
    )
    optimizer = model.optimizer(transformer.parameters())
    index = model.coordinate(mesh, "dp")

    def step(number: int) -> Tensor:
        tokens, targets = model.batch(spec, number, index, device)
        loss = model.loss(replica(tokens), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Workload(step, first_exchange)


def average_gradients(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Average gradients over a group in one all-reduce, for models that DDP does not wrap."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    flat = torch.cat([gradient.flatten() for gradient in local])
    dist.all_reduce(flat, group=group)
    flat /= group.size()
    for gradient, averaged in zip(
        local, torch.split(flat, [gradient.numel() for gradient in local]), strict=True
    ):
        gradient.copy_(averaged.view_as(gradient))
