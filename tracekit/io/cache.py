"""Columns of parsed files, kept where parsing again would cost more than a look-up.

That is the Python path and remote files: there a second load is ten and more
times faster, while the native tokenizer on a local file is about as fast as
reading its columns back. An entry is found by the file's content and the reader's
version, and sealed with a key that only this user's cache folder holds: an entry
that is damaged, or that came along with somebody else's run folder, does not
open and the file is read instead. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tracekit.core.run import Diagnostic
from tracekit.io import kineto
from tracekit.io.discover import TraceFile
from tracekit.io.events import EventColumns, Events

FOLDER = ".tracekit"
SWITCH = "TRACEKIT_CACHE"
# Raised whenever the reader would make other columns or diagnostics of the same bytes.
READER_VERSION = 4

_MAGIC = b"TRACEKIT-COLUMNS"
_SEAL_BYTES = 32
_KEY_BYTES = 32
_ALIGN = 64
# Parsing that took less than this is not worth a file.
_WORTH_SECONDS = 0.5
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


class _Entry(msgspec.Struct, frozen=True):
    """All of an :class:`Events` but its columns, and where those lie."""

    counts: dict[str, int]
    strings: list[str]
    args: dict[int, dict[str, Any]]
    header: dict[str, Any]
    base_ns: int
    diagnostics: list[Diagnostic]
    truncated: bool
    total: int


@dataclass(frozen=True, slots=True)
class Store:
    """Where entries lie; None keeps nothing and finds nothing."""

    folder: Path | None = None
    key: bytes = b""

    def find(self, file: TraceFile) -> Events | None:
        """The columns of this file, if a sound entry of this user's is there."""
        path = self._path(file)
        if path is None:
            return None
        try:
            data = np.fromfile(path, dtype=np.uint8)
        except OSError:
            return None
        return _open(data, self.key)

    @contextmanager
    def timed(self, file: TraceFile) -> Iterator[Callable[[Events], None]]:
        """Times a parse; the function it yields keeps the result if it was worth it."""
        begin = time.perf_counter()

        def keep(events: Events) -> None:
            path = self._path(file)
            if path is not None and time.perf_counter() - begin >= _WORTH_SECONDS:
                _write(path, events, self.key)

        yield keep

    def _path(self, file: TraceFile) -> Path | None:
        if self.folder is None or not _pays(file):
            return None
        name = _content_key(file)
        return None if name is None else self.folder / f"{name}.columns"


def store_for(folder: Path | None) -> Store:
    """The store of a run folder; in the user's own cache where there is none or it is not ours.

    Args:
        folder: a local folder, or None for remote files.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tracekit"
    if os.environ.get(SWITCH, "").lower() in {"off", "0", "no"}:
        return Store()
    key = _user_key(home)
    if key is None:
        return Store()
    if folder is not None and os.access(folder, os.W_OK):
        return Store(folder / FOLDER, key)
    return Store(home / "columns", key)


def _pays(file: TraceFile) -> bool:
    return not file.is_local or not kineto.native_available()


def _user_key(home: Path) -> bytes | None:
    """This user's secret, made on first use; None where it cannot be kept."""
    path = home / "key"
    try:
        key = path.read_bytes()
        return key if len(key) == _KEY_BYTES else None
    except OSError:
        pass
    try:
        home.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        key = secrets.token_bytes(_KEY_BYTES)
        with os.fdopen(handle, "wb") as stream:
            stream.write(key)
    except OSError:
        return None
    return key


def _content_key(file: TraceFile) -> str | None:
    """Name of a file's entry: its content, its member, the reader. None when it is not there.

    Large files are sampled: with their size and time of change, that tells versions apart.
    """
    digest = hashlib.blake2b(f"{READER_VERSION}\0{file.member or ''}\0".encode(), digest_size=20)
    if not file.is_local:
        import fsspec

        try:
            system, path = fsspec.core.url_to_fs(file.path)
            digest.update(f"{file.path}\0{system.ukey(path)}".encode())
        except (OSError, ValueError, NotImplementedError, ImportError):
            return None
        return digest.hexdigest()
    try:
        with Path(file.path).open("rb") as stream:
            info = os.fstat(stream.fileno())
            digest.update(f"{info.st_size}\0".encode())
            if info.st_size <= _SAMPLES * _SAMPLE_BYTES:
                digest.update(stream.read())
                return digest.hexdigest()
            digest.update(f"{info.st_mtime_ns}\0".encode())
            for number in range(_SAMPLES):
                stream.seek((info.st_size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    except OSError:
        return None
    return digest.hexdigest()


def _write(path: Path, events: Events, key: bytes) -> None:
    """Write an entry beside its place and rename it; a folder that refuses is no error."""
    columns = {item.name: getattr(events.columns, item.name) for item in fields(EventColumns)}
    entry = _Entry(
        counts={name: len(values) for name, values in columns.items()},
        strings=list(events.strings),
        args={row: dict(args) for row, args in events.args.items()},
        header=dict(events.header),
        base_ns=events.base_ns,
        diagnostics=list(events.diagnostics),
        truncated=events.truncated,
        total=events.total,
    )
    try:
        head = msgspec.json.encode(entry)
    except (TypeError, msgspec.MsgspecError, OverflowError):
        return
    parts = [_MAGIC, len(head).to_bytes(8, "little"), head]
    for values in columns.values():
        parts.append(b"\0" * (-sum(map(len, parts)) % _ALIGN))
        parts.append(values.tobytes())
    body = b"".join(parts)
    partial: str | None = None
    try:
        path.parent.mkdir(exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(body)
            stream.write(_seal(body, key))
        Path(partial).replace(path)
    except OSError:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)


def _open(data: np.ndarray[Any, np.dtype[np.uint8]], key: bytes) -> Events | None:
    """An entry's events, or None when its seal is not this user's."""
    if len(data) < len(_MAGIC) + 8 + _SEAL_BYTES:
        return None
    body, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:].tobytes()
    if not hmac.compare_digest(_seal(body.data, key), seal):
        return None
    # From here on the bytes are known to be our own.
    at = len(_MAGIC) + 8
    size = int.from_bytes(body[len(_MAGIC) : at].tobytes(), "little")
    entry = msgspec.json.decode(body[at : at + size].tobytes(), type=_Entry)
    at += size
    columns = {}
    for item in fields(EventColumns):
        at += -at % _ALIGN
        dtype, count = item.metadata["dtype"], entry.counts[item.name]
        columns[item.name] = body[at : at + dtype.itemsize * count].view(dtype)
        at += dtype.itemsize * count
    return Events(
        columns=EventColumns(**columns),
        strings=tuple(entry.strings),
        args=entry.args,
        header=entry.header,
        base_ns=entry.base_ns,
        diagnostics=tuple(entry.diagnostics),
        truncated=entry.truncated,
        total=entry.total,
    )


def _seal(body: bytes | memoryview, key: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=_SEAL_BYTES).digest()
