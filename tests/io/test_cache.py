"""The column cache: the same run, faster, and never trusted further than its own seal."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.io.documents import event, kernel
from tracekit.core.run import Run
from tracekit.io import cache, kineto
from tracekit.io.load import load


@pytest.fixture(autouse=True)
def _python_path(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The cache pays on the Python path; here every parse is worth keeping."""
    monkeypatch.setattr(kineto, "native_available", lambda: False)
    monkeypatch.setattr(cache, "_WORTH_SECONDS", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv(cache.SWITCH, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    events = [
        event("user_annotation", "ProfilerStep#3", 0, 10),
        kernel("ncclDevKernel", 1, 2, Collective_name="allreduce", Process_Group_Name="0",
               Process_Group_Ranks="[0, 1]", In_msg_nelems=4, dtype="Float"),
        {"ph": "X", "cat": "kernel", "name": "lost"},
    ]  # fmt: skip
    (tmp_path / "rank0.json").write_text(
        json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 2}})
    )
    return tmp_path


def entries(folder: Path) -> list[Path]:
    return sorted((folder / cache.FOLDER).glob("*.columns"))


def same(one: Run, other: Run) -> bool:
    def plain(run: Run) -> object:
        return [
            (trace.names, trace.groups, *(getattr(trace.kernels, item.name).tolist()
                                          for item in dataclasses.fields(trace.kernels)))
            for trace in run.traces
        ]  # fmt: skip

    return plain(one) == plain(other) and one.diagnostics == other.diagnostics


def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the files that are really parsed from now on."""
    seen: list[str] = []
    parse = kineto.parse
    monkeypatch.setattr(
        kineto, "parse", lambda stream, source: (seen.append(source), parse(stream, source))[1]
    )
    return seen


def test_a_second_load_is_the_same_without_parsing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(folder)
    assert len(entries(folder)) == 1
    seen = parses(monkeypatch)
    assert same(load(folder), first)
    assert same(load(folder, comm_patterns=["x"]), first)
    assert seen == []


def test_a_changed_file_is_read_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(folder)
    path = folder / "rank0.json"
    path.write_text(path.read_text().replace("ProfilerStep#3", "ProfilerStep#4"))
    assert load(folder).traces[0].steps.number.tolist() == [4]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_or_foreign_entry_is_not_trusted(
    folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(folder)
    (entry,) = entries(folder)
    data = bytearray(entry.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "empty":
        data = bytearray()
    else:  # sealed with somebody else's key, with other numbers in it
        body = bytes(data[:-32]).replace(b"ncclDevKernel", b"evilDevKernel")
        data = bytearray(body + cache._seal(body, b"x" * 32))
    entry.write_bytes(data)
    seen = parses(monkeypatch)
    assert same(load(folder), first)
    assert len(seen) == 1


def test_the_switch_and_a_read_only_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SWITCH, "off")
    load(folder)
    assert not entries(folder)
    monkeypatch.delenv(cache.SWITCH)
    monkeypatch.setattr(cache.os, "access", lambda *args: False)
    load(folder)
    assert not entries(folder)
    seen = parses(monkeypatch)
    load(folder)
    assert seen == []


def test_nothing_is_kept_where_reading_is_quick(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WORTH_SECONDS", 10.0)
    load(folder)
    assert not entries(folder)


def test_entries_hold_no_pickle(folder: Path) -> None:
    load(folder)
    (entry,) = entries(folder)
    data = np.fromfile(entry, dtype=np.uint8)
    assert data[:16].tobytes() == b"TRACEKIT-COLUMNS"
