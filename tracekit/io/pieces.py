"""A block that is not valid JSON, event by event: what parses, is repaired, or is lost."""

from __future__ import annotations

import re

from tracekit.io import repair
from tracekit.io.blocks import BLANK, object_end
from tracekit.io.notes import EXAMPLE_BYTES, Notes
from tracekit.io.preamble import HEADER_KEYS
from tracekit.io.rows import RowMaker
from tracekit.io.tokens import BAD_JSON, Event, decode_event, lenient

# An event that may go on in the next block is at most that long in this one.
_CARRY_LIMIT_BYTES = 1 << 18
# A raw quote can hide that many event boundaries inside one name.
_JOINED_PIECES = 3
# Bytes to look at beyond one reading of the block, as a multiple of its size: repairs of
# ordinary damage stay far below, and no block takes long whatever is in it.
_EFFORT = 32
_SCAN_EFFORT = 16  # what a byte costs that Python itself looks at
_SALVAGE_ATTEMPTS = 8
# After that many failures in a row only every so many-th event is still tried.
_PATIENCE = 2000
_RARELY = 64

# Also without a comma: only in damaged text does an object follow another like that.
_LOOSE_BOUNDARY = re.compile(rb"\}[\s,]*(?=\{)")
_SEPARATOR = re.compile(rb"[\s,]*")
_EVENT_START = re.compile(rb'\{\s*"ph"\s*:')
# The end of the list behind something broken: only a header's keys can follow.
_LIST_END = re.compile(rb'\]\s*(?=,\s*"(?:' + b"|".join(HEADER_KEYS) + rb')"\s*:|\}\s*\Z)')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_TRUNCATED = "Input data was truncated"


class Pieces:
    """Takes damaged blocks apart."""

    def __init__(self, rows: RowMaker, notes: Notes) -> None:
        self._rows = rows
        self._notes = notes
        self._failures = 0  # repairs in a row that came to nothing

    def take(self, text: bytes, offset: int, is_last: bool) -> tuple[int, bool]:
        """Add what can be saved of a block.

        Args:
            text: the block.
            offset: of the block in the document.
            is_last: the file ends with the block.

        Returns:
            The place up to which it was used, and whether the event list ends there.
        """
        scan = _Scan(text, offset, is_last, self._notes)
        scan.failures = self._failures
        taken, ended = scan.run()
        self._failures = scan.failures
        self._rows.add_pieces(scan.events, scan.texts, scan.offsets)
        return taken, ended


