"""From what a user names on the command line to the trace files of each rank."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tracekit.core.errors import InputError
from tracekit.core.run import Diagnostic, Severity
from tracekit.io import manifest
from tracekit.io.manifest import Manifest

TRACE_SUFFIXES = (".json", ".json.gz")

# Names of files, best first; the numbers in them are ranks.
_RANK_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"rank[-_\[]*(\d+)",
        r"\bworker[-_]?(\d+)",
        r"-TP-(\d+)(?!.*-(?:DP|PP|EP)-[1-9])",  # SGLang; with other axes the number is no rank
    )
)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file to read.

    Attributes:
        path: where it is.
        rank: the rank its manifest or its name claims; its content may know better.
        records: the runner's records beside it.
    """

    path: Path
    rank: int | None
    records: Path | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a path turned out to hold."""

    name: str
    files: tuple[TraceFile, ...]
    manifest: Manifest | None = None
    diagnostics: tuple[Diagnostic, ...] = ()


def discover(path: Path) -> Found:
    """Find the trace files of a run folder, a folder of traces, or one file.

    Raises:
        InputError: nothing is there, or nothing that could be a trace.
    """
    if path.is_file():
        return Found(_stem(path), (TraceFile(path, rank_of_name(path.name)),))
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if not path.is_dir():
        raise InputError(f"{path}: neither a file nor a folder")
    found = manifest.read(path)
    if found is not None:
        return _from_manifest(path, found)
    return _from_folder(path)


def rank_of_name(name: str) -> int | None:
    """The rank in a file name, by the schemes of the common tools; None without one."""
    for pattern in _RANK_NAMES:
        match = pattern.search(name)
        if match:
            return int(match[1])
    return None


def natural_key(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts ``rank10`` after ``rank9``."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _from_manifest(folder: Path, found: Manifest) -> Found:
    files, missing = [], []
    for entry in found.files:
        path = _inside(folder, entry.path)
        records = None if entry.records is None else _inside(folder, entry.records)
        if path.is_file():
            files.append(TraceFile(path, entry.rank, records))
        else:
            missing.append(entry.path)
    if not files:
        raise InputError(f"{folder}: run.json lists no trace file that exists")
    notes: tuple[Diagnostic, ...] = ()
    if missing:
        notes = (
            Diagnostic(
                "missing-files", Severity.WARNING, None, len(missing),
                f"files listed in run.json are not there: {_listing(missing)}",
            ),
        )  # fmt: skip
    return Found(found.name, tuple(files), found, notes)


def _inside(folder: Path, relative: str) -> Path:
    """A path of the manifest, which may not lead out of the run folder."""
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{folder / manifest.FILE_NAME}: {relative!r} leads out of the run folder")
    return path


def _from_folder(folder: Path) -> Found:
    paths = sorted(
        (
            path
            for path in folder.rglob("*")
            if path.name.endswith(TRACE_SUFFIXES)
            and path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ),
        key=natural_key,
    )
    if not paths:
        what = "is empty" if not any(folder.iterdir()) else "holds no .json or .json.gz file"
        raise InputError(f"{folder}: the folder {what}; name one that holds trace files")
    return Found(
        folder.resolve().name,
        # A folder per rank is as common as a name per rank.
        tuple(TraceFile(path, rank_of_name(str(path.relative_to(folder)))) for path in paths),
    )


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name


def _listing(items: Iterable[str], most: int = 5) -> str:
    listed = list(items)
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + rest
