"""Small torch programs, one parallelism story per file; none knows that it is profiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.workloads.spec import Compute, Mode, Routing, RoutingKind, Spec, Workload

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Compute", "Mode", "Routing", "RoutingKind", "Spec", "Workload", "build"]


def build(spec: Spec, mesh: DeviceMesh, device: torch.device) -> Workload:
    """This rank's part of the program over the mesh, whose axes choose the parallelism."""
    # Late, so that reading a Spec needs no torch.
    from tracekit.workloads import pp, serve, train

    if spec.mode is not Mode.TRAIN:
        return serve.build(spec, mesh, device)
    if "pp" in (mesh.mesh_dim_names or ()):
        return pp.build(spec, mesh, device)
    return train.build(spec, mesh, device)
