"""Where ranks are: their place in the mesh, their groups, their hosts and links."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracekit.core.topology import Group
from tracekit.core.trace import Int64
from tracekit.simulate.spec import AXES, Spec

WORLD = "world"  # the group of all ranks, beside those of the mesh axes
INNER = AXES[1:]  # the axes inside a pipeline rank

_MEGATRON = {
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "fsdp": "DATA_PARALLEL_GROUP_WITH_CP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
}


@dataclass(frozen=True)
class Job:
    """The geometry of a job. The ranks of one pipeline rank are an array over INNER."""

    spec: Spec

    @property
    def inner(self) -> tuple[int, ...]:
        """Degrees of the axes inside a pipeline rank."""
        return tuple(self.spec.degree(axis) for axis in INNER)

    @property
    def width(self) -> int:
        """Ranks of one pipeline rank."""
        return math.prod(self.inner)

    def ranks(self, pp: int) -> range:
        """The global ranks of a pipeline rank, in the order of the arrays."""
        return range(pp * self.width, (pp + 1) * self.width)

    def coordinate(self, rank: int, axis: str) -> int:
        """The place of a rank along an axis."""
        inner = math.prod(self.spec.degree(name) for name in AXES[AXES.index(axis) + 1 :])
        return rank // inner % self.spec.degree(axis)

    def host(self, rank: int) -> str:
        """The name of the host a rank runs on."""
        return f"host{rank // self.spec.ranks_per_host}"

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All process groups, as torch numbers them: all ranks, then the axes outermost first."""
        size = self.spec.world_size
        made = [Group("0", "default_pg", tuple(range(size)), None)]
        mesh = np.arange(size).reshape([self.spec.degree(axis) for axis in AXES])
        for place, axis in enumerate(AXES):
            degree = self.spec.degree(axis)
            if degree == 1:
                continue
            for members in np.moveaxis(mesh, place, -1).reshape(-1, degree).tolist():
                made.append(Group(str(len(made)), self._description(axis), tuple(members), axis))
        return tuple(made)

    def _description(self, axis: str) -> str:
        return {"mesh": f"mesh_{axis}", "megatron": _MEGATRON[axis], "undefined": "undefined"}[
            self.spec.groups
        ]

    @cached_property
    def _by_rank(self) -> dict[tuple[int, str], Group]:
        return {(rank, group.axis or WORLD): group for group in self.groups for rank in group.ranks}

    def group(self, rank: int, axis: str) -> Group:
        """The group of a rank along an axis, or of all ranks."""
        return self._by_rank[rank, axis]

    def named(self, rank: int) -> dict[str, Group]:
        """The groups of a rank as it names them, by axis; "tp alias" is tp's second one."""
        if rank not in self._named:
            self._named[rank] = self._names_of(rank)
        return self._named[rank]

    @cached_property
    def _named(self) -> dict[int, dict[str, Group]]:
        return {}

    def _names_of(self, rank: int) -> dict[str, Group]:
        axes = [axis for axis in AXES if self.spec.degree(axis) > 1]
        found = {axis: self.group(rank, axis) for axis in (WORLD, *axes)}
        if self.spec.group_names == "local":
            # Each rank counts only its own groups: sibling groups share a name.
            found = {
                axis: replace(group, name=str(number))
                for number, (axis, group) in enumerate(found.items())
            }
        if self.spec.alias and "tp" in found:
            name = int(found["tp"].name) + len(self.groups)
            found["tp alias"] = replace(found["tp"], name=str(name))
        return found

    @cached_property
    def all_named(self) -> tuple[Group, ...]:
        """Every group under every name, each once."""
        ranks = range(self.spec.world_size)
        every = (group for rank in ranks for group in self.named(rank).values())
        found = {(group.name, group.ranks[0]): group for group in every}
        return tuple(sorted(found.values(), key=lambda group: (int(group.name), group.ranks)))

    @cached_property
    def _spanning(self) -> frozenset[str]:
        """Names of the groups whose ranks are on several hosts."""
        per_host = self.spec.ranks_per_host
        return frozenset(
            group.name
            for group in self.groups
            if group.ranks[0] // per_host != group.ranks[-1] // per_host
        )

    def slow(self, pp: int, axis: str) -> npt.NDArray[np.bool_]:
        """(width,) whether each rank's group along an axis spans hosts."""
        return np.array([self.group(rank, axis).name in self._spanning for rank in self.ranks(pp)])

    def members_reduce(self, values: Int64, axis: str, largest: bool = True) -> Int64:
        """Over each group along an inner axis: its largest value, or its first member's.

        Args:
            values: (width,).
            axis: one of INNER.
        """
        shaped = values.reshape(self.inner)
        place = INNER.index(axis)
        found = shaped.max(axis=place, keepdims=True) if largest else shaped.take([0], axis=place)
        return np.broadcast_to(found, self.inner).reshape(-1)
