"""A trace's top-level keys but its events, however damaged."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from tracekit.io import repair

# Keys worth finding in a header that is no valid JSON, as regular expressions.
HEADER_KEYS = (
    b"schemaVersion", b"deviceProperties", b"distributedInfo", b"host_name",
    b"baseTimeNanoseconds", b"displayTimeUnit", b"traceName", b"record_shapes", b"with_stack",
    b"with_flops", b"with_modules", b"profile_memory", b"trace_id", b"[a-z_]+_version",
)  # fmt: skip
_KNOWN = re.compile(rb'"(' + b"|".join(HEADER_KEYS) + rb')"\s*:\s*')
_SALVAGE_LIMIT_BYTES = 1 << 20
_SALVAGE_ATTEMPTS = 100


def decode(text: bytes) -> tuple[dict[str, Any], bool]:
    """The keys of a JSON object, and whether all of it could be read."""
    found = repair.decode_object(text)
    if found is not None:
        return found, True
    closed = _closed(text) if len(text) <= repair.HEADER_LIMIT_BYTES else None
    found = None if closed is None else repair.decode_object(closed)
    return (_known_keys(text) if found is None else found), False


def _closed(text: bytes) -> bytes | None:
    """A text that was cut off, back to its last complete member and with brackets closed."""
    open_brackets: list[bytes] = []
    best: tuple[int, bytes] | None = None
    place = 0
    while (token := _TOKEN.search(text, place)) is not None:
        place = token.end()
        byte = token[0][:1]
        if byte in b"{[":
            open_brackets.append(b"}" if byte == b"{" else b"]")
        elif byte in b"}]":
            if not open_brackets or open_brackets.pop() != byte or not open_brackets:
                break
            best = (place, b"".join(reversed(open_brackets)))
        elif byte == b",":
            best = (token.start(), b"".join(reversed(open_brackets)))
        if len(open_brackets) > 64:
            return None
    return None if best is None else text[: best[0]] + best[1]


_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]', re.DOTALL)


def _known_keys(text: bytes) -> dict[str, Any]:
    """Known keys wherever they stand in a text that is no JSON."""
    readable = text[:_SALVAGE_LIMIT_BYTES].decode("utf-8", "replace").encode()
    decoder = json.JSONDecoder()
    found: dict[str, Any] = {}
    place = 0
    for _ in range(_SALVAGE_ATTEMPTS):
        match = _KNOWN.search(readable, place)
        if match is None:
            break
        place = match.end()
        value = readable[place:].decode()
        try:
            found[match[1].decode()], length = decoder.raw_decode(value)
        except (ValueError, RecursionError):
            continue
        place += len(value[:length].encode())
    return found


def base_ns(header: dict[str, Any]) -> int | None:
    """The file's base time; None when it is none that a clock would show."""
    base = header.get("baseTimeNanoseconds", 0)
    if isinstance(base, str):
        try:
            base = msgspec.json.decode(base)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
    return base if isinstance(base, int) and 0 <= base < 1 << 62 else None
