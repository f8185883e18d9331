"""The decompressed bytes of a trace: plain, gzip, zstd, or a member of a zip or tar.

What a file is shows in its first bytes, not in its name. Decompression runs on a
thread of its own, one step ahead of the reader. A shared trace is untrusted:
output is bounded by :class:`Limits`, and nothing in an archive is ever written to
disk, whatever its path says.
"""

from __future__ import annotations

import io
import os
import queue
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from tracekit.core.errors import InputError, UsageError
from tracekit.io.containers import (
    GZIP_MAGIC,
    INFLATE_ERRORS,
    Gunzip,
    OneRead,
    tar_members,
    zstd_reader,
)

TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.tmp", ".json.gz.tmp")

_ZSTD = b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"
_TAR = b"ustar"
_TAR_AT = 257
_PEEK_BYTES = 512
_DEEPEST = 4  # a .json.gz in a .tar.gz has three layers

_AHEAD_BYTES = 1 << 20
_AHEAD_BLOCKS = 4


class DecompressionLimitError(OSError):
    """The data is larger than a trace can be; see :class:`Limits`."""


MAX_RATIO = 200
FREE_BYTES = 64 << 20
MAX_BYTES = 256 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """How much decompressed data to accept. Traces shrink 10 to 60 times, bombs 1000 times.

    Attributes:
        ratio: decompressed bytes per byte of the file, once past ``free_bytes``.
        free_bytes: that much is always accepted.
        total_bytes: never more than that.
    """

    ratio: int = MAX_RATIO
    free_bytes: int = FREE_BYTES
    total_bytes: int = MAX_BYTES

    @classmethod
    def from_environment(cls) -> Limits:
        """The defaults, or what TRACEKIT_MAX_RATIO and TRACEKIT_MAX_BYTES say."""
        return cls(
            ratio=_number("TRACEKIT_MAX_RATIO", MAX_RATIO),
            total_bytes=_number("TRACEKIT_MAX_BYTES", MAX_BYTES),
        )


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable)
    if text is None:
        return default
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"{variable} is {text!r}; it takes a whole number above zero")
    return int(text)


@contextmanager
def open_trace(
    source: str | os.PathLike[str], member: str | None = None, limits: Limits | None = None
) -> Iterator[BinaryIO]:
    """The decompressed bytes of a trace file, or of one member of an archive.

    Args:
        source: a path, or a URL that fsspec knows.
        member: which member, as :func:`members` names it; needed when there are several.
        limits: by default those of the environment.

    Raises:
        InputError: it cannot be opened, or the archive does not hold that member.
    """
    limits = limits or Limits.from_environment()
    with ExitStack() as stack:
        raw = stack.enter_context(_open_raw(source))
        bottom = _Counted(raw)
        top, is_packed = _unpack(bottom, member, source, limits, stack)
        if is_packed:
            top = stack.enter_context(closing(_Ahead(top)))
        yield cast(BinaryIO, top)


def members(source: str | os.PathLike[str], limits: Limits | None = None) -> tuple[str, ...]:
    """Names of the traces in a zip or tar, in its order; empty when it is no archive."""
    limits = limits or Limits.from_environment()
    with ExitStack() as stack:
        bottom = _Counted(stack.enter_context(_open_raw(source)))
        layer = _Layer(bottom, bottom, limits, str(source), stack)
        while layer.kind in ("gzip", "zstd"):
            layer = layer.inflated()
        return tuple(layer.members()) if layer.kind in ("zip", "tar") else ()


def is_trace_name(name: str) -> bool:
    """Whether a member of an archive could be a trace, by its name."""
    return name.lower().endswith(TRACE_SUFFIXES)


@contextmanager
def _open_raw(source: str | os.PathLike[str]) -> Iterator[Any]:
    name = os.fspath(source)
    try:
        if "://" in name:
            import fsspec

            stream = fsspec.open(name, "rb").open()
        else:
            stream = Path(name).open("rb", buffering=0)  # noqa: SIM115
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{name}: cannot be read ({error})") from error
    with stream:
        yield stream


def _unpack(
    bottom: _Counted,
    member: str | None,
    source: str | os.PathLike[str],
    limits: Limits,
    stack: ExitStack,
) -> tuple[Any, bool]:
    """The innermost stream, and whether anything is decompressed on the way."""
    name = str(source)
    layer = _Layer(bottom, bottom, limits, name, stack)
    for depth in range(_DEEPEST):
        if layer.kind in ("gzip", "zstd"):
            layer = layer.inflated()
        elif layer.kind in ("zip", "tar"):
            layer = layer.member(member or _only(members(source, limits), name))
            member = None
        else:
            if member is not None:
                raise InputError(f"{name}: no archive, so it holds no {member!r}")
            return layer.stream, depth > 0
    return layer.stream, True


def _only(names: tuple[str, ...], archive: str) -> str:
    if len(names) == 1:
        return names[0]
    what = f"{len(names)} traces; name one of them" if names else "no trace"
    raise InputError(f"{archive}: the archive holds {what}")


