"""Known damage in trace files, and how to undo it.

Each repair makes a candidate text; the caller takes the first that parses, so
a wrong guess costs nothing. Sources: public bug reports against PyTorch and
libkineto about unescaped names, raw control bytes and bare words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_BARE_WORD = re.compile(rb"(?<=[:\[,])\s*(?:-?nan|-?inf(?:inity)?|n/a)\s*(?=[,}\]])", re.IGNORECASE)
_BARE_FLOAT = re.compile(rb"(?<=[:\[,\s])(-?\d+)\.(?=\s*[,}\]])")
_NAME = re.compile(rb'("(?:name|Name)"\s*:\s*")(.*?)("\s*(?:,\s*"\w[\w ]*"\s*:|\}))', re.DOTALL)
_STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_STRAY_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ARGS = re.compile(rb',\s*"args"\s*:\s*\{.*\}(?=\s*\}\s*$)', re.DOTALL)


def candidates(piece: bytes) -> Iterator[tuple[str, bytes]]:
    """Repaired versions of one damaged event, with the diagnostic code of each repair."""
    numbers = bare_words(piece)
    if numbers != piece:
        yield "bare-word", numbers
    clean = escape_strings(numbers)
    if clean != numbers:
        yield "raw-bytes", clean
    quoted = escape_strings(escape_name(numbers))
    yield "raw-quote", quoted
    # Last resort: an argument of a type no one expects should not cost the event.
    yield "odd-type", _ARGS.sub(b"", quoted)


def decode_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object, repaired if need be; None when it is beyond that."""
    for attempt in (text, bare_words(text), escape_strings(bare_words(text))):
        try:
            found = msgspec.json.decode(attempt)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        return found if isinstance(found, dict) else None
    return None


def bare_words(text: bytes) -> bytes:
    """NaN, Infinity and N/A outside strings to null, ``20.`` to ``20.0``."""
    return _BARE_FLOAT.sub(rb"\1.0", _BARE_WORD.sub(b"null", text))


def escape_name(text: bytes) -> bytes:
    """Escape raw quotes inside the event's name; the name ends at the next key."""
    return _NAME.sub(_escape_quotes, text, count=1)


def escape_strings(text: bytes) -> bytes:
    """Escape control bytes and stray backslashes in strings; replace bad UTF-8."""
    fixed = _STRING.sub(_escape_string, text)
    return fixed.decode("utf-8", "replace").encode()


def _escape_quotes(match: re.Match[bytes]) -> bytes:
    name = re.sub(rb'(?<!\\)"', rb'\\"', match[2])
    return match[1] + name + match[3]


def _escape_string(match: re.Match[bytes]) -> bytes:
    body = _STRAY_BACKSLASH.sub(rb"\\\\", match[1])
    body = _CONTROL.sub(lambda byte: b"\\u%04x" % byte[0][0], body)
    return b'"' + body + b'"'
