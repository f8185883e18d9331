"""The native tokenizer gives what the Python path gives, on every input."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from benchmarks import generate
from tests.io.same import both
from tracekit.io import kineto, native
from tracekit.io.events import Events

pytestmark = pytest.mark.skipif(
    not kineto.native_available(), reason="the native tokenizer was not built"
)

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def plain(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def traces(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.name.endswith((".json", ".json.gz", ".json.tmp")) and path.name != "run.json"
    )


@pytest.mark.parametrize("path", traces(SAMPLES), ids=lambda path: str(path.relative_to(SAMPLES)))
def test_samples(path: Path) -> None:
    if path.name not in ("cut_gzip.json.gz", "corrupt_gzip.json.gz"):
        both(plain(path))


def test_real_traces(real_traces: Path) -> None:
    found = [path for path in traces(real_traces) if path.name != "facts.json"]
    assert found
    for path in found:
        data = plain(path)
        assert isinstance(both(data), Events), path
        both(data[: len(data) * 2 // 3])


def test_a_generated_trace_takes_the_native_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    count = generate.write(path, 4)
    found = both(path.read_bytes())
    assert isinstance(found, Events)
    assert (found.total, found.diagnostics) == (count, ())

    # None of its blocks may be left to the Python path, or the speed is gone.
    def refuse(text: bytes) -> None:
        raise AssertionError("decoded by Python")

    monkeypatch.setattr(kineto, "decode_block", refuse)
    kineto.parse(io.BytesIO(path.read_bytes()), "trace", native=True)


PLAIN = {"ph": "X", "cat": "kernel", "name": "n", "pid": 1, "tid": 2, "ts": 1.5, "dur": 2.25}


def taken(text: str) -> bool:
    """Whether the tokenizer takes a block, after one that it surely takes."""
    builder = native.builder()
    good = bytearray(json.dumps(PLAIN).encode())
    assert builder.take(good, 0, len(good), 0) == 0
    before = (builder.rows, builder.events, builder.strings())
    block = bytearray(text.encode("utf-8", "surrogateescape"))
    is_taken = builder.take(block, 0, len(block), 0) != native.NOT_PLAIN
    if not is_taken:
        assert (builder.rows, builder.events, builder.strings()) == before
        assert builder.take(good, 0, len(good), 0) == 0
    return is_taken


@pytest.mark.parametrize(
    "change",
    [
        {"ts": 12}, {"ts": "12.5"}, {"ts": None, "ph": "s"}, {"dur": 0}, {"name": None},
        {"name": 5}, {"pid": "Spans"}, {"tid": -1}, {"args": None}, {"args": {}}, {"cat": None},
        {"args": {"correlation": 5, "stream": "7", "x": [1, {"y": [True, None, 1e-5]}]}},
        {"args": {"stream": "0x0"}}, {"ph": "B"}, {"ph": "M", "ts": None}, {"ts": 1712195495505583},
        {"name": "caf\u00e9"}, {"name": 'a"b\\c\n'},
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_ascii", [True, False])
def test_plain_events_are_taken(change: dict[str, object], is_ascii: bool) -> None:
    assert taken(json.dumps({**PLAIN, **change}, ensure_ascii=is_ascii))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "{", "{}", "{} {}", "{},", "{}, 1", '{"ph": "X"}', '{"ph": 1}',
        '{"ph": "X", "ts": 1}', '{"ph": "X", "ts": 1, "dur": -1}',
        '{"ph": "X", "ts": "x", "dur": 1}',
        '{"ph": "s", "ts": 1e3}', '{"ph": "s", "ts": 01}', '{"ph": "s", "ts": 1.}',
        '{"ph": "s", "ts": -}', '{"ph": "s", "ts": NaN}', '{"ph": "s", "ts": true}',
        '{"ph": "s", "ts": 99999999999999999999}', '{"ph": "s", "name": "a\tb"}',
        '{"ph": "s", "name": "\\x"}', '{"ph": "s", "name": "\\ud800"}',
        '{"ph": "s", "name": "\udcff"}',
        '{"ph": "s", "name": ["a"]}', '{"ph": "s", "pid": 1.5}', '{"ph": "s", "pid": -0}',
        '{"ph": "s", "cat": 1}', '{"p\\u0068": "s"}', '{"ph": "s", "x": [1,]}', '{"ph": "s",}',
        '{"ph": "s", "x": {"a": 1,}}', '{"ph": "s", "x": {"a" 1}}', '{"ph": "s", "x": [1}}',
        '{"ph": "s", "x": tru}', '{"ph": "s", "x": 1 2}', '{"ph": "s" "x": 1}', "{'ph': 1}",
        '{"ph": "s", "args": []}', '{"ph": "s", "args": {"correlation": [1]}}',
        '{"ph": "s", "args": {"correlation": 1.5}}', '{"ph": "s", "args": {"dtype": 5}}',
        '{"ph": "s", "args": {"Seq": {}}}', '{"ph": "s", "x": ' + "[" * 100 + "]" * 100 + "}",
    ],
)  # fmt: skip
def test_anything_else_is_left_to_python_without_a_trace(text: str) -> None:
    assert not taken(text)


def test_a_refused_block_leaves_none_of_its_strings() -> None:
    # Its plain events come first, and their strings are the ones used last.
    builder = native.builder()
    event = {**PLAIN, "cat": "new", "pid": "new pid", "tid": "new tid"}
    block = bytearray((json.dumps(event) + ", {1}").encode())
    assert builder.take(block, 0, len(block), 0) == native.NOT_PLAIN
    assert builder.strings() == ()
    assert builder.code("other") == 0
    block = bytearray(json.dumps(event).encode())
    assert builder.take(block, 0, len(block), 0) == 0
    assert builder.strings() == ("other", "new", "n", "new pid", "new tid")
    columns = builder.build()
    codes = [columns[name].tolist() for name in ("category", "name", "pid", "tid")]
    assert codes == [[1], [2], [3], [4]]


def test_the_end_of_the_list_is_found() -> None:
    builder = native.builder()
    block = bytearray(json.dumps(PLAIN).encode() + b" ] , {")
    assert builder.take(block, 0, len(block), 0) == len(block) - 4
    with pytest.raises(ValueError, match="outside"):
        builder.take(block, 0, len(block) + 1, 0)


def test_strings_stay_right_when_blocks_are_taken_back() -> None:
    # More strings than the table's first size, half of them forgotten again.
    builder = native.builder()
    kept = []
    for number in range(3000):
        event = {**PLAIN, "name": f"name {number}"}
        text = json.dumps(event)
        if number % 2:
            block = bytearray((text + ", {1}").encode())
            assert builder.take(block, 0, len(block), 0) == native.NOT_PLAIN
        else:
            block = bytearray(text.encode())
            assert builder.take(block, 0, len(block), 0) == 0
            kept.append(event["name"])
    columns = builder.build()
    strings = builder.strings()
    assert [strings[code] for code in columns["name"]] == kept


def test_the_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, "0")
    assert not kineto.native_available()
