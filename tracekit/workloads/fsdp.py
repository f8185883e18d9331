"""Sharded data parallelism (FSDP2): parameters, gradients and optimizer state are split.

Every rank on the axis ``fsdp`` has its own batch and a piece of every parameter,
gathered layer by layer when needed. With an axis ``dp`` outside it, the pieces
are replicated there (HSDP).
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from tracekit.workloads import model


def shard(transformer: model.Transformer, mesh: DeviceMesh) -> None:
    """Shard each layer, then what is left, over the mesh's axes."""
    axes = mesh.mesh_dim_names or ()
    over = mesh["dp", "fsdp"] if "dp" in axes else mesh["fsdp"]
    layers: list[nn.Module] = list(transformer.blocks)
    for layer in layers:
        fully_shard(layer, mesh=over)
    fully_shard(transformer, mesh=over)
