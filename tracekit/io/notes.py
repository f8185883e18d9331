"""Counts what a reader repaired, dropped or guessed, and says where it first did."""

from __future__ import annotations

from collections import Counter

from tracekit.core.run import Diagnostic, Severity
from tracekit.io.events import LONGEST_NAME, MOST_STRINGS

EXAMPLE_BYTES = 60

MESSAGES = {
    "cut-file": (Severity.WARNING, "the file ends inside its event list; events before are kept"),
    "cut-stream": (Severity.WARNING, "the compressed data ends early; events before are kept"),
    "cut-event": (Severity.WARNING, "an event is cut off by the end of the file"),
    "lost-event": (Severity.WARNING, "events are not valid JSON and could not be repaired"),
    "bad-args": (Severity.WARNING, "arguments are not valid JSON; their events are kept"),
    "oversized": (Severity.WARNING, "stretches without a single event were skipped"),
    "bad-header": (Severity.WARNING, "a part of the header is not valid JSON; the rest is used"),
    "interleaved": (Severity.WARNING, "a second document begins inside this one; both are read"),
    "unpaired": (Severity.WARNING, "begin or end events without their partner were dropped"),
    "no-time": (Severity.WARNING, "events without a usable ts were dropped"),
    "absurd-time": (Severity.WARNING, "events over a century away were dropped"),
    "absurd-duration": (Severity.WARNING, "durations of over a day were set to zero"),
    "long-duration": (Severity.WARNING, "events end over 10 s after the last begins: overflows?"),
    "negative-duration": (Severity.WARNING, "negative durations were set to zero"),
    "too-many-names": (Severity.WARNING, f"over {MOST_STRINGS} different names; others left out"),
    "raw-quote": (Severity.INFO, "names with unescaped quotes were repaired"),
    "raw-bytes": (Severity.INFO, "control bytes, backslashes or bad UTF-8 were repaired"),
    "bare-word": (Severity.INFO, "bare NaN, Infinity or N/A values were read as null"),
    "odd-type": (Severity.INFO, "values of an unexpected type were ignored"),
    "long-name": (Severity.INFO, f"names were cut to {LONGEST_NAME} characters"),
    "no-duration": (Severity.INFO, "events without a usable dur count as instantaneous"),
    "zero-time": (Severity.INFO, "events have ts 0, far from all others"),
}  # fmt: skip


class Notes:
    """Counts by kind, with the byte offset and the text of the first of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def count(
        self, kind: str, offset: int | None = None, example: bytes = b"", number: int = 1
    ) -> None:
        """Count something of this kind, found at this byte of the document."""
        if number <= 0:
            return
        if kind not in self._counts and offset is not None:
            shown = example[:EXAMPLE_BYTES].decode("utf-8", "replace")
            self._first[kind] = f"first at byte {offset}" + (f": {shown!r}" if shown else "")
        self._counts[kind] += number

    def explain(self, kind: str, reason: str) -> None:
        """Say more of the first of a kind than where it is."""
        self._first.setdefault(kind, reason)

    def __contains__(self, kind: str) -> bool:
        return kind in self._counts

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """One diagnostic per kind, in a fixed order."""
        made = []
        for kind, (severity, text) in MESSAGES.items():
            if kind in self._counts:
                first = self._first.get(kind)
                message = f"{text} ({first})" if first else text
                made.append(Diagnostic(kind, severity, None, self._counts[kind], message))
        return tuple(made)
