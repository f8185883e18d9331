"""The piece of the model that one rank holds, split over every axis that splits layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from tracekit.workloads import dp, ep, fsdp, model, tp
from tracekit.workloads.spec import BATCH_AXES, Spec


def axes(mesh: DeviceMesh) -> tuple[str, ...]:
    """Names of the mesh's axes."""
    return mesh.mesh_dim_names or ()


def transformer(
    spec: Spec, mesh: DeviceMesh, device: torch.device, stage: int = 0, stages: int = 1
) -> model.Transformer:
    """The model or one pipeline stage of it; what replicates it whole is the caller's to add."""
    feed_forward = ep.experts(spec, mesh) if "ep" in axes(mesh) else model.dense(spec)
    part = model.Transformer(spec, feed_forward, stage, stages).to(device)
    if "tp" in axes(mesh):
        tp.shard(part, spec, mesh["tp"])
    if "fsdp" in axes(mesh):
        fsdp.shard(part, mesh)
    return part


def replica(mesh: DeviceMesh) -> int:
    """Which of the job's batches this rank computes on."""
    index = 0
    for axis in BATCH_AXES:
        if axis in axes(mesh):
            index = index * mesh[axis].size() + mesh.get_local_rank(axis)
    return index


def average_gradients(parts: Sequence[nn.Module], mesh: DeviceMesh) -> None:
    """Average what several ranks hold: the dense part over ``ep``, everything over ``dp``."""
    named = [item for part in parts for item in part.named_parameters()]
    if "ep" in axes(mesh):
        dense = [parameter for name, parameter in named if ".held." not in name]
        dp.average_gradients(dense, mesh.get_group("ep"))
    if "dp" in axes(mesh) and "fsdp" not in axes(mesh):
        everything = [parameter for _, parameter in named]
        dp.average_gradients(everything, mesh.get_group("dp"))


def first_exchange(part: model.Transformer, spec: Spec, mesh: DeviceMesh) -> nn.Module:
    """The module whose forward is followed by the part's first communication, in a forward pass."""
    if "ep" in axes(mesh):
        return part.get_submodule("blocks.0.feed_forward.router")
    if "fsdp" in axes(mesh):
        return part.embed  # by then the root's parameters are there; the first layer's follow
    if "tp" in axes(mesh):
        split_embedding = spec.sequence_parallel and isinstance(part.embed, nn.Embedding)
        return part.embed if split_embedding else part.get_submodule("blocks.0.attention.out")
    return part


def expert_layers(held: Iterable[nn.Module]) -> list[ep.Experts]:
    """The layers among these parts that spread tokens over experts."""
    return [module for part in held for module in part.modules() if isinstance(module, ep.Experts)]


def value(loss: Tensor) -> Tensor:
    """The loss as a plain tensor, off the graph."""
    whole = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
    return whole.detach()
