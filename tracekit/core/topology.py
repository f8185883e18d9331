"""Who talks to whom: process groups and the mesh axes they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Outermost first: the order in which ranks are numbered over a device mesh.
AXES = ("pp", "dp", "dp_replicate", "fsdp", "dp_shard", "cp", "ep", "tp")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group, identified by its members and its description."""

    name: str
    description: str
    ranks: tuple[int, ...]  # global ranks; empty when not known
    axis: str | None  # mesh axis, None when the group spans several or is not known
    inferred: bool = False  # members were worked out from times and names, not recorded


@dataclass(frozen=True, slots=True)
class Topology:
    """The shape of a job."""

    world_size: int | None
    axes: Mapping[str, int] = field(default_factory=dict)  # degrees, outermost axis first
    groups: tuple[Group, ...] = ()