class _Layer:
    """A stream and what its first bytes show it to be."""

    def __init__(
        self, raw: Any, bottom: _Counted, limits: Limits, name: str, stack: ExitStack
    ) -> None:
        self.stream = io.BufferedReader(raw, 1 << 16)
        self._bottom = bottom
        self._limits = limits
        self._name = name
        self._stack = stack
        self.kind = self._kind()

    def _kind(self) -> str:
        try:
            start = self.stream.peek(_PEEK_BYTES)
        except (OSError, EOFError):
            return "plain"  # the reader meets the error itself and reports it
        if start.startswith(GZIP_MAGIC):
            return "gzip"
        if start.startswith(_ZSTD):
            return "zstd"
        if start.startswith(_ZIP):
            return "zip"
        return "tar" if start[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR else "plain"

    def inflated(self) -> _Layer:
        """The layer inside of a compressed one."""
        is_gzip = self.kind == "gzip"
        inner = Gunzip(self.stream) if is_gzip else zstd_reader(self.stream, self._name)
        return self._inside(inner)

    def _inside(self, inner: Any) -> _Layer:
        self._stack.callback(inner.close)
        bounded = _Bounded(inner, self._bottom, self._limits)
        return _Layer(bounded, self._bottom, self._limits, self._name, self._stack)

    def members(self) -> list[str]:
        """Names of the traces in an archive."""
        try:
            if self.kind == "zip":
                names = [item.filename for item in self._zip().infolist() if not item.is_dir()]
            else:
                names = [item.name for item in tar_members(self.stream)]
        except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
            raise InputError(f"{self._name}: a damaged archive ({error})") from error
        return [name for name in names if is_trace_name(name)]

    def member(self, wanted: str) -> _Layer:
        """One member of an archive."""
        try:
            inner = self._zip_member(wanted) if self.kind == "zip" else self._tar_member(wanted)
        except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
            raise InputError(f"{self._name}: a damaged archive ({error})") from error
        except (RuntimeError, NotImplementedError) as error:  # encrypted, or an odd method
            raise InputError(f"{self._name}: cannot be unpacked ({error})") from error
        if inner is None:
            raise InputError(f"{self._name}: the archive holds no {wanted!r}")
        return self._inside(inner)

    def _zip(self) -> zipfile.ZipFile:
        # Its directory is at the end, so it reads the file itself, from below the buffer.
        return self._stack.enter_context(zipfile.ZipFile(self._bottom.seekable_file(self._name)))

    def _zip_member(self, wanted: str) -> Any:
        archive = self._zip()
        return OneRead(archive.open(wanted)) if wanted in archive.namelist() else None

    def _tar_member(self, wanted: str) -> Any:
        return next((item for item in tar_members(self.stream) if item.name == wanted), None)


class _Counted(io.RawIOBase):
    """The file itself, counting what is read of it."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        read = self._raw.readinto(target) or 0
        self.count += read
        return int(read)

    def seekable_file(self, name: str) -> Any:
        """The file from its beginning, for a format that jumps about in it."""
        try:
            self._raw.seek(0, os.SEEK_END)
            self.count = self._raw.tell()
            self._raw.seek(0)
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{name}: a zip cannot be read from a pipe") from error
        return self._raw


class _Bounded(io.RawIOBase):
    """Decompressed data, up to the limits; every failure to inflate is an OSError."""

    def __init__(self, inner: Any, bottom: _Counted, limits: Limits) -> None:
        self._inner = inner
        self._bottom = bottom
        self._limits = limits
        self._count = 0
        self._failure: OSError | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        # A peek may meet the error first; whoever reads next must meet it too.
        if self._failure is not None:
            raise self._failure
        try:
            read = int(self._inner.readinto(target) or 0)
        except (*INFLATE_ERRORS, OSError, EOFError, zipfile.BadZipFile, tarfile.TarError) as error:
            self._failure = OSError(str(error))
            raise self._failure from error
        self._count += read
        self._check()
        return read

    def _check(self) -> None:
        limits = self._limits
        if self._count > limits.total_bytes:
            raise DecompressionLimitError(
                f"more than {limits.total_bytes} bytes; TRACEKIT_MAX_BYTES allows more"
            )
        if self._count > max(limits.free_bytes, limits.ratio * self._bottom.count):
            raise DecompressionLimitError(
                f"over {limits.ratio} times its compressed size; TRACEKIT_MAX_RATIO allows more"
            )


class _Ahead(io.RawIOBase):
    """Reads a stream on a thread, a few blocks ahead."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._free: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[tuple[bytearray, int, Exception | None]] = queue.SimpleQueue()
        for _ in range(_AHEAD_BLOCKS):
            self._free.put(bytearray(_AHEAD_BYTES))
        self._block = bytearray()
        self._place = self._size = 0
        self._error: Exception | None = None
        self._done = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracekit-inflate", daemon=True)
        self._thread.start()

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        if self._place == self._size and not self._next_block():
            if self._error is not None:
                raise self._error
            return 0
        count = min(len(target), self._size - self._place)
        with memoryview(self._block) as view:
            target[:count] = view[self._place : self._place + count]
        self._place += count
        return count

    def close(self) -> None:
        if not self.closed:
            self._stop.set()
            self._free.put(None)
            self._thread.join()
        super().close()

    def _next_block(self) -> bool:
        if self._done:
            return False
        if self._block:
            self._free.put(self._block)
        self._block, self._size, self._error = self._full.get()
        self._place = 0
        self._done = self._error is not None or self._size < _AHEAD_BYTES
        return self._size > 0

    def _run(self) -> None:
        while (block := self._free.get()) is not None and not self._stop.is_set():
            size, error = 0, None
            try:
                with memoryview(block) as view:
                    while size < _AHEAD_BYTES and (read := self._inner.readinto1(view[size:])):
                        size += read
            except Exception as caught:  # noqa: BLE001 - raised again where it is read
                error = caught
            self._full.put((block, size, error))
            if error is not None or size < _AHEAD_BYTES:
                return
