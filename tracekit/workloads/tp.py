"""Tensor parallelism: each layer's matrices are split over the axis ``tp``.

Columns first, rows second (Megatron's scheme): one all-reduce after the
attention and one after the feed-forward part, forward and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from tracekit.workloads import model
from tracekit.workloads.spec import Spec, Workload


def shard(transformer: model.Transformer, mesh: DeviceMesh) -> None:
    """Split the layers of a model, or of a pipeline stage, over the mesh's only axis."""
    layer: dict[str, ParallelStyle] = {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
    }
    for block in transformer.blocks:
        parallelize_module(block, mesh, layer)
    if isinstance(transformer.head, nn.Linear):
        head = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(transformer, mesh, {"head": head})


def build(spec: Spec, mesh: DeviceMesh, device: torch.device) -> Workload:
    """The whole model on every rank, its matrices split."""
    transformer = model.Transformer(spec, model.dense(spec)).to(device)
    shard(transformer, mesh["tp"])
    optimizer = model.optimizer(transformer.parameters())

    def step(number: int) -> Tensor:
        tokens, targets = model.batch(spec, number, 0, device)
        loss = model.loss(transformer(tokens), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Workload(step, first_row_parallel(transformer))


def first_row_parallel(transformer: model.Transformer) -> nn.Module:
    """The first module whose output is summed over the axis."""
    return transformer.get_submodule("blocks.0.attention.out")
