"""Typed events to rows of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracekit.core.trace import Int64
from tracekit.io import tokens
from tracekit.io.events import LONGEST_NAME, MISSING, Builder
from tracekit.io.notes import Notes
from tracekit.io.tokens import BAD_JSON, NO_ARGS, Bool, Event, Times

# The bulk of traces with stacks, and nothing reads it.
SKIPPED_CATEGORY = "python_function"

Located = Callable[[int], tuple[int, bytes]]  # index of an event -> its offset and text


class RowMaker:
    """Appends events to a builder, and their communication arguments to a side table."""

    def __init__(self, builder: Builder, args: dict[int, dict[str, Any]], notes: Notes) -> None:
        self._builder = builder
        self._args = args
        self._notes = notes

    def add(self, events: list[Event], text: bytes, offset: int) -> None:
        """Add all events of a valid block.

        Args:
            events: in order.
            text: the block they were decoded from.
            offset: of the block in the document.
        """
        places: list[tuple[int, bytes]] = []

        def located(index: int) -> tuple[int, bytes]:
            if not places:
                places.extend(_places(text))
            place, piece = places[index]
            return offset + place, piece

        self._add(events, text, located)

    def add_pieces(self, events: list[Event], texts: list[bytes], offsets: list[int]) -> None:
        """Add events that were decoded one by one, each with its text and place."""
        self._add(events, b",".join(texts), lambda index: (offsets[index], texts[index]))

    def _add(self, events: list[Event], text: bytes, located: Located) -> None:
        index = [
            number
            for number, event in enumerate(events)
            if (event.ph == "X" and event.cat != SKIPPED_CATEGORY) or event.ph in ("B", "E")
        ]
        start = tokens.times([events[i].ts for i in index], tokens.LARGEST_TIME_US)
        ns = _exact(start, index, text)
        self._note_mask("no-time", ~start.known, index, located)
        self._note_mask("absurd-time", start.known & ~start.inside, index, located)
        if not start.inside.all():
            index = [i for i, use in zip(index, start.inside.tolist(), strict=True) if use]
            ns = ns[start.inside]
        kept = [events[i] for i in index]
        marked = [(row, i) for row, i in enumerate(index) if events[i].ph != "X"]
        duration = self._durations(kept, index, located)
        first = self._builder.rows
        for row, i in marked:
            self._builder.mark(first + row, located(i)[0], events[i].ph == "E")
        codes = self._codes(kept, index, located)
        args = [event.args or NO_ARGS for event in kept]
        self._builder.append(
            {
                "start_ns": ns,
                "duration_ns": duration,
                "category": codes[:, 0],
                "name": codes[:, 1],
                "pid": codes[:, 2],
                "tid": codes[:, 3],
                "correlation": tokens.ids([item.correlation for item in args]),
                "external_id": tokens.ids(
                    [
                        item.external_id if item.external_id is not None else item.external_id_2021
                        for item in args
                    ]
                ),
                "device": tokens.ids([item.device for item in args]),
                "stream": tokens.ids([item.stream for item in args]),
                "shape": codes[:, 4],
            },
            len(events),
        )
        self._add_communication(kept, first, index, located)

    def _durations(self, kept: list[Event], index: list[int], located: Located) -> Int64:
        """Durations in ns; 0 for what is none, and for begin and end events."""
        is_complete = np.array([event.ph == "X" for event in kept], dtype=np.bool_)
        found = tokens.times([event.dur for event in kept], tokens.LONGEST_DURATION_US)
        self._note_mask("no-duration", is_complete & ~found.known, index, located)
        self._note_mask("negative-duration", is_complete & found.negative, index, located)
        absurd = is_complete & found.known & ~found.inside & ~found.negative
        self._note_mask("absurd-duration", absurd, index, located)
        return np.where(is_complete & ~found.negative, found.ns, 0)

    def _codes(self, kept: list[Event], index: list[int], located: Located) -> Any:
        """(n, 5) codes of category, name, pid, tid and shape, given out row by row."""
        label, code = tokens.label, self._builder.code
        texts = [
            (event.cat or "", label(event.name), label(event.pid), label(event.tid))
            for event in kept
        ]
        too_long = [row for row, four in enumerate(texts) if max(map(len, four)) > LONGEST_NAME]
        for row in too_long:
            self._notes.count("long-name", *located(index[row]))
            category, name, pid, tid = (text[:LONGEST_NAME] for text in texts[row])
            texts[row] = (category, name, pid, tid)
        shapes = [tokens.shape(event.args) if event.args is not None else "" for event in kept]
        codes = np.array(
            [
                (code(cat), code(name), code(pid), code(tid), code(shape) if shape else MISSING)
                for (cat, name, pid, tid), shape in zip(texts, shapes, strict=True)
            ],
            dtype=np.int32,
        ).reshape(len(kept), 5)
        full = codes < 0
        full[:, 4] = False  # what has no room for its shape has none
        if full.any():
            self._note_mask("too-many-names", np.asarray(full.any(axis=1)), index, located)
            codes[full] = 0
        return codes

    def _add_communication(
        self, kept: list[Event], first: int, index: list[int], located: Located
    ) -> None:
        for row, event in enumerate(kept):
            args = event.args
            if args is None or (args.collective is None and not args.input_dims):
                continue
            try:
                found = tokens.communication_args(args, tokens.label(event.name))
            except BAD_JSON:
                self._notes.count("odd-type", *located(index[row]))
                continue
            if found:
                self._args[first + row] = found

    def _note_mask(self, kind: str, mask: Bool, index: list[int], located: Located) -> None:
        if mask.any():
            offset, text = located(index[int(np.argmax(mask))])
            self._notes.count(kind, offset, text, int(mask.sum()))


def _exact(start: Times, index: list[int], text: bytes) -> Int64:
    """Start times, from their decimal text where a float64 is too coarse."""
    large = np.flatnonzero(np.abs(start.ns) >= tokens.EXACT_US * 1000)
    if len(large):
        start.ns[large] = tokens.exact_times(text, [index[place] for place in large.tolist()])
    return start.ns


def _places(text: bytes) -> list[tuple[int, bytes]]:
    """Offset and text of every event of a valid block."""
    places, place = [], 0
    for raw in tokens.decode_raw(b"[" + text + b"]"):
        piece = bytes(raw)
        place = text.index(piece, place)
        places.append((place, piece))
        place += len(piece)
    return places
