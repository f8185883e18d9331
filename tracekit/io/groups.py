"""Process groups as traces describe them, in the header and in the arguments of events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tracekit.core.topology import Group
from tracekit.io.names import mesh_axis


def groups_of_header(header: Mapping[str, Any]) -> tuple[Group, ...]:
    """The groups of ``distributedInfo.pg_config``, in its order."""
    info = header.get("distributedInfo")
    config = info.get("pg_config") if isinstance(info, dict) else None
    if isinstance(config, str):
        try:
            config = msgspec.json.decode(config)
        except msgspec.DecodeError:
            config = None
    if not isinstance(config, list):
        return ()
    return tuple(_group(entry) for entry in config if isinstance(entry, dict))


def _group(entry: Mapping[str, Any]) -> Group:
    name = str(entry.get("pg_name", ""))
    description = str(entry.get("pg_desc", entry.get("uid", "")))
    return Group(name, description, rank_list(entry.get("ranks")), mesh_axis(description))


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
        self._found: dict[tuple[str, str, tuple[int, ...]], int] = {}

    def index(self, name: str, description: str, ranks: tuple[int, ...]) -> int:
        """The group of this name, description and members; lists cut by Kineto match any."""
        key = (name, description, ranks)
        if key not in self._found:
            self._found[key] = self._search(name, description, ranks)
        return self._found[key]

    def _search(self, name: str, description: str, ranks: tuple[int, ...]) -> int:
        for number, group in enumerate(self.groups):
            same_name = not name or group.name == name
            same_members = not ranks or not group.ranks or group.ranks == ranks
            if same_name and same_members and (name or ranks):
                return number
        self.groups.append(Group(name, description, ranks, mesh_axis(description)))
        return len(self.groups) - 1
