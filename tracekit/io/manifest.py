"""``run.json``, the manifest of a run folder: its conditions, topology, files and truth.

The manifest is written last and by rename, so a folder that has one is whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tracekit.core.errors import InputError

SCHEMA = "tracekit.run/1"
FILE_NAME = "run.json"


class GroupEntry(msgspec.Struct, frozen=True):
    """A process group as it stood at the end of the run."""

    name: str
    description: str
    axis: str | None
    ranks: list[int]


class TopologyEntry(msgspec.Struct, frozen=True):
    """The shape of the job."""

    world_size: int
    axes: dict[str, int] = {}
    groups: list[GroupEntry] = []


class FileEntry(msgspec.Struct, frozen=True):
    """One trace file of one rank; paths are relative to the run folder, with "/"."""

    rank: int
    path: str
    records: str | None = None  # the runner's own records beside the trace


class StepsEntry(msgspec.Struct, frozen=True):
    """How many steps were warmed up, and how many recorded."""

    warmup: int
    active: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of ``run.json``. Unknown keys are kept out, missing ones have defaults."""

    schema: str
    name: str
    conditions: dict[str, Any] = {}
    topology: TopologyEntry | None = None
    steps: StepsEntry | None = None
    files: list[FileEntry] = []
    truth: list[dict[str, Any]] = []  # the planted faults, one object each
    losses: list[float] = []  # of each recorded step, where the workload is tracekit's own
    overhead: dict[str, Any] | None = None  # of recording, where it was measured


def write(folder: Path, manifest: Manifest) -> None:
    """Write ``run.json`` beside itself, then rename: never half-written."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    partial = folder / (FILE_NAME + ".tmp")
    partial.write_bytes(text + b"\n")
    partial.replace(folder / FILE_NAME)


def read(folder: Path) -> Manifest | None:
    """The manifest of a run folder, or None where there is no ``run.json``.

    Raises:
        InputError: the file is not a manifest this version understands.
    """
    path = folder / FILE_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a tracekit manifest ({error})") from error
    if manifest.schema != SCHEMA:
        raise InputError(
            f"{path}: schema {manifest.schema!r} is not {SCHEMA!r}; "
            "update tracekit, or load the traces folder itself"
        )
    return manifest