class _Scan:
    """One pass over one damaged block."""

    def __init__(self, text: bytes, offset: int, is_last: bool, notes: Notes) -> None:
        self.text = text
        self.view = memoryview(text)
        self.offset = offset
        self.is_last = is_last
        self.notes = notes
        self.failures = 0
        self.effort = _EFFORT * len(text) + (1 << 16)
        self.events: list[Event] = []
        self.texts: list[bytes] = []
        self.offsets: list[int] = []

    def run(self) -> tuple[int, bool]:
        """The place up to which the block was used, and whether the list ends there."""
        place = 0
        while True:
            separator = _SEPARATOR.match(self.text, place)
            place = separator.end() if separator else place
            if place >= len(self.text):
                return len(self.text), False
            if self.text[place] == ord("]"):
                return place + 1, True
            end = self._piece(place)
            if end is None:
                return place, False  # goes on in the next block
            place = end

    def _piece(self, place: int) -> int | None:
        """Uses the event that begins here; returns its end, None to wait for more bytes."""
        stop = self._boundary(place)
        event, problem = _decode(self.view[place:stop])
        if event is not None:
            return self._keep(event, place, stop)
        trailing = _TRAILING.search(problem)
        closed = None
        if trailing:
            # A whole event, and something after it that is no separator.
            closed = place + int(trailing[1]) - 1
        elif problem == _TRUNCATED and self._is_worth_it() and self._spend(2 * (stop - place)):
            # The boundary lies in a string or in the arguments: look for the brace that closes.
            closed = self._closed(place)
            if closed is None and self._may_go_on(place):
                return None
        if closed is not None:
            event, _ = _decode(self.view[place:closed])
            if event is not None:
                return self._keep(event, place, closed)
        return self._damaged(place, stop, problem)

    def _boundary(self, place: int) -> int:
        """The end of what looks like one event."""
        boundary = _LOOSE_BOUNDARY.search(self.text, place)
        return boundary.start() + 1 if boundary else len(self.text)

    def _keep(self, event: Event, place: int, end: int, text: bytes | None = None) -> int:
        self.events.append(event)
        self.texts.append(self.text[place:end].rstrip(BLANK) if text is None else text)
        self.offsets.append(self.offset + place)
        return end

    def _closed(self, place: int) -> int | None:
        """The end of an object that reaches beyond a boundary."""
        end = min(len(self.text), place + self.effort // _SCAN_EFFORT)
        closed = object_end(self.text, place, end)
        self._spend(((end if closed is None else closed) - place) * _SCAN_EFFORT)
        return closed

    def _may_go_on(self, place: int) -> bool:
        return not self.is_last and len(self.text) - place <= _CARRY_LIMIT_BYTES

    def _spend(self, count: int) -> bool:
        """Whether that many more bytes may be looked at in this block."""
        self.effort -= count
        return self.effort > 0

    def _damaged(self, place: int, stop: int, problem: str) -> int:
        """An event that is no valid JSON: cut off, repaired, or lost."""
        if self.is_last and problem == _TRUNCATED and self._is_cut(place, stop):
            self.notes.count("cut-event", self.offset + place, self._example(place))
            return len(self.text)
        if stop - place <= repair.LIMIT_BYTES:
            event = lenient(self.view[place:stop]) if self._spend(stop - place) else None
            if event is not None:
                self.notes.count("odd-type", self.offset + place, self._example(place))
                return self._keep(event, place, stop)
            end = self._repaired(place, stop) if self._is_worth_it() else None
            if end is not None:
                self.failures = 0
                return end
            self.failures += 1
        return self._lost(place, stop)

    def _is_worth_it(self) -> bool:
        return self.failures < _PATIENCE or self.failures % _RARELY == 0

    def _is_cut(self, place: int, stop: int) -> bool:
        """Whether all that follows up to the end of the file is the beginning of one event."""
        if stop < len(self.text) and self._joined(place, stop)[-1] < len(self.text):
            return False
        return _decode(self.view[place:])[1] == _TRUNCATED

    def _repaired(self, place: int, stop: int) -> int | None:
        """The end of an event that a known repair makes readable."""
        for end in self._joined(place, stop):
            if not self._spend(8 * (end - place)):
                return None
            for kind, text in repair.candidates(self.text[place:end]):
                event = _decode(text)[0] or lenient(text)
                if event is not None and (event.ts is not None or event.ph not in ("X", "B", "E")):
                    self.notes.count(kind, self.offset + place, self._example(place))
                    return self._keep(event, place, end, text)
        return None

    def _joined(self, place: int, stop: int) -> list[int]:
        """Ends of the piece alone, and with those after it that are no events themselves."""
        ends = [stop]
        for _ in range(_JOINED_PIECES):
            separator = _SEPARATOR.match(self.text, stop)
            begin = separator.end() if separator else stop
            if begin >= len(self.text):
                break
            stop = self._boundary(begin)
            if stop - place > repair.LIMIT_BYTES or not self._spend(stop - begin):
                break
            if _decode(self.view[begin:stop])[0] is not None:
                break
            ends.append(stop)
        return ends

    def _lost(self, place: int, stop: int) -> int:
        """Where to go on after an event that cannot be saved.

        At a whole event inside its remains (another writer, or a lost stretch), at the end
        of the list, or behind it.
        """
        self.notes.count("lost-event", self.offset + place, self._example(place))
        for _, match in zip(
            range(_SALVAGE_ATTEMPTS if self._is_worth_it() else 1),
            _EVENT_START.finditer(self.text, place + 1, stop),
            strict=False,
        ):
            if not self._spend(stop - match.start()):
                break
            event, problem = _decode(self.view[match.start() : stop])
            if event is not None or _TRAILING.search(problem):
                return match.start()
        end = _LIST_END.search(self.text, place, stop)
        return end.start() if end else stop

    def _example(self, place: int) -> bytes:
        return self.text[place : place + EXAMPLE_BYTES]


def _decode(piece: bytes | memoryview) -> tuple[Event | None, str]:
    """The event, or what is wrong with it."""
    try:
        return decode_event(piece), ""
    except BAD_JSON as error:
        return None, str(error)
