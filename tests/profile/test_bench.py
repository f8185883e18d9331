"""The link benchmark: what it measures, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profile.raw import RawRun
from tests.profile.test_launchers import free_port
from tracekit.cli.app import run as command
from tracekit.core.errors import InputError, UsageError
from tracekit.io import baseline
from tracekit.profile import bench, benchplan

QUICK = ["--size", "4KiB", "--size", "1MiB"]


def test_every_operation_over_two_ranks(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "bench.json"
    assert command(["bench", "-o", str(out), *QUICK]) == 0
    found = baseline.read(out)
    keys = [(row.op, row.bytes) for row in found.rows]
    assert keys == [(op, size) for op in benchplan.OPS for size in (4096, 1 << 20)]
    for row in found.rows:
        assert (row.group_size, row.ranks, row.backend) == (2, [0, 1], "gloo")
        assert 20 <= row.n <= 200
        assert 0 < row.min_ns <= row.p50_ns <= row.max_ns
        assert row.p95_ns is not None
        assert row.p50_ns <= row.p95_ns
        assert (row.p99_ns is None) == (row.n < 100)
        assert row.algbw_gbps == pytest.approx(row.bytes / row.p50_ns)
        assert row.busbw_gbps == pytest.approx(row.algbw_gbps * bench.bus_factor(row.op, 2))
    by_key = {(row.op, row.bytes): row for row in found.rows}
    # Copying 256 times as much takes longer at its best, however busy the machine.
    assert by_key["all_reduce", 1 << 20].min_ns > by_key["all_reduce", 4096].min_ns
    assert by_key["all_gather", 4096].in_bytes == 2048
    assert by_key["reduce_scatter", 4096].out_bytes == 2048
    assert found.conditions["parallel"] == {"world_size": 2, "backend": "gloo"}
    assert found.conditions["software"]["torch"]
    assert {"hardware", "load", "environment", "when", "command"} <= found.conditions.keys()
    printed = capsys.readouterr().out
    assert "all_to_all" in printed
    assert f"wrote {out}" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
    assert command(["bench", "-o", str(out), *QUICK]) == 2  # it exists


@pytest.mark.slow
def test_groups_of_some_of_the_ranks(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    arguments = ["--ranks", "4", "--op", "all_reduce", "--size", "64KiB"]
    assert command(["bench", "-o", str(out), *arguments]) == 0
    found = baseline.read(out)
    assert [(row.group_size, row.ranks) for row in found.rows] == [(2, [0, 1]), (4, [0, 1, 2, 3])]
    assert all(row.crowded == ((os.cpu_count() or 1) < 4) for row in found.rows)


@pytest.mark.slow
def test_under_torchrun(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    main = ["--no-python", sys.executable, "-c", "from tracekit.cli import main; main()"]
    done = subprocess.run(
        [*launcher, "--master-port", str(free_port()), *main, "bench", "-o", str(out),
         "--op", "broadcast", "--size", "1KiB"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.count("wrote ") == 1
    assert len(baseline.read(out).rows) == 1


def test_a_baseline_stays_with_a_run(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    baseline.write(known, baseline.Baseline(conditions={"seed": 7}))
    out = tmp_path / "run"
    small = ["--hidden", "64", "--heads", "4", "--steps", "1", "--warmup", "1"]
    assert command(["profile", "tp", "-o", str(out), "--baseline", str(known), *small]) == 0
    assert baseline.read(out / baseline.FILE_NAME).conditions == {"seed": 7}
    assert len(RawRun(out).manifest.files) == 2


def test_what_is_no_baseline(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(InputError, match="cannot be read"):
        baseline.read(path)
    path.write_text("{")
    with pytest.raises(InputError, match="not a baseline of tracekit bench"):
        baseline.read(path)
    path.write_text(json.dumps({"schema": "tracekit.bench/9"}))
    with pytest.raises(InputError, match="update tracekit"):
        baseline.read(path)


@pytest.mark.parametrize(
    ("text", "bytes_"), [("4096", 4096), ("64KiB", 65536), ("16M", 16 << 20), ("1 GB", 1 << 30)]
)
def test_sizes(text: str, bytes_: int) -> None:
    assert benchplan.parse_size(text) == bytes_


@pytest.mark.parametrize("text", ["", "0", "1TiB", "-4", "K"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="give bytes, or such as 64KiB"):
        benchplan.parse_size(text)


def test_groups_are_powers_of_two_and_all() -> None:
    assert benchplan.make(ranks=8).groups == (2, 4, 8)
    assert benchplan.make(ranks=6).groups == (2, 4, 6)
    assert benchplan.make(ranks=None, world_size=2).groups == (2,)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ranks": 1}, "a collective needs at least 2"),
        ({"ranks": 4, "groups": (8,)}, "--group 8: must be from 2 to the 4 ranks"),
        ({"ranks": 2, "ops": ("all",)}, "--op 'all' is not known; choose from all_reduce"),
        ({"ranks": 2, "world_size": 4}, "the launcher started 4"),
        ({"ranks": 2, "dtype": "int8"}, "--dtype 'int8' is not known"),
    ],
)
def test_benchmarks_that_make_no_sense(options: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        benchplan.make(**options)


@pytest.mark.parametrize(
    ("op", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75),
     ("broadcast", 1.0), ("send_recv", 1.0)],
)  # fmt: skip
def test_what_the_slowest_link_carries(op: str, factor: float) -> None:
    assert bench.bus_factor(op, 4) == factor
