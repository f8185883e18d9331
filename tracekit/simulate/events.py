"""From a lane's times to events as Kineto writes them: text patterns and where their times are.

The events of one pipeline rank are the same on all its ranks but for their times
and a few words, so their text is made once and filled in for each rank.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.trace import Int64

# Columns of times of one operation, in the order in which :func:`times` stacks them.
LAUNCH, OPERATOR_END, API, API_END, LAUNCHED, START, END = range(7)
COLUMNS = 7

_TOKEN = re.compile("@([^@]+)@")
_SEPARATOR = ",\n"


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Events without their times and words.

    Attributes:
        texts: JSON of each event, with ``%d.%03d`` twice, for ts and for dur, and
            ``@token@`` for each word that differs between ranks.
        begin, end: (events,) where each event's times are: row * COLUMNS + column.
        optional: (events,) whether an event is left out where it takes no time.
        parts: all texts as one, cut at the tokens; every other part is a token.
    """

    texts: tuple[str, ...]
    begin: npt.NDArray[np.intp]
    end: npt.NDArray[np.intp]
    optional: npt.NDArray[np.bool_]
    parts: tuple[str, ...]


class PatternWriter:
    """Collects events."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._begin: list[int] = []
        self._end: list[int] = []
        self._optional: set[int] = set()

    def add_optional(self, text: str, row: int, begin: int, end: int) -> None:
        """An event that is left out on ranks where it takes no time."""
        self._optional.add(len(self._texts))
        self.add(text, row, begin, end)

    def add(self, text: str, row: int, begin: int, end: int, until: int | None = None) -> None:
        """An event from one column of a row to another, of the same row or of a later one."""
        self._texts.append(text)
        self._begin.append(row * COLUMNS + begin)
        self._end.append((row if until is None else until) * COLUMNS + end)

    def pattern(self) -> Pattern:
        """All of them."""
        return Pattern(
            tuple(self._texts),
            np.array(self._begin, dtype=np.intp),
            np.array(self._end, dtype=np.intp),
            np.isin(np.arange(len(self._texts)), list(self._optional)),
            _cut(self._texts),
        )


def _cut(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(_TOKEN.split(_SEPARATOR.join(texts)))


def event(category: str, name: str, where: str, args: str) -> str:
    """The text of one event, as ``%`` wants it."""
    text = (
        f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, {where}, '
        f'"ts": \x00, "dur": \x00, "args": {{{args}}}}}'
    )
    return text.replace("%", "%%").replace("\x00", "%d.%03d")


def times(launch: Int64, launched: Int64, start: Int64, end: Int64) -> Int64:
    """(rows, COLUMNS) of one rank; the operator's call of the runtime lies inside its span."""
    span = launched - launch
    inside = [launch + span * share // 20 for share in (3, 7, 17)]
    return np.stack((launch, *inside, launched, start, end), axis=1)


def filled(
    pattern: Pattern, words: Mapping[str, str], begin: Int64, end: Int64, window: Int64
) -> str:
    """The text of all events inside a window.

    Args:
        pattern: the events.
        words: what the tokens stand for on this rank.
        begin, end: (events,) int64 ns, shown by the rank's clock.
        window: (2,) int64 ns, by the same clock.
    """
    duration = end - begin
    keep = (begin >= window[0]) & (end <= window[1]) & ~(pattern.optional & (duration == 0))
    numbers = np.stack((begin // 1000, begin % 1000, duration // 1000, duration % 1000), axis=1)
    parts = list(
        pattern.parts if keep.all() else _cut(list(itertools.compress(pattern.texts, keep)))
    )
    parts[1::2] = [words[token] for token in parts[1::2]]
    return "".join(parts) % tuple(numbers[keep].ravel().tolist())
