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

# Nothing longer is repaired: a single event is a few hundred bytes.
LIMIT_BYTES = 1 << 18
# The same for a header, which may list thousands of groups.
HEADER_LIMIT_BYTES = 1 << 22

_STRING = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_BARE = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"'  # strings stay as they are
    rb"|(?<=[:\[,])(\s*)(?:-?nan|[-+]?inf(?:inity)?|n/a)(?=\s*[,}\]])"
    rb"|(?<=[:\[,\s])(-?\d+)\.(?=\s*[,}\]])",
    re.IGNORECASE | re.DOTALL,
)
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)("\s*(?:,\s*"\w[\w ]*"\s*:|\}))', re.DOTALL)
_ARGS = re.compile(rb',\s*"args"\s*:')
_QUOTE = re.compile(rb'(?<!\\)"')
_STRAY_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_CONTROL = re.compile(rb"[\x00-\x1f]")


def candidates(piece: bytes) -> Iterator[tuple[str, bytes]]:
    """Repaired versions of one damaged event, with the diagnostic code of each repair."""
    if len(piece) > LIMIT_BYTES:
        return
    numbers = bare_words(piece)
    if numbers != piece:
        yield "bare-word", numbers
    clean = escape_strings(numbers)
    if clean != numbers:
        yield "raw-bytes", clean
    quoted = escape_strings(escape_name(numbers))
    yield "raw-quote", quoted
    args = _ARGS.search(quoted)
    if args is not None:  # written last, so what stands before them is the event
        yield "bad-args", quoted[: args.start()] + b"}"


def decode_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object, repaired if need be; None when it is beyond that."""
    for attempt in (_same, bare_words, lambda damaged: escape_strings(bare_words(damaged))):
        if attempt is not _same and len(text) > HEADER_LIMIT_BYTES:
            return None
        try:
            found = msgspec.json.decode(attempt(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        return found if isinstance(found, dict) else None
    return None


def _same(text: bytes) -> bytes:
    return text


def bare_words(text: bytes) -> bytes:
    """NaN, Infinity and N/A outside strings to null, ``20.`` to ``20.0``."""
    return _BARE.sub(_bare_word, text)


def escape_name(text: bytes) -> bytes:
    """Escape raw quotes inside the event's name; the name ends at the next key."""
    return _NAME.sub(_escape_quotes, text, count=1)


def escape_strings(text: bytes) -> bytes:
    """Escape control bytes and stray backslashes in strings; replace bad UTF-8."""
    fixed = _STRING.sub(_escape_string, text)
    return fixed.decode("utf-8", "replace").encode()


def _bare_word(match: re.Match[bytes]) -> bytes:
    if match[1] is not None:
        return match[1] + b"null"
    return match[0] if match[2] is None else match[2] + b".0"


def _escape_quotes(match: re.Match[bytes]) -> bytes:
    return match[1] + _QUOTE.sub(rb'\\"', match[2]) + match[3]


def _escape_string(match: re.Match[bytes]) -> bytes:
    body = _STRAY_BACKSLASH.sub(rb"\\\\", match[1])
    body = _LONE_SURROGATE.sub(lambda found: found[0] if len(found[0]) == 12 else rb"\ufffd", body)
    body = _CONTROL.sub(lambda byte: b"\\u%04x" % byte[0][0], body)
    return b'"' + body + b'"'
