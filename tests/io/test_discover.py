"""What people name on the command line: folders, archives, globs, URLs, leftovers."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.io.documents import kernel
from tracekit.core.errors import InputError
from tracekit.io.load import load


def document(name: str = "a") -> bytes:
    return json.dumps({"traceEvents": [kernel(name, 0, 1)]}).encode()


def codes(path: str | Path) -> set[str]:
    return {note.code for note in load(path).diagnostics}


def test_an_archive_of_traces_is_a_run(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        for rank in (10, 2):
            archive.writestr(f"traces/rank{rank}.json.gz", gzip.compress(document()))
        archive.writestr("README.txt", "hello")
        archive.writestr("../outside_rank3.json", document())
    run = load(tmp_path / "job.zip")
    assert run.ranks == (2, 3, 10)
    assert not (tmp_path.parent / "outside_rank3.json").exists()


def test_a_tar_in_a_folder_of_other_traces(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "more.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("rank1.json")
        info.size = len(document())
        archive.addfile(info, io.BytesIO(document()))
    (tmp_path / "rank0.json").write_bytes(document())
    assert load(tmp_path).ranks == (0, 1)


def test_an_archive_without_a_trace_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        archive.writestr("README.txt", "hello")
    with pytest.raises(InputError, match="holds no trace"):
        load(tmp_path / "job.zip")


def test_a_glob_and_one_that_matches_nothing(tmp_path: Path) -> None:
    for folder in ("step1", "step2"):
        for rank in (0, 1):
            path = tmp_path / folder / f"rank{rank}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(document())
    run = load(str(tmp_path / "step1" / "*.json"))
    assert run.ranks == (0, 1)
    assert run.name == "step1"
    with pytest.raises(InputError, match="no file matches"):
        load(str(tmp_path / "*.gz"))


def test_a_url_of_a_folder_a_file_and_a_glob(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for rank in (0, 1):
        with memory.open(f"/job/rank{rank}.json.gz", "wb") as stream:
            stream.write(gzip.compress(document()))
    assert load("memory://job").ranks == (0, 1)
    assert load("memory://job/rank1.json.gz").ranks == (1,)
    assert load("memory://job/*0.json.gz").ranks == (0,)
    with pytest.raises(InputError, match="cannot be read"):
        load("memory://nowhere/x.json")
    with pytest.raises(InputError, match="nosuchprotocol"):
        load("nosuchprotocol://x/y.json")


def test_what_a_killed_process_left_is_read_only_if_it_is_all_there_is(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(document("whole"))
    (tmp_path / "rank0.json.tmp").write_bytes(document("partial"))
    (tmp_path / "rank1.json.tmp").write_bytes(document("partial")[:-2])
    run = load(tmp_path)
    assert run.ranks == (0, 1)
    assert "whole" in run.traces[0].names
    assert {"old-partial-files", "partial-files"} <= codes(tmp_path)


def test_hidden_folders_and_other_files_are_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / ".tracekit").mkdir()
    (tmp_path / ".tracekit" / "rank7.json").write_bytes(document())
    (tmp_path / "rank0.json").write_bytes(document())
    (tmp_path / "notes.md").write_text("hello")
    assert load(tmp_path).ranks == (0,)


def test_an_absurd_rank_in_a_name_is_none(tmp_path: Path) -> None:
    (tmp_path / "rank99999999999999999999.json").write_bytes(document())
    assert load(tmp_path).ranks == (0,)
