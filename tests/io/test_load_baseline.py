"""A benchmark of the links that lies with a run is loaded with it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tracekit.io import baseline
from tracekit.io.baseline import Baseline, Latency
from tracekit.io.load import load

SAMPLE = Path(__file__).parents[2] / "sample_traces/tp2"


def row(op: str) -> Latency:
    return Latency(
        op=op, backend="gloo", dtype="float32", group_size=2, ranks=[0, 1], bytes=1024,
        in_bytes=512, out_bytes=1024, n=20, min_ns=1, p50_ns=5, p95_ns=None, p99_ns=None,
        max_ns=9, algbw_gbps=1.0, busbw_gbps=1.0, crowded=False,
    )  # fmt: skip


def test_its_rows_are_those_of_the_larger_side(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "run")
    assert load(tmp_path / "run").baseline == ()
    baseline.write(tmp_path / "run" / baseline.FILE_NAME, Baseline(rows=[row("all_gather")]))
    (found,) = load(tmp_path / "run").baseline
    assert (found.op, found.group_size, found.bytes, found.p50_ns) == ("all_gather", 2, 1024, 5)


def test_a_broken_one_is_told_and_left_out(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "run")
    (tmp_path / "run" / baseline.FILE_NAME).write_text("{")
    run = load(tmp_path / "run")
    assert run.baseline == ()
    assert "bad-baseline" in {note.code for note in run.diagnostics}
