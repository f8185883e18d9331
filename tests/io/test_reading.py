"""Several ranks at once: the same run, one bad file alone, and progress that adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.io.documents import kernel
from tracekit.core.errors import UsageError
from tracekit.io import kineto, reading
from tracekit.io.load import load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(5):
        events = [kernel(f"kernel_of_{rank}", n, 1) for n in range(20)]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    (tmp_path / "rank5.json.gz").write_bytes(b"\x1f\x8b\x08 broken")
    return tmp_path


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 16])
def test_workers_change_nothing_but_time(
    folder: Path, workers: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and not kineto.native_available():
        pytest.skip("the native tokenizer was not built")
    monkeypatch.setattr(kineto, "native_available", lambda: native)
    monkeypatch.setattr(reading, "_WORTH_PROCESSES_BYTES", 0)
    monkeypatch.setenv("TRACEKIT_CACHE", "off")
    run = load(folder, workers=workers)
    assert run.ranks == (0, 1, 2, 3, 4)
    assert [trace.names[trace.kernels.name_id[0]] for trace in run.traces] == [
        f"kernel_of_{rank}" for rank in range(5)
    ]
    assert [note.code for note in run.diagnostics].count("unreadable-file") == 1


def test_progress_ends_at_all_bytes(folder: Path) -> None:
    told: list[tuple[int, int, str]] = []
    load(folder, workers=2, on_progress=lambda *args: told.append(args))
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert told[-1][:2] == (size, size)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_no_worker_is_a_usage_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        load(folder, workers=0)
