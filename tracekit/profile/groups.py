"""The process groups of a rank, as the manifest lists them."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from tracekit.io import manifest


def entries(axes: Mapping[str, str] | None = None) -> list[manifest.GroupEntry]:
    """The process groups that this rank is a member of, as they stand now.

    Args:
        axes: mesh axis of a group by its name, where it is known.
    """
    if not dist.is_initialized():
        return []
    return [
        manifest.GroupEntry(
            name=group.group_name,
            description=group.group_desc,
            axis=(axes or {}).get(group.group_name),
            ranks=sorted(members),
        )
        for group, members in dist.distributed_c10d._world.pg_group_ranks.items()
        if isinstance(group, dist.ProcessGroup)
    ]
