"""Process groups as the arguments of events name them."""

from __future__ import annotations

import re

from tracekit.core.topology import Group
from tracekit.io.names import mesh_axis


def rank_list(value: object) -> tuple[int, ...]:
    """Global ranks from a list or its text; empty when the text was cut short or is no list."""
    if isinstance(value, str):
        if "..." in value or "items" in value:
            return ()
        return tuple(int(number) for number in re.findall(r"\d+", value))
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return tuple(value)
    return ()


class GroupTable:
    """Finds or adds groups named by events; the header's come first."""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self.groups = list(groups)
        self._found: dict[tuple[str, str, str], int] = {}

    def index(self, name: str, description: str, ranks: object) -> int:
        """The group of this name, description and members; lists cut by Kineto match any."""
        key = (name, description, str(ranks))
        if key not in self._found:
            self._found[key] = self._search(name, description, rank_list(ranks))
        return self._found[key]

    def _search(self, name: str, description: str, ranks: tuple[int, ...]) -> int:
        for number, group in enumerate(self.groups):
            same_name = not name or group.name == name
            same_members = not ranks or not group.ranks or group.ranks == ranks
            if same_name and same_members and (name or ranks):
                return number
        self.groups.append(Group(name, description, ranks, mesh_axis(description)))
        return len(self.groups) - 1
