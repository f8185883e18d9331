"""What each rank of a foreign program leaves behind for the manifest. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from tracekit.io import manifest

FOLDER = "parts"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's share of a run folder."""

    rank: int
    world_size: int
    local_rank: int
    host: str
    device: str
    files: list[manifest.FileEntry] = []
    groups: list[manifest.GroupEntry] = []
    steps: int = 0  # recorded, all files together
    seen: int = 0  # steps the program made
    notes: list[str] = []
    conditions: dict[str, Any] = {}  # of the machine, from rank 0
    final: bool = False  # the rank has ended


def write(folder: Path, part: Part) -> None:
    """Leave a part, replacing an earlier one of the same rank."""
    parts = folder / FOLDER
    parts.mkdir(parents=True, exist_ok=True)
    partial = parts / f".{part.rank}.{os.getpid()}"
    partial.write_bytes(msgspec.json.encode(part))
    partial.replace(parts / f"rank-{part.rank:05}.json")


def read(folder: Path) -> list[Part]:
    """What the ranks have left so far, in order of ranks."""
    found = sorted((folder / FOLDER).glob("rank-*.json"))
    return [msgspec.json.decode(path.read_bytes(), type=Part) for path in found]
