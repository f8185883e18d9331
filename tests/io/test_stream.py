"""Opening traces: every container, damage in it, bombs, and names that lead elsewhere."""

from __future__ import annotations

import gzip
import io
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
import zstandard

from tracekit.core.errors import InputError, UsageError
from tracekit.io import kineto, stream
from tracekit.io.stream import Limits

EVENTS = ", ".join(
    f'{{"ph": "X", "name": "n{number}", "ts": {number}, "dur": 1}}' for number in range(5000)
)
TEXT = f'{{"traceEvents": [{EVENTS}]}}'.encode()


def tarred(mode: str, **files: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as archive:
        for name, data in files.items():
            item = tarfile.TarInfo(name.replace("__", "/"))
            item.size = len(data)
            archive.addfile(item, io.BytesIO(data))
    return target.getvalue()


def zipped(**files: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/"), data)
    return target.getvalue()


CONTAINERS = {
    "plain": TEXT,
    "gzip": gzip.compress(TEXT),
    "two gzip members": gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]) + b"\0" * 100,
    "zstd": zstandard.ZstdCompressor().compress(TEXT),
    "gzip of gzip": gzip.compress(gzip.compress(TEXT)),
    "zip": zipped(**{"a.json": TEXT, "notes.txt": b"x"}),
    "zip of gzip": zipped(**{"a.json.gz": gzip.compress(TEXT)}),
    "tar": tarred("w", **{"dir__a.json": TEXT, "b.txt": b"y"}),
    "tar.gz": tarred("w:gz", **{"a.json": TEXT}),
    "tar.gz of gzip": tarred("w:gz", **{"a.json.gz": gzip.compress(TEXT)}),
}


def read(path: Path, member: str | None = None, limits: Limits | None = None) -> bytes:
    with stream.open_trace(path, member, limits) as opened:
        parts = []
        while part := opened.read(100_000):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_are_known_by_their_content(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(CONTAINERS[kind])
    assert read(path) == TEXT
    with stream.open_trace(path) as opened:
        assert kineto.parse(opened, "trace").total == 5000


def test_header_fields_of_gzip_are_skipped(tmp_path: Path) -> None:
    plain = gzip.compress(TEXT)
    fields = b"\x05\x00extra" + b"name\0" + b"comment\0" + b"\0\0"
    path = tmp_path / "trace.gz"
    path.write_bytes(plain[:3] + bytes([4 | 8 | 16 | 2]) + plain[4:10] + fields + plain[10:])
    assert read(path) == TEXT


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_archives_of_several_ranks(kind: str, tmp_path: Path) -> None:
    files = {"r__rank0.json": TEXT, "r__rank1.json": TEXT[:-2] + b"] }", "readme.md": b"z"}
    modes = {"tar": "w", "tar.gz": "w:gz"}
    data = zipped(**files) if kind == "zip" else tarred(modes[kind], **files)
    path = tmp_path / "all"
    path.write_bytes(data)
    assert stream.members(path) == ("r/rank0.json", "r/rank1.json")
    assert read(path, "r/rank1.json").endswith(b"] }")
    with pytest.raises(InputError, match="2 traces"):
        read(path)
    with pytest.raises(InputError, match=r"no 'r/rank2\.json'"):
        read(path, "r/rank2.json")


def test_a_plain_file_has_no_members(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    assert stream.members(path) == ()
    with pytest.raises(InputError, match="no archive"):
        read(path, "a.json")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "absent.json")


@pytest.mark.parametrize("name", ["../../escaped.json", "/escaped.json"])
def test_paths_in_archives_are_only_names(name: str, tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    for maker in (lambda: zipped(**{name: TEXT}), lambda: tarred("w:gz", **{name: TEXT})):
        path = inside / "archive"
        path.write_bytes(maker())
        assert read(path, stream.members(path)[0]) == TEXT
        assert [item.name for item in tmp_path.rglob("*") if item.is_file()] == ["archive"]


def test_links_in_a_tar_are_no_members(tmp_path: Path) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        link = tarfile.TarInfo("link.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    path = tmp_path / "a.tar"
    path.write_bytes(target.getvalue())
    assert stream.members(path) == ()
    with pytest.raises(InputError, match="no trace"):
        read(path)


# -- damage ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gzip", "zstd", "zip", "tar.gz"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_cut_container_gives_what_came_before(kind: str, share: float, tmp_path: Path) -> None:
    import random

    rng = random.Random(3)
    events = ", ".join(
        f'{{"ph": "X", "name": "{rng.getrandbits(64):x}", "ts": {number}, "dur": 1}}'
        for number in range(20_000)
    )
    text = f'{{"traceEvents": [{events}]}}'.encode()
    made = {
        "gzip": gzip.compress(text),
        "zstd": zstandard.ZstdCompressor().compress(text),
        "zip": zipped(**{"a.json": text}),
        "tar.gz": tarred("w:gz", **{"a.json": text}),
    }[kind]
    path = tmp_path / "cut"
    path.write_bytes(made[: int(len(made) * share)])
    if kind == "zip":  # its directory was at the end
        with pytest.raises(InputError, match="archive"):
            read(path)
        return
    with stream.open_trace(path, "a.json" if kind == "tar.gz" else None) as opened:
        found = kineto.parse(opened, "cut")
    assert len(found.columns) > 20_000 * share - 4_000
    assert found.columns.start_ns.tolist() == list(range(0, len(found.columns) * 1000, 1000))
    assert found.truncated


def test_a_wrong_checksum_is_said(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(TEXT))
    data[-8] ^= 1
    path = tmp_path / "trace.gz"
    path.write_bytes(data)
    with stream.open_trace(path) as opened:
        found = kineto.parse(opened, "trace")
    assert found.total == 5000
    assert "checksum" in found.diagnostics[0].message


# -- bombs -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gzip", "zstd", "zip", "tar.gz", "gzip of gzip"])
def test_bombs_stop_at_the_ratio(kind: str, tmp_path: Path) -> None:
    bomb = TEXT[:-2] + b" " * 30_000_000
    made = {
        "gzip": lambda: gzip.compress(bomb),
        "zstd": lambda: zstandard.ZstdCompressor().compress(bomb),
        "zip": lambda: zipped(**{"a.json": bomb}),
        "tar.gz": lambda: tarred("w:gz", **{"a.json": bomb}),
        "gzip of gzip": lambda: gzip.compress(gzip.compress(bomb)),
    }[kind]()
    path = tmp_path / "bomb"
    path.write_bytes(made)
    limits = Limits(ratio=50, free_bytes=1 << 20)
    member = "a.json" if kind in ("zip", "tar.gz") else None
    with stream.open_trace(path, member, limits) as opened:
        found = kineto.parse(opened, "bomb")
    assert len(found.columns) == 5000
    (note,) = (item for item in found.diagnostics if item.code == "cut-stream")
    assert "over 50 times" in note.message


def test_the_total_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(TEXT))
    monkeypatch.setenv("TRACEKIT_MAX_BYTES", "100000")
    with stream.open_trace(path) as opened:
        found = kineto.parse(opened, "trace")
    assert "more than 100000 bytes" in found.diagnostics[1].message
    monkeypatch.setenv("TRACEKIT_MAX_BYTES", "lots")
    with pytest.raises(UsageError, match="whole number"):
        read(path)


# -- the thread --------------------------------------------------------------------


def test_the_thread_ends_with_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 20_000_000 + b"]", 1))
    with stream.open_trace(path, limits=Limits(ratio=10_000)) as opened:
        assert opened.read(1) == b"["
    assert not [thread for thread in threading.enumerate() if "inflate" in thread.name]
