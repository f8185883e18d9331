"""Both paths of the reader on the same bytes, compared value by value."""

from __future__ import annotations

import dataclasses
import io

import numpy as np

from tracekit.core.errors import InputError
from tracekit.io import kineto
from tracekit.io.events import Events

# Paths of the reader to test: the native one only where it was built.
PATHS = [False, True] if kineto.native_available() else [False]


def parse(data: bytes, native: bool) -> Events | str:
    """The events, or the message of the error."""
    try:
        return kineto.parse(io.BytesIO(data), "trace", native=native)
    except InputError as error:
        return str(error)


def assert_same(one: Events | str, other: Events | str) -> None:
    """Equal columns, strings, arguments, header and diagnostics."""
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    for item in dataclasses.fields(one.columns):
        left, right = getattr(one.columns, item.name), getattr(other.columns, item.name)
        np.testing.assert_array_equal(left, right, err_msg=item.name)
    assert one.strings == other.strings
    assert one.args == other.args
    assert one.header == other.header
    assert one.diagnostics == other.diagnostics
    assert (one.base_ns, one.truncated, one.total) == (other.base_ns, other.truncated, other.total)


def both(data: bytes) -> Events | str:
    """Parse on both paths, which must agree."""
    plain = parse(data, native=False)
    if True in PATHS:
        assert_same(parse(data, native=True), plain)
    return plain
