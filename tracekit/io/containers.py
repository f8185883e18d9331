"""Streams inside of other streams: gzip, zstd, and the members of a tar.

Each gives every byte that comes before a cut or a damaged place, and fails only then;
the libraries' own readers drop what they had in the call that fails.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

from tracekit.core.errors import InputError

try:
    from isal.isal_zlib import crc32, decompressobj
    from isal.isal_zlib import error as _isal_error

    INFLATE_ERRORS: tuple[Any, ...] = (zlib.error, _isal_error)
except ImportError:  # no wheel for this machine
    from zlib import crc32, decompressobj  # type: ignore[assignment, unused-ignore]

    INFLATE_ERRORS = (zlib.error,)

GZIP_MAGIC = b"\x1f\x8b"


class Gunzip:
    """A gzip file that gives every byte before a cut or a damaged place, and then fails.

    Its checksum is checked; zeros or anything else after the last member is ignored.
    """

    _INPUT_BYTES = 1 << 13
    _FIRST_INPUT_BYTES = 1 << 9  # a small file is damaged in its first kilobytes

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._inflater: Any = None
        self._output = memoryview(b"")
        self._input = b""
        self._crc = self._size = 0
        self._end = (0, 0)  # checksum and size of the member that ended last
        self._check_trailer = False
        self._input_size = self._FIRST_INPUT_BYTES

    def close(self) -> None:
        self._output.release()

    def readinto(self, target: Any) -> int:
        while not self._output and self._inflate():
            pass
        count = min(len(target), len(self._output))
        target[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def _inflate(self) -> bool:
        """Inflate a little more; False at the end of the file."""
        if self._inflater is None and not self._begin_member():
            return False
        if not self._input:
            self._input = self._stream.read1(self._input_size)
            self._input_size = min(2 * self._input_size, self._INPUT_BYTES)
            if not self._input:
                raise EOFError("it ends before its end-of-stream marker")
        output = self._inflater.decompress(self._input)
        self._crc = crc32(output, self._crc)
        self._size += len(output)
        self._output = memoryview(output)
        self._input = self._inflater.unused_data
        if self._inflater.eof:
            self._end = (self._crc, self._size & 0xFFFFFFFF)
            self._inflater = None
            self._check_trailer = True
        return True

    def _begin_member(self) -> bool:
        if self._check_trailer:
            self._check_trailer = False
            trailer = self._take(8)
            if struct.unpack("<II", trailer) != self._end:
                raise OSError("its checksum does not match")
        start = self._take(10, optional=True)
        if start[:3] != GZIP_MAGIC + b"\x08":
            return False  # the end, or padding after it
        self._skip_names(start[3])
        self._inflater = decompressobj(wbits=-15)
        self._crc = self._size = 0
        return True

    def _skip_names(self, flags: int) -> None:
        """The rest of a member's header: extra field, file name, comment, checksum."""
        if flags & 4:
            self._take(int.from_bytes(self._take(2), "little"))
        for flag in (8, 16):
            if flags & flag:
                while self._take(1) != b"\0":
                    pass
        if flags & 2:
            self._take(2)

    def _take(self, count: int, optional: bool = False) -> bytes:
        while len(self._input) < count:
            more = self._stream.read1(count - len(self._input))
            if not more:
                break
            self._input += more
        taken, self._input = self._input[:count], self._input[count:]
        if len(taken) < count and not optional:
            raise EOFError("it ends before its end-of-stream marker")
        return taken


def zstd_reader(stream: Any, name: str) -> ZstdFile:
    """The content of a zstd stream.

    Raises:
        InputError: the package that reads it is not there.
    """
    try:
        import zstandard
    except ImportError as error:
        raise InputError(f"{name}: needs the zstandard package: pip install zstandard") from error
    return ZstdFile(zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True))


class ZstdFile:
    """A zstd stream whose errors are OSErrors."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def readinto(self, target: Any) -> int:
        import zstandard

        try:
            return int(self._inner.readinto(target))
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        self._inner.close()


class OneRead:
    """A buffered file read piecemeal, so that an error costs nothing read before it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def readinto(self, target: Any) -> int:
        return int(self._inner.readinto1(target))

    def close(self) -> None:
        self._inner.close()


# -- tar ---------------------------------------------------------------------------

_TAR_BLOCK = 512
_LONGEST_TAR_HEADER = 1 << 16


class TarMember:
    """One member of a tar: its name, and its content as long as no later one is asked for."""

    def __init__(self, stream: io.BufferedReader, name: str, size: int) -> None:
        self._stream = stream
        self.name = name
        self.left = size

    def readinto(self, target: Any) -> int:
        count = self._stream.readinto1(target[: self.left]) if self.left else 0
        if count == 0 and self.left:
            raise EOFError("the archive ends inside of it")
        self.left -= count
        return count

    def close(self) -> None:
        self.left = 0


def tar_members(stream: io.BufferedReader) -> Iterator[TarMember]:
    """The regular files of a tar, in order. Links, devices and folders are passed over.

    Raises:
        tarfile.TarError: this is no tar, or no more.
    """
    long_name: str | None = None
    while True:
        block = _exactly(stream, _TAR_BLOCK)
        if not block.strip(b"\0"):
            return
        item = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        padding = -item.size % _TAR_BLOCK
        if item.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            if item.size > _LONGEST_TAR_HEADER:
                raise tarfile.ReadError("a name of absurd length")
            data = _exactly(stream, item.size + padding)[: item.size]
            found = _long_name(item.type, data)
            long_name = found if found is not None else long_name
            continue
        member = TarMember(stream, long_name or item.name, item.size)
        long_name = None
        if item.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            yield member
        _skip(stream, member.left + padding)


def _long_name(kind: bytes, data: bytes) -> str | None:
    if kind == tarfile.GNUTYPE_LONGNAME:
        return data.rstrip(b"\0").decode("utf-8", "surrogateescape")
    for line in data.split(b"\n"):
        _, found, path = line.partition(b" path=")
        if found:
            return path.decode("utf-8", "surrogateescape")
    return None


def _exactly(stream: io.BufferedReader, count: int) -> bytes:
    data = stream.read(count)
    if data and len(data) < count:
        raise EOFError("the archive ends inside of a header")
    return data


def _skip(stream: io.BufferedReader, count: int) -> None:
    while count > 0 and (passed := len(stream.read1(min(count, 1 << 20)))):
        count -= passed
