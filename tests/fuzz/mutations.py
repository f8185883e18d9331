"""Damage of the kinds that real files show, and random damage, to any bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

FRAGMENTS = [
    b'"', b"\\", b"}, {", b"},{", b"]", b"[", b"{", b"}", b",", b":", b"]}", b"\x00", b"\xff",
    b"\xed\xa0\x80", b"NaN", b"N/A", b"Infinity", b"null", b"true", b"-", b"1e999", b"0.",
    b"99999999999999999999", b'"ts": ', b'"dur": -1, ', b'"ph": "B", ', b'"ph": "E", ',
    b'"ts": "12.5", ', b'"ts": 1712195495505583.1234567, ', b'"ts": 4.00049999, ', b'"pid": -0, ',
    b'"args": {"Collective name": "send", "Process Group Ranks": [0, 1]}, ', b'"args": null, ',
    b'"name": "c10d::x", "args": {"Input Dims": [[1, 2]], "Input type": ["float"]}, ',
    b"\\u0041", b"\\ud800", b"\\ud83d\\ude00", b"\\x", b"\xef\xbb\xbf", b"\t", b"\n", b"\x1f",
    b'{"ph": "X", "ts": 5, "dur": 1, "name": "whole"}, ', b'], "traceName": "x"}',
    b'"correlation": [1], ', b'"stream": "0x0", ', b'"cat": 5, ', b'"name": 1.5, ', b"\xc3\xa9",
]  # fmt: skip


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _delete(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + data[place + rng.choice((1, 1, 3, 50)) :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(FRAGMENTS) + data[place:]


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _copy(data: bytes, rng: random.Random) -> bytes:
    begin, place = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    return data[:place] + data[begin : begin + rng.randrange(300)] + data[place:]


def _before_a_key(data: bytes, rng: random.Random) -> bytes:
    """A fragment where JSON allows one, so that many mutants stay valid."""
    places = [place for place in range(len(data) - 1) if data[place : place + 2] in (b'{"', b"{ ")]
    place = rng.choice(places) + 1 if places else 0
    return data[:place] + rng.choice(FRAGMENTS) + data[place:]


_KINDS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut, _delete, _insert, _insert, _flip, _copy, _before_a_key, _before_a_key,
)  # fmt: skip


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to six kinds of damage."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = rng.choice(_KINDS)(data, rng)
    return data
