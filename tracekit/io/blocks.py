"""A trace's bytes in blocks of about a megabyte, cut between events."""

from __future__ import annotations

import io
import re
import zlib
from collections import deque
from typing import BinaryIO, NamedTuple

BLOCK_BYTES = 1 << 20
# An event is never longer; what goes on for more without a boundary is no event list.
EVENT_LIMIT_BYTES = 32 << 20

BOUNDARY = re.compile(rb"\}\s*,[\s,]*(?=\{)")
BLANK = b" \t\r\n"
_OPEN_TAIL = re.compile(rb"\}[\s,]*")


class Block(NamedTuple):
    """A stretch of ``BlockReader.data``, valid until the reader goes on.

    Attributes:
        begin: where it begins.
        end: just after its last event's brace, or the end of the file.
        next: where the event after it begins.
        offset: of its beginning, in the document.
        last: it ends with the file, not with an event.
        is_event_list: False for a stretch too long to be one.
    """

    begin: int
    end: int
    next: int
    offset: int
    last: bool = False
    is_event_list: bool = True


class BlockReader:
    """Reads a stream into one buffer that moves along with it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.data = bytearray(3 * BLOCK_BYTES)
        self.begin = 0
        self.end = 0
        self.offset = 0  # of `begin`, in the document
        self.at_end = False
        self.damage: str | None = None  # why the stream ended early, if it did

    def fill(self) -> bool:
        """Read about one more block; False at the end, or where decompression fails."""
        if self.at_end:
            return False
        self._make_room()
        before = self.end
        while self.end < before + BLOCK_BYTES and not self.at_end:
            count = self._read_into(self.end, before + BLOCK_BYTES)
            self.end += count
            self.at_end = count == 0
        return self.end > before

    def _read_into(self, begin: int, end: int) -> int:
        try:
            if isinstance(self._stream, (io.RawIOBase, io.BufferedIOBase)):
                with memoryview(self.data) as view, view[begin:end] as target:
                    return self._read_once(target)
            read = self._stream.read(end - begin)
        except (EOFError, OSError, zlib.error) as error:
            # A cut or corrupt .gz raises in the middle; what came before it is good.
            self.damage = str(error) or type(error).__name__
            return 0
        self.data[begin : begin + len(read)] = read
        return len(read)

    def _read_once(self, target: memoryview) -> int:
        """Not more than one read of what lies below, or an error there costs what came first."""
        if isinstance(self._stream, io.BufferedIOBase):
            return self._stream.readinto1(target)
        assert isinstance(self._stream, io.RawIOBase)
        return self._stream.readinto(target) or 0

    def _make_room(self) -> None:
        if self.end + BLOCK_BYTES <= len(self.data):
            return
        rest = self.data[self.begin : self.end]
        if len(rest) + BLOCK_BYTES > len(self.data):
            self.data = bytearray(2 * len(self.data))
        self.data[: len(rest)] = rest
        self.begin, self.end = 0, len(rest)

    def skip_to(self, place: int) -> None:
        """Go on at this place of the buffer."""
        self.offset += place - self.begin
        self.begin = place

    def text(self) -> bytes:
        """All that was read and not yet skipped."""
        return bytes(self.data[self.begin : self.end])

    def next_block(self, carried: int = 0) -> Block:
        """Everything up to the last event boundary at hand; at the end of the file all of it.

        Args:
            carried: bytes at the beginning that were seen before; the block is longer.
        """
        searched = self.begin + carried
        while True:
            if self.end - self.begin < BLOCK_BYTES:
                searched -= self.begin
                self.fill()
                searched += self.begin
            cut = last_boundary(self.data, searched, self.end)
            if cut is not None:
                return Block(self.begin, cut[0] + 1, cut[1], self.offset)
            if self.end - self.begin > EVENT_LIMIT_BYTES:
                return Block(self.begin, self.end, self.end, self.offset, is_event_list=False)
            searched = self._last_close(searched) - self.begin
            more = self.fill()
            searched += self.begin
            if not more:
                return Block(self.begin, self.end, self.end, self.offset, last=True)

    def _last_close(self, searched: int) -> int:
        """Where a boundary that more bytes complete may begin."""
        close = self.data.rfind(b"}", searched, self.end)
        if close < 0:
            return self.end
        tail = _OPEN_TAIL.match(self.data, close, self.end)
        return close if tail is not None and tail.end() == self.end else self.end


def last_boundary(data: bytes | bytearray, begin: int, end: int) -> tuple[int, int] | None:
    """The last ``} , {``: index of the closing brace and of the opening one.

    Linear, and mostly in the last few kilobytes.
    """
    size = 1 << 12
    while True:
        low = max(begin, end - size)
        found = deque(BOUNDARY.finditer(data, low, end), maxlen=1)
        if found:
            return found[0].span()
        if low == begin:
            return None
        size <<= 4


_STRUCTURE = re.compile(rb'["{}]')
_STRING_END = re.compile(rb'["\\]')


def object_end(text: bytes, begin: int, end: int) -> int | None:
    """Just after the object that begins here; None when it does not end before ``end``."""
    depth, place = 0, begin
    while (found := _STRUCTURE.search(text, place, end)) is not None:
        place = found.end()
        byte = found[0]
        if byte == b'"':
            while (found := _STRING_END.search(text, place, end)) is not None and found[0] == b"\\":
                place = found.end() + 1
            if found is None:
                return None
            place = found.end()
        elif byte == b"{":
            depth += 1
        else:
            depth -= 1
            if depth <= 0:
                return place
    return None
