"""From a lane's times to events as Kineto writes them: text patterns and where their times are.

The events of one pipeline rank are the same on all its ranks but for their times
and a few words, so their text is made once and filled in for each rank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from tracekit.core.trace import Int64

# Columns of times of one operation, in the order in which :func:`times` stacks them.
LAUNCH, LAUNCHED, START, END, API, API_END = range(6)


@dataclass(slots=True)
class Pattern:
    """Events without their times.

    Attributes:
        texts: JSON of each event, with ``%d.%03d`` twice: for ts and for dur.
        begin, end: where each event's times are: row * 6 + column.
        routed: place of each event whose text depends on the routing, with its row.
    """

    texts: list[str] = field(default_factory=list)
    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    routed: list[tuple[int, int]] = field(default_factory=list)

    def add(self, text: str, row: int, begin: int, end: int, until: int | None = None) -> None:
        """An event from one column of a row to another, of the same row or of a later one."""
        self.texts.append(text)
        self.begin.append(row * 6 + begin)
        self.end.append((row if until is None else until) * 6 + end)


def event(category: str, name: str, where: str, args: str) -> str:
    """The text of one event; per cent signs are doubled where the name has any."""
    return (
        (
            f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, {where}, '
            '"ts": \x00, "dur": \x00, "args": {' + args + "}}"
        )
        .replace("%", "%%")
        .replace("\x00", "%d.%03d")
    )


def times(launch: Int64, launched: Int64, start: Int64, end: Int64) -> Int64:
    """(rows, 6) of one rank: the columns, with the runtime call inside the operator's span."""
    span = launched - launch
    api = launch + span * 7 // 20
    return np.stack((launch, launched, start, end, api, api + span // 2), axis=1)


def filled(pattern: Pattern, texts: list[str], begin: Int64, end: Int64, window: Int64) -> str:
    """The text of all events inside a window.

    Args:
        pattern: the events.
        texts: theirs, with this rank's words.
        begin, end: (events,) int64 ns, shown by the rank's clock.
        window: (2,) int64 ns, by the same clock.
    """
    keep = (begin >= window[0]) & (end <= window[1])
    duration = end - begin
    numbers = np.stack((begin // 1000, begin % 1000, duration // 1000, duration % 1000), axis=1)
    chosen = texts if keep.all() else [text for text, use in zip(texts, keep, strict=True) if use]
    return ",\n".join(chosen) % tuple(numbers[keep].ravel().tolist())
