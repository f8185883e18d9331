"""Data parallelism: every replica on the axis ``dp`` has its own batch; gradients are averaged.

Inside a replica the model may be split over the axis ``tp``. In inference the
replicas are independent of each other.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

from tracekit.workloads import model

# Small enough for several buckets per step, so that reduction can overlap the backward pass.
BUCKET_MB = 1


def replicate(transformer: model.Transformer, group: dist.ProcessGroup) -> DistributedDataParallel:
    """The model, whole or split, under DistributedDataParallel."""
    if any(isinstance(parameter, DTensor) for parameter in transformer.parameters()):
        # DDP's reducer takes plain tensors: this shows it the local shards.
        _pre_dp_module_transform(transformer)
    return DistributedDataParallel(transformer, process_group=group, bucket_cap_mb=BUCKET_MB)


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
