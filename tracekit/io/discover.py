"""From what a user names on the command line to the trace files of each rank."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tracekit.core.errors import InputError
from tracekit.core.run import Diagnostic, Severity
from tracekit.io import manifest, stream
from tracekit.io.manifest import Manifest

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst")
PARTIAL_SUFFIX = ".tmp"

# Names of files, best first; the numbers in them are ranks.
_RANK_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"rank[-_\[]*(\d+)",
        r"\bworker[-_]?(\d+)",
        r"-TP-(\d+)(?!.*-(?:DP|PP|EP)-[1-9])",  # SGLang; with other axes the number is no rank
    )
)
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One trace to read.

    Attributes:
        path: a local path, or a URL that fsspec opens.
        member: its name inside of ``path``, where that is an archive.
        rank: the rank its manifest or its name claims; its content may know better.
        records: the runner's records beside it.
        bytes: size as stored, of the whole archive for each of its members; 0 when not known.
    """

    path: str
    rank: int | None
    member: str | None = None
    records: Path | None = None
    bytes: int = 0

    @property
    def name(self) -> str:
        """What to call it: its last name."""
        return PurePosixPath(self.member or self.path).name

    @property
    def is_local(self) -> bool:
        return "://" not in self.path


@dataclass(frozen=True, slots=True)
class Found:
    """What a path turned out to hold.

    Attributes:
        folder: where the run lies, when it is a local folder or a file in one.
        chosen: the files were found by searching, so one that is no trace is no error.
    """

    name: str
    files: tuple[TraceFile, ...]
    folder: Path | None = None
    searched: bool = False
    manifest: Manifest | None = None
    diagnostics: tuple[Diagnostic, ...] = ()


def discover(target: str | os.PathLike[str]) -> Found:
    """Find the traces of a run folder, a folder of traces, a file, an archive, a glob or a URL.

    Raises:
        InputError: nothing is there, or nothing that could be a trace.
    """
    name = os.fspath(target)
    if "://" in name:
        return _from_url(name)
    path = Path(name)
    if path.is_dir():
        found = manifest.read(path)
        return _from_folder(path) if found is None else _from_manifest(path, found)
    if path.exists():
        files = _of_file(name)
        return Found(_stem(path.name), files, path.parent, searched=len(files) > 1)
    # A pattern may be absolute and may hold "**": pathlib takes only one of the two.
    matches = sorted(glob.glob(name, recursive=True), key=natural_key)  # noqa: PTH207
    matches = [match for match in matches if Path(match).is_file()]
    if not matches:
        what = "no file matches" if glob.has_magic(name) else "no such file or folder"
        raise InputError(f"{name}: {what}")
    base = Path(os.path.commonpath([Path(match).parent for match in matches]))
    files = tuple(item for match in matches for item in _of_file(match))
    return Found(base.resolve().name, files, base, searched=True)


def rank_of_name(name: str) -> int | None:
    """The rank in a file name, by the schemes of the common tools; None without one."""
    for pattern in _RANK_NAMES:
        match = pattern.search(name)
        if match and len(match[1]) < 8:
            return int(match[1])
    return None


