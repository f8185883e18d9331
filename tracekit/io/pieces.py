"""A block that is not valid JSON, event by event: what parses, is repaired, or is lost."""

from __future__ import annotations

import re

from tracekit.io import repair
from tracekit.io.blocks import BLANK, BOUNDARY, object_end
from tracekit.io.notes import Notes
from tracekit.io.rows import RowMaker
from tracekit.io.tokens import BAD_JSON, Event, decode_event, lenient

# An event that may go on in the next block is at most that long in this one.
_CARRY_LIMIT_BYTES = 1 << 18
# A raw quote can hide that many event boundaries inside one name.
_JOINED_PIECES = 3
# Bytes of a block to look through for the ends of events, as a multiple of its size.
_SEARCH_BUDGET = 4
_SALVAGE_ATTEMPTS = 8

_SEPARATOR = re.compile(rb"[\s,]*")
_EVENT_START = re.compile(rb'\{\s*"ph"\s*:')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_TRUNCATED = "Input data was truncated"


class Pieces:
    """Takes damaged blocks apart."""

    def __init__(self, rows: RowMaker, notes: Notes) -> None:
        self._rows = rows
        self._notes = notes

    def take(self, text: bytes, offset: int, file_end: int | None, fresh: int) -> tuple[int, bool]:
        """Add what can be saved of a block.

        Args:
            text: the block.
            offset: of the block in the document.
            file_end: where the file ends in the block, None when it goes on after it.
            fresh: place in the block from which on it was not seen before.

        Returns:
            The place up to which it was used, and whether the event list ends there.
        """
        scan = _Scan(text, offset, file_end is not None, fresh, self._notes)
        taken, ended = scan.run()
        self._rows.add_pieces(scan.events, scan.texts, scan.offsets)
        return taken, ended


class _Scan:
    """One pass over one damaged block."""

    def __init__(self, text: bytes, offset: int, is_last: bool, fresh: int, notes: Notes) -> None:
        self.text = text
        self.offset = offset
        self.is_last = is_last
        self.fresh = fresh
        self.notes = notes
        self.budget = _SEARCH_BUDGET * len(text)
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
        piece = self.text[place:stop]
        event, problem = _decode(piece)
        if event is not None:
            return self._keep(event, piece, place, stop)
        trailing = _TRAILING.search(problem)
        if trailing:
            # A whole event, and something after it that is no separator.
            end = place + int(trailing[1]) - 1
            whole = self.text[place:end].rstrip(BLANK)
            event, _ = _decode(whole)
            if event is not None:
                return self._keep(event, whole, place, end)
        elif problem == _TRUNCATED:
            # The boundary lies in a string or in the arguments: look for the brace that closes.
            closed = self._closed(place)
            if closed is not None:
                event, _ = _decode(self.text[place:closed])
                if event is not None:
                    return self._keep(event, self.text[place:closed], place, closed)
            elif self._may_go_on(place):
                return None
        return self._damaged(place, stop, problem)

    def _boundary(self, place: int) -> int:
        """The end of what looks like one event."""
        boundary = BOUNDARY.search(self.text, place)
        return boundary.start() + 1 if boundary else len(self.text)

    def _keep(self, event: Event, text: bytes, place: int, end: int) -> int:
        self.events.append(event)
        self.texts.append(text)
        self.offsets.append(self.offset + place)
        return end

    def _closed(self, place: int) -> int | None:
        end = min(len(self.text), place + self.budget)
        if end <= place:
            return None
        closed = object_end(self.text, place, end)
        self.budget -= (end if closed is None else closed) - place
        return closed

    def _may_go_on(self, place: int) -> bool:
        return (
            not self.is_last
            and place >= self.fresh
            and len(self.text) - place <= _CARRY_LIMIT_BYTES
        )

    def _damaged(self, place: int, stop: int, problem: str) -> int:
        """An event that is no valid JSON: cut off, repaired, or lost."""
        piece = self.text[place:stop]
        if self.is_last and stop == len(self.text) and problem == _TRUNCATED:
            self.notes.count("cut-event", self.offset + place, piece)
            return stop
        event = lenient(piece)
        if event is not None:
            self.notes.count("odd-type", self.offset + place, piece)
            return self._keep_lenient(event, place, stop)
        for end in self._joined(place, stop):
            piece = self.text[place:end]
            for kind, text in repair.candidates(piece):
                event, _ = _decode(text)
                if event is None:
                    event = lenient(text)
                if event is not None and (event.ts is not None or event.ph not in ("X", "B", "E")):
                    self.notes.count(kind, self.offset + place, piece)
                    return self._keep(event, text, place, end)
        return self._salvage(place, stop)

    def _keep_lenient(self, event: Event, place: int, stop: int) -> int:
        return self._keep(event, self.text[place:stop], place, stop)

    def _joined(self, place: int, stop: int) -> list[int]:
        """Ends of the piece alone, and with those after it that are no events themselves."""
        ends = [stop]
        for _ in range(_JOINED_PIECES):
            if stop >= len(self.text) or stop - place > repair.LIMIT_BYTES:
                break
            separator = _SEPARATOR.match(self.text, stop)
            begin = separator.end() if separator else stop
            stop = self._boundary(begin)
            if _decode(self.text[begin:stop])[0] is not None:
                break
            ends.append(stop)
        return ends

    def _salvage(self, place: int, stop: int) -> int:
        """A whole event inside the remains of another: two writers, or a lost stretch."""
        self.notes.count("lost-event", self.offset + place, self.text[place:stop])
        found = _EVENT_START.finditer(self.text, place + 1, stop)
        for _, match in zip(range(_SALVAGE_ATTEMPTS), found, strict=False):
            event, problem = _decode(self.text[match.start() : stop])
            if event is not None or _TRAILING.search(problem):
                return match.start()
        return stop


def _decode(piece: bytes) -> tuple[Event | None, str]:
    """The event, or what is wrong with it."""
    try:
        return decode_event(piece), ""
    except BAD_JSON as error:
        return None, str(error)
