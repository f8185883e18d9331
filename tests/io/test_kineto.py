"""The reader's arithmetic, its blocks, and what is bounded whatever a file holds."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.io.same import PATHS, assert_same, both, parse
from tracekit.io import blocks, events, kineto, tokens
from tracekit.io.events import Events, pair


def document(*items: str, head: str = "", tail: str = "") -> bytes:
    return f'{{{head}"traceEvents": [{", ".join(items)}]{tail}}}'.encode()


def complete(ts: str = "1", dur: str = "1", name: str = "n", args: str = "{}") -> str:
    return f'{{"ph": "X", "name": "{name}", "ts": {ts}, "dur": {dur}, "args": {args}}}'


def parsed(data: bytes) -> Events:
    found = both(data)
    assert isinstance(found, Events), found
    return found


def counted(found: Events) -> dict[str, int]:
    return {item.code: item.count for item in found.diagnostics}


# -- times -------------------------------------------------------------------------


@given(st.integers(-(10**15), 4 * 10**15), st.integers(0, 999), st.integers(0, 3))
@example(1712195495505583, 250, 2)
@example(2**43, 1, 3)
@example(2**43 - 1, 999, 3)
@example(0, 0, 0)
def test_up_to_three_decimals_are_exact(whole: int, fraction: int, places: int) -> None:
    text = f"{whole}.{fraction:03}"[: len(str(whole)) + 1 + places] if places else str(whole)
    (got,) = parsed(document(complete(ts=text))).columns.start_ns.tolist()
    assert got == int(Decimal(text) * 1000) == kineto.nanoseconds(text)


@given(st.integers(0, 2**43), st.text("0123456789", min_size=4, max_size=17))
def test_more_decimals_round_to_the_nearest(whole: int, fraction: str) -> None:
    text = f"{whole}.{fraction}"
    (got,) = parsed(document(complete(ts=text))).columns.start_ns.tolist()
    exact = (Decimal(text) * 1000).quantize(Decimal(1), ROUND_HALF_EVEN)
    # Just beside a half a float64 of microseconds may fall on the other side.
    assert abs(got - int(exact)) <= 1
    remainder = float((Decimal(text) * 1000) % 1)
    if abs(remainder - 0.5) > 1000 * np.spacing(float(text)):
        assert got == int(exact)


@pytest.mark.parametrize("text", ["nan", "", "1 2", "one", "1e999999999", "Infinity"])
def test_what_is_no_number_of_nanoseconds(text: str) -> None:
    assert kineto.nanoseconds(text) is None


# -- blocks ------------------------------------------------------------------------


def long_document() -> bytes:
    rng = random.Random(7)
    items = []
    for number in range(400):
        name = rng.choice(["a", "b c", "x}, {y", r"q\"r", "{}", "},{", "\u00e9"])
        nested = json.dumps({"a": [{"b": 1}, {"c": [{}, {}]}], "correlation": number})
        items.append(complete(f"{number}.5", "0.25", name, rng.choice(["{}", nested])))
    return document(*items, head='"a": 1, ', tail=', "traceName": "t"')


@pytest.mark.parametrize("size", [1, 7, 64, 333, 4096])
def test_where_a_file_is_cut_into_blocks_does_not_matter(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = long_document()
    whole = parsed(data)
    assert len(whole.columns) == 400
    assert not whole.diagnostics
    monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
    assert_same(parsed(data), whole)


class Dribble(io.RawIOBase):
    """A pipe that gives a few bytes at a time, and then perhaps fails."""

    def __init__(self, data: bytes, failure: Exception | None = None) -> None:
        self._data = data
        self._failure = failure

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        part, self._data = self._data[:100], self._data[100:]
        if not part and self._failure is not None:
            raise self._failure
        target[: len(part)] = part
        return len(part)


@pytest.mark.parametrize("native", PATHS)
def test_short_reads_and_a_failing_stream(native: bool) -> None:
    data = long_document()
    assert_same(kineto.parse(Dribble(data), "trace", native=native), parsed(data))  # type: ignore[arg-type]
    cut = data.index(b'"ts": 200.5')
    broken = Dribble(data[:cut], OSError("disk on fire"))
    found = kineto.parse(broken, "trace", native=native)  # type: ignore[arg-type]
    assert len(found.columns) == 200
    assert counted(found) == {"cut-file": 1, "cut-stream": 1, "cut-event": 1}
    assert "disk on fire" in str(found.diagnostics)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (b"{1}, {2}, {3}", (7, 10)),
        (b"{1} ,\n\t{2", (2, 7)),
        (b"{1}", None),
        (b"{1}, ", None),
        (b"{1}{2}", None),
        (b"{1}, {" + b"}" * 10_000, (2, 5)),
    ],
)
def test_last_boundary(text: bytes, want: tuple[int, int] | None) -> None:
    assert blocks.last_boundary(text, 0, len(text)) == want


# -- begin and end events ----------------------------------------------------------


def nested_pairs(rows: list[tuple[int, int, bool]]) -> tuple[dict[int, int], set[int]]:
    """Begin to end by a stack per thread, and those without a partner."""
    found: dict[int, int] = {}
    lost: set[int] = set()
    stacks: dict[int, list[int]] = {}
    for row in sorted(range(len(rows)), key=lambda index: rows[index][:2]):
        thread, _, is_end = rows[row]
        stack = stacks.setdefault(thread, [])
        if not is_end:
            stack.append(row)
        elif stack:
            found[stack.pop()] = row
        else:
            lost.add(row)
    return found, lost | {row for stack in stacks.values() for row in stack}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.booleans()), max_size=30))
def test_begin_and_end_events_pair_as_on_a_stack(rows: list[tuple[int, int, bool]]) -> None:
    count = len(rows)
    start = np.array([time for _, time, _ in rows], dtype=np.int64)
    columns = {
        "start_ns": start,
        "duration_ns": np.zeros(count, dtype=np.int64),
        "pid": np.zeros(count, dtype=np.int32),
        "tid": np.array([thread for thread, _, _ in rows], dtype=np.int32),
        "category": np.zeros(count, dtype=np.int32),
    }
    marks = np.array(
        [(row, 100 + row, is_end) for row, (_, _, is_end) in enumerate(rows)], dtype=np.int64
    ).reshape(-1, 3)
    want, lost = nested_pairs(rows)
    got = pair(columns, marks, None)
    assert got.rows.tolist() == sorted(want)
    assert got.columns["duration_ns"].tolist() == [
        int(start[want[row]] - start[row]) for row in sorted(want)
    ]
    assert got.lost == len(lost)
    assert got.first_lost == (100 + min(lost) if lost else 0)


def test_arguments_move_with_their_begin_event() -> None:
    args = '{"Collective name": "allreduce"}'
    found = parsed(
        document(
            '{"ph": "E", "ts": 0}',
            '{"ph": "B", "cat": "python_function", "name": "f", "ts": 1}',
            f'{{"ph": "B", "name": "g", "ts": 2, "args": {args}}}',
            '{"ph": "E", "ts": 3}',
            '{"ph": "E", "ts": 4}',
        )
    )
    assert found.args == {0: {"collective": "allreduce"}}
    assert found.columns.duration_ns.tolist() == [1000]


# -- arguments ---------------------------------------------------------------------


def test_only_communication_goes_to_the_side_table() -> None:
    dims = '{"Input Dims": [[4]], "Input type": ["float"]}'
    found = parsed(
        document(
            complete(name="aten::mm", args=dims),
            complete(name="c10d::allreduce_", args=dims),
            complete(name="k", args='{"Collective name": "send", "Process Group Ranks": [0, 1]}'),
            complete(name="k", args='{"Collective name": null, "Seq": 4}'),
            complete(name="k", args='{"args": {"Collective name": "no"}}'),
        )
    )
    assert found.args == {
        1: {"input_dims": [[4]], "input_type": ["float"]},
        2: {"collective": "send", "group_ranks": [0, 1]},
    }


def test_overlong_lists_are_not_read() -> None:
    ranks = str(list(range(20_000)))
    args = f'{{"Collective name": "send", "Process Group Ranks": {ranks}}}'
    found = parsed(document(complete(args=args)))
    assert (found.args, counted(found)) == ({}, {"odd-type": 1})


# -- what is bounded ---------------------------------------------------------------


def test_distinct_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_STRINGS", 50)
    monkeypatch.setattr("tracekit.io.native.MOST_STRINGS", 50)
    found = parsed(document(*(complete(name=f"n{number}") for number in range(200))))
    assert len(found.strings) == 50
    assert len(found.columns) == 200
    assert counted(found) == {"too-many-names": 151}


def test_bytes_of_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_STRING_BYTES", 1000)
    monkeypatch.setattr("tracekit.io.native.MOST_STRING_BYTES", 1000)
    found = parsed(document(*(complete(name="n" * number) for number in range(1, 100))))
    assert sum(map(len, found.strings)) <= 1000
    assert counted(found).keys() == {"too-many-names"}


@pytest.mark.parametrize("native", PATHS)
def test_a_stretch_without_events_is_skipped(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    monkeypatch.setattr(blocks, "EVENT_LIMIT_BYTES", 1000)
    data = document(complete(), '"' + "x" * 5000 + '"', complete(), complete())
    found = parse(data, native)
    assert isinstance(found, Events)
    assert len(found.columns) >= 1
    assert counted(found)["oversized"] >= 4


HOSTILE = {
    "closing braces": b"}" * 200_000,
    "opening braces": b"{" * 200_000,
    "open objects": b'{"a":{' * 40_000,
    "deep lists": b'{"a":' + b"[" * 200_000,
    "boundaries": b"},{" * 60_000,
    "quotes": b'"' * 200_000,
    "escapes": b'{"a":"' + b'\\"' * 100_000,
    "no commas": b'{"ph":"X"}' * 20_000,
    "two commas": b'{"ph":"X"},,' * 20_000,
    "ends of lists": b'{"ph":"X"}]' * 20_000,
    "no end": b'{"ph":"X},' * 20_000,
    "not a number": b'{"ph":"X","ts":NaN,"name":"xxxxxxxxxxx"},' * 5_000,
    "raw quotes": b'{"ph":"X","ts":1,"name":"a"b"},' * 5_000,
    "open lists": b'{"ph":"X","args":{"a":[1,2,{"b":1},{' * 5_000,
    "long name": b'{"ph":"X","ts":1,"dur":1,"name":"' + b"k" * 200_000 + b'"}',
    "long number": b'{"ph":"X","ts":' + b"9" * 200_000 + b"}",
    "zeros": b"\0" * 200_000,
    "blanks": b'{"ph":"X"}' + b" " * 200_000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_in_linear_time(name: str) -> None:
    # Anything quadratic would take minutes here.
    found = parsed(b'{"traceEvents": [' + HOSTILE[name])
    assert counted(found)


def test_a_second_document_is_followed_only_so_often() -> None:
    data = b'{"traceEvents": [' + b'{"ph": "X", "ts": 1, "dur": 1}]' * 500
    found = parsed(data)
    assert counted(found)["interleaved"] == kineto.MOST_DOCUMENTS


def strings_of(values: Iterable[Any]) -> list[str]:
    return [tokens.label(value) for value in values]


def test_labels_of_absurd_ids() -> None:
    assert strings_of(["a", 7, -1, None, 1.5]) == ["a", "7", "-1", "", "1.5"]
    assert tokens.label(10**5000) == ""
