"""The native tokenizer, where it was built.

It takes only blocks of plain, valid events; of any other it keeps nothing and the
Python path appends the rows instead, so both readers give equal columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Protocol, cast

from tracekit.io import tokens
from tracekit.io.events import LONGEST_NAME, MOST_STRING_BYTES, MOST_STRINGS, Builder
from tracekit.io.names import CPU_COMMUNICATION_OPERATOR

try:
    from tracekit.io import _tokenizer  # type: ignore[attr-defined, unused-ignore]
except ImportError:
    _tokenizer = None  # type: ignore[assignment, unused-ignore]

# As in module.cpp: an extension left over from another version must not be used.
_INTERFACE = 4
if _tokenizer is not None and getattr(_tokenizer, "INTERFACE", 1) != _INTERFACE:
    _tokenizer = None

# Set to 0 to read everything on the Python path.
VARIABLE = "TRACEKIT_NATIVE"
NOT_PLAIN = -1


class NativeBuilder(Builder, Protocol):
    """What the extension's ``Builder`` does, beyond collecting rows."""

    def take(self, data: bytearray, begin: int, end: int, offset: int, /) -> int:
        """Tokenise a block: NOT_PLAIN, 0, or where in it the event list ended."""

    def new_strings(self) -> list[str]:
        """Strings that came since the last call."""

    def flag(self, codes: list[int], /) -> None:
        """Names whose events' arguments are wanted."""

    def side_rows(self) -> list[tuple[int, int, int, int]]:
        """Row, begin, end, name code of the wanted arguments in the block just taken.

        The code is -1 where it is not the name that makes them wanted.
        """


def available() -> bool:
    """Whether the native tokenizer was built and is not switched off."""
    return _tokenizer is not None and os.environ.get(VARIABLE, "1") != "0"


def builder() -> NativeBuilder:
    """A new, empty native builder."""
    assert _tokenizer is not None
    # Just below a limit a float64 rounds up to it; the Python path decides there.
    made = _tokenizer.Builder(
        LONGEST_NAME,
        MOST_STRINGS,
        MOST_STRING_BYTES,
        tokens.LONGEST_LIST_BYTES,
        tokens.LARGEST_TIME_US - 2,
        tokens.LONGEST_DURATION_US - 2,
    )
    return cast(NativeBuilder, made)


class Communication:
    """Finds the events whose arguments tell of communication, in blocks taken natively."""

    def __init__(self, native: NativeBuilder) -> None:
        self._native = native
        self._names: dict[int, str] = {}
        self._told = 0

    def args(self, data: bytearray, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Row and side-table entry of those events in the block just taken.

        Args:
            data: the buffer that holds the block.
            start: where in it the block begins.
        """
        fresh = []
        for text in self._native.new_strings():
            if CPU_COMMUNICATION_OPERATOR.match(text):
                fresh.append(self._told)
                self._names[self._told] = text
            self._told += 1
        self._native.flag(fresh)
        for row, begin, end, code in self._native.side_rows():
            args = tokens.decode_args(bytes(data[start + begin : start + end]))
            yield row, tokens.communication_args(args, self._names.get(code, ""))
