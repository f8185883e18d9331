"""Small torch programs, one parallelism story per file; none knows that it is profiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.workloads.spec import Routing, RoutingKind, Spec, Workload

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Routing", "RoutingKind", "Spec", "Workload", "build"]


def build(spec: Spec, mesh: DeviceMesh, device: torch.device) -> Workload:
    """This rank's part of the model over the mesh, whose axes choose the parallelism.

    Pipeline stages may hold tensor- or expert-parallel layers, and all of them
    may be replicated; each file builds on the ones inside it.
    """
    # Late, so that reading a Spec needs no torch.
    from tracekit.workloads import dp, ep, pp, tp

    axes = mesh.mesh_dim_names or ()
    if "pp" in axes:
        return pp.build(spec, mesh, device)
    if "ep" in axes:
        return ep.build(spec, mesh, device)
    if "dp" in axes:
        return dp.build(spec, mesh, device)
    return tp.build(spec, mesh, device)
