"""The header of a trace, parsed once into types: rank, groups, devices, versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tracekit.core.topology import Group
from tracekit.io.groups import rank_list
from tracekit.io.names import mesh_axis

_VERSION_KEYS = (
    ("cuda", "cuda_runtime_version"),
    ("cuda driver", "cuda_driver_version"),
    ("cupti", "cupti_version"),
    ("hip", "hip_runtime_version"),
    ("roctracer", "roctracer_version"),
    ("torch", "pytorch_version"),
)


@dataclass(frozen=True, slots=True)
class Header:
    """What a trace says of itself; None or empty where it says nothing.

    ``world_size`` is None too where the rank does not fit it.
    """

    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    groups: tuple[Group, ...]
    devices: tuple[str, ...]
    software: Mapping[str, str]


def read(header: Mapping[str, Any]) -> Header:
    """Type the top-level keys of a trace document; odd ones count as absent."""
    info = header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    backend, host = info.get("backend"), header.get("host_name")
    return Header(
        rank=_whole(info.get("rank")),
        world_size=_whole(info.get("world_size")),
        backend=backend if isinstance(backend, str) else None,
        host=host if isinstance(host, str) else None,
        groups=tuple(_groups(info.get("pg_config"))),
        devices=tuple(_devices(header.get("deviceProperties"))),
        software=dict(_software(header, info)),
    )


def _groups(config: object) -> Iterator[Group]:
    if isinstance(config, str):  # on-demand traces
        try:
            config = msgspec.json.decode(config)
        except msgspec.DecodeError:
            return
    for entry in config if isinstance(config, list) else ():
        if isinstance(entry, dict):
            description = str(entry.get("pg_desc", entry.get("uid", "")))
            yield Group(
                name=str(entry.get("pg_name", "")),
                description=description,
                ranks=rank_list(entry.get("ranks")),
                axis=mesh_axis(description),
            )


def _devices(properties: object) -> Iterator[str]:
    for entry in properties if isinstance(properties, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            yield entry["name"]


def _software(header: Mapping[str, Any], info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, key in _VERSION_KEYS:
        value = header.get(key)
        if isinstance(value, int) and name.startswith("cuda"):
            yield name, f"{value // 1000}.{value % 1000 // 10}"  # 12090 is 12.9
        elif isinstance(value, (str, int, float)):
            yield name, str(value)
    if isinstance(info.get("nccl_version"), str):
        yield "nccl", info["nccl_version"]


def _whole(value: object) -> int | None:
    """A rank or world size, however it was written; None when it is none."""
    try:
        number = int(value) if isinstance(value, (int, str)) else -1
    except ValueError:
        return None
    return number if 0 <= number < 1 << 24 else None