def natural_key(path: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Sort key that puts ``rank10`` after ``rank9``."""
    parts = _NUMBERS.split(os.fspath(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _from_manifest(folder: Path, found: Manifest) -> Found:
    files, missing = [], []
    for entry in found.files:
        path = _inside(folder, entry.path)
        records = None if entry.records is None else _inside(folder, entry.records)
        if path.is_file():
            files.append(TraceFile(str(path), entry.rank, None, records, path.stat().st_size))
        else:
            missing.append(entry.path)
    if not files:
        raise InputError(f"{folder}: run.json lists no trace file that exists")
    notes: tuple[Diagnostic, ...] = ()
    if missing:
        message = f"files listed in run.json are not there: {_listing(missing)}"
        notes = (Diagnostic("missing-files", Severity.WARNING, None, len(missing), message),)
    return Found(found.name, tuple(files), folder, manifest=found, diagnostics=notes)


def _inside(folder: Path, relative: str) -> Path:
    """A path of the manifest, which may not lead out of the run folder."""
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{folder / manifest.FILE_NAME}: {relative!r} leads out of the run folder")
    return path


def _from_folder(folder: Path) -> Found:
    relative = [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not _is_hidden(path.relative_to(folder).parts)
    ]
    names, notes = _candidates(relative)
    if not names:
        what = "is empty" if not any(folder.iterdir()) else "holds no .json or .json.gz file"
        raise InputError(f"{folder}: the folder {what}; name one that holds trace files")
    files = tuple(
        # A folder per rank is as common as a name per rank.
        replace(item, rank=rank_of_name(name) if item.rank is None else item.rank)
        for name in names
        for item in _of_file(str(folder / name))
    )
    return Found(folder.resolve().name, files, folder, searched=True, diagnostics=notes)


def _is_hidden(parts: Sequence[str]) -> bool:
    return any(part.startswith(".") and part != ".." for part in parts)


def _candidates(names: Iterable[str]) -> tuple[list[str], tuple[Diagnostic, ...]]:
    """Names that could be traces, in natural order; of a file and its ``.tmp`` the whole one."""
    found = {name for name in names if _could_be_trace(name)}
    partial = {name for name in found if name.endswith(PARTIAL_SUFFIX)}
    old = {name for name in partial if name.removesuffix(PARTIAL_SUFFIX) in found}
    notes = []
    for code, severity, which, text in (
        ("old-partial-files", Severity.INFO, old, "left out, their whole files are there"),
        ("partial-files", Severity.WARNING, partial - old, "a process did not finish these"),
    ):
        if which:
            message = f"{text}: {_listing(sorted(which, key=natural_key))}"
            notes.append(Diagnostic(code, severity, None, len(which), message))
    return sorted(found - old, key=natural_key), tuple(notes)


def _could_be_trace(name: str) -> bool:
    return stream.is_trace_name(name) or name.lower().endswith(ARCHIVE_SUFFIXES)


def _of_file(path: str, size: int | None = None) -> tuple[TraceFile, ...]:
    """One file as itself, or as the traces in it when it is an archive."""
    size = Path(path).stat().st_size if size is None else size
    if not path.lower().endswith(ARCHIVE_SUFFIXES):
        return (TraceFile(path, rank_of_name(PurePosixPath(path).name), bytes=size),)
    inside = [name for name in stream.members(path) if not _is_hidden(PurePosixPath(name).parts)]
    if not inside:
        raise InputError(f"{path}: the archive holds no trace")
    return tuple(
        TraceFile(path, rank_of_name(name), member=name, bytes=size)
        for name in sorted(inside, key=natural_key)
    )


def _from_url(url: str) -> Found:
    """Traces behind a URL: one file, a folder or a glob of any file system fsspec knows."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
        if glob.has_magic(url):
            details = system.glob(path, detail=True)
        elif system.isdir(path):
            details = system.find(path, detail=True)
        else:
            details = {path: system.info(path)}
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{url}: cannot be read ({error})") from error
    sizes = {name: _size(info) for name, info in details.items() if info.get("type") != "directory"}
    names, notes = _candidates(sizes) if len(sizes) > 1 else (list(sizes), ())
    if not names:
        raise InputError(f"{url}: no file there could be a trace")
    files = tuple(
        item for name in names for item in _of_file(str(system.unstrip_protocol(name)), sizes[name])
    )
    return Found(_stem(PurePosixPath(path).name), files, searched=len(files) > 1, diagnostics=notes)


def _size(info: dict[str, Any]) -> int:
    return int(info.get("size") or 0)


def _stem(name: str) -> str:
    for suffix in (".tmp", ".gz", ".zst", ".zip", ".tar", ".tgz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name


def _listing(items: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest
