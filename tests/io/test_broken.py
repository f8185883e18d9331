"""Every known defect and odd form of a trace file: what is saved, and what is counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.io.same import PATHS
from tracekit.core.errors import InputError
from tracekit.io import kineto, stream
from tracekit.io.events import Events

FOLDER = Path(__file__).parents[2] / "sample_traces" / "broken"


class Want(NamedTuple):
    """What a file must give: event names, and diagnostics by code."""

    names: str
    counted: Mapping[str, int] = MappingProxyType({})
    total: int | None = None  # events of all kinds, where not all become rows


GOOD = "aten::mm gemm aten::mm gemm"
CUT = {"cut-file": 1, "cut-event": 1}

WANT = {
    # damaged text
    "raw_quote": Want('aten::mm frame("a",_"b"):_<built-in_"x"> gemm', {"raw-quote": 1}),
    "raw_quote_boundary": Want('aten::mm dict("k":_{"a":_1},_{"b":_2}) gemm', {"raw-quote": 1}),
    "control_bytes": Want("aten::mm line\none\ttwo\x01 gemm", {"raw-bytes": 1}),
    "bad_utf8": Want("aten::mm caf\ufffd_\ufffd gemm", {"raw-bytes": 1}),
    "backslashes": Want("aten::mm torch\\cuda\\graphs.py(12):_\\__init__ gemm", {"raw-bytes": 1}),
    "lone_surrogate": Want("aten::mm emoji_\ufffd_cut gemm", {"raw-bytes": 1}),
    "bare_words": Want("aten::mm kernel,_nan]", {"bare-word": 1}),
    "args_raw_quote": Want("aten::mm gemm", {"bad-args": 1}),
    "odd_types": Want("aten::mm gemm gemm", {"odd-type": 1}),
    "garbage_between": Want("aten::mm gemm", {"lost-event": 2}),
    "missing_comma": Want("aten::mm aten::mm gemm"),
    "nested_boundary": Want("aten::mm gemm", {"lost-event": 1}),
    "boundary_in_string": Want("lambda:_{0},_{1},_{2} gemm", {"lost-event": 1}),
    # cut
    "cut_in_event": Want("aten::mm gemm aten::mm", CUT),
    "cut_in_name": Want("aten::mm gemm aten::mm", CUT),
    "cut_after_comma": Want("aten::mm gemm aten::mm", {"cut-file": 1}),
    "killed_writer": Want("aten::mm gemm aten::mm", CUT),
    "missing_end": Want(GOOD, {"cut-file": 1}),
    "trailing_comma": Want(GOOD),
    # two writers
    "interleaved": Want(
        "aten::mm gemm aten::mm gemm gemm",
        {"lost-event": 2, "interleaved": 1, "no-time": 1},
        total=6,  # a device of the second header counts as one
    ),
    "two_documents": Want(f"{GOOD} {GOOD}", {"interleaved": 1}),
    # header
    "cut_header": Want(GOOD, {"bad-header": 1}),
    "raw_quotes_in_header": Want(GOOD, {"bad-header": 1}),
    "header_after_events": Want(GOOD),
    "bom": Want(GOOD),
    "empty_list": Want(""),
    # values
    "duplicate_keys": Want("aten::mm gemm"),
    "negative_duration": Want("aten::mm gemm gemm", {"negative-duration": 1}),
    "zero_time": Want("aten::mm aten::mm aten::mm gemm", {"zero-time": 1}),
    "missing_times": Want("aten::mm gemm", {"no-time": 1, "no-duration": 1}, total=3),
    "overflowed_duration": Want(
        "aten::mm gemm gemm gemm", {"absurd-duration": 2, "long-duration": 1}
    ),
    "absurd_times": Want("aten::mm gemm", {"no-time": 1, "absurd-time": 2}, total=5),
    "string_times": Want("aten::mm gemm gemm"),
    "string_pids": Want("aten::mm gemm gemm"),
    "absurd_pids": Want("aten::mm gemm gemm"),
    "absolute_times": Want("aten::mm gemm gemm"),
    "many_decimals": Want("aten::mm gemm gemm"),
    "long_name": Want("aten::mm " + "k" * 8192 + " gemm", {"long-name": 1}),
    "escaped_names": Want('a_"quoted"_\\_/_\xe9\u4e2d\n \xe9\U0001f600 \U0001f600'),
    "null_values": Want("aten::mm gemm |"),
    # forms
    "good": Want(GOOD),
    "top_level_array": Want(GOOD),
    "one_line": Want(GOOD),
    "indented": Want(GOOD),
    "compact": Want(GOOD),
    "old_2021": Want("aten::add cudaLaunchKernel add Memcpy_HtoD"),
    "begin_end": Want("outer inner aten::add", {"unpaired": 2}, total=7),
    "other_phases": Want("aten::mm gemm", total=7),
}

REFUSED = {
    "empty": "the file is empty",
    "no_events": "not a trace",
    "null_events": "not a trace",
    "not_json": "not a JSON trace",
}

# Checked below, since what they give depends on the library that inflates.
GZIPPED = {"cut_gzip", "corrupt_gzip"}


def read(name: str, native: bool) -> Events:
    (path,) = (item for item in FOLDER.iterdir() if item.name.split(".")[0] == name)
    with stream.open_trace(path) as opened:
        return kineto.parse(opened, path.name, native=native)


def names(events: Events) -> list[str]:
    return [events.strings[code] for code in events.columns.name]


def counted(events: Events) -> dict[str, int]:
    return {item.code: item.count for item in events.diagnostics}


def test_every_file_has_its_line() -> None:
    files = {path.name.split(".")[0] for path in FOLDER.iterdir()} - {"README"}
    assert files == {*WANT, *REFUSED, *GZIPPED}


@pytest.mark.parametrize("native", PATHS)
@pytest.mark.parametrize("name", WANT)
def test_what_is_saved_and_what_is_counted(name: str, native: bool) -> None:
    events, want = read(name, native), WANT[name]
    # In the table blanks separate names: _ is a blank inside of one, | an empty one.
    got = " ".join(text.replace(" ", "_") or "|" for text in names(events))
    assert got == want.names
    assert counted(events) == dict(want.counted)
    assert events.total == (len(events.columns) if want.total is None else want.total)


@pytest.mark.parametrize("native", PATHS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_trace_is_refused_with_its_name(name: str, native: bool) -> None:
    with pytest.raises(InputError, match=rf"{name}\.json: .*{REFUSED[name]}"):
        read(name, native)


@pytest.mark.parametrize("native", PATHS)
@pytest.mark.parametrize("name", sorted(GZIPPED))
def test_damaged_gzip_gives_all_events_before_the_damage(name: str, native: bool) -> None:
    events = read(name, native)
    # The middle of the compressed data is near the middle of the 1198 events.
    assert 450 <= len(events.columns) <= 700
    assert events.columns.start_ns[:3].tolist() == [1_100_250, 1_120_500, 1_200_250]
    assert {"cut-stream", "cut-file"} <= set(counted(events))
    assert events.truncated


@pytest.mark.parametrize("native", PATHS)
def test_losses_are_located(native: bool) -> None:
    text = (FOLDER / "raw_quote.json").read_bytes()
    (note,) = read("raw_quote", native).diagnostics
    place = text.index(b"{", text.index(b"}", text.index(b'"External id": 1')) + 2)
    assert f"first at byte {place}: " in note.message
    (note,) = read("begin_end", native).diagnostics
    place = (FOLDER / "begin_end.json").read_bytes().index(b'{"ph": "E", "pid": 0, "tid": 8')
    assert f"first at byte {place})" in note.message
    messages = {item.code: item.message for item in read("cut_in_event", native).diagnostics}
    size = (FOLDER / "cut_in_event.json").stat().st_size
    assert f"first at byte {size})" in messages["cut-file"]


@pytest.mark.parametrize("native", PATHS)
def test_times_are_exact(native: bool) -> None:
    def times(name: str) -> list[tuple[int, int]]:
        columns = read(name, native).columns
        return list(zip(columns.start_ns.tolist(), columns.duration_ns.tolist(), strict=True))

    first = (1_100_250, 40_001)
    assert times("absolute_times") == [
        first, (1712195495505583001, 55_125), (1712195495505583002, 2),
    ]  # fmt: skip
    assert times("many_decimals") == [first, (1428625731456483, 3_142), (1_000, 2)]
    assert times("string_times") == [first, (1_120_500, 55_125), (1_220_500, 100_000)]
    assert times("negative_duration")[1] == (1_120_500, 0)
    assert times("begin_end") == [(10_000, 80_125), (20_500, 9_500), (5_000, 1_000)]
    assert [duration for _, duration in times("overflowed_duration")] == [
        40_001, 0, 0, 4_294_967_295_000,
    ]  # fmt: skip


@pytest.mark.parametrize("native", PATHS)
def test_ids_threads_and_headers(native: bool) -> None:
    def column(name: str, field: str) -> list[Any]:
        events = read(name, native)
        values: list[int] = getattr(events.columns, field).tolist()
        return [events.strings[code] for code in values] if field in ("pid", "tid") else values

    assert column("old_2021", "external_id") == [1, 1, 1, 1]
    assert column("old_2021", "stream") == [-1, -1, 7, 7]
    assert column("old_2021", "tid") == ["1", "1", "stream 7", "stream 7"]
    assert column("string_pids", "pid") == ["10", "Spans", "-1"]
    assert column("absurd_pids", "correlation") == [-1, -1, 102]
    assert column("absurd_pids", "pid")[1] == "9" * 400
    assert column("duplicate_keys", "device") == [-1, 0]
    assert column("null_values", "correlation") == [-1, -1, -1]
    assert read("good", native).base_ns == 1751410836000000000
    assert read("cut_header", native).header["distributedInfo"]["rank"] == 5
    assert read("raw_quotes_in_header", native).header["distributedInfo"]["rank"] == 3
    config = read("header_after_events", native).header["distributedInfo"]["pg_config"]
    assert [entry["ranks"] for entry in config] == ["[0, 1]", "[2, 3]"]
