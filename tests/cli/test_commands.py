"""The command line as a user meets it: outputs, one-line errors, exit codes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tracekit.analysis._contract import analyzers
from tracekit.cli.app import run

TRACE: dict[str, Any] = {
    "schemaVersion": 1,
    "distributedInfo": {
        "backend": "nccl", "rank": 1, "world_size": 2,
        "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}],
    },
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 9, "tid": 9,
         "ts": 0.0, "dur": 100.0},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.0, "dur": 50.5,
         "args": {"device": 0, "stream": 7}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "pid": 0, "tid": 8,
         "ts": 50.0, "dur": 30.0,
         "args": {"device": 0, "stream": 8, "Collective name": "allreduce", "dtype": "Float",
                  "In msg nelems": 256, "Out msg nelems": 256, "Process Group Name": "0",
                  "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"}},
    ],
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank1.json.gz"
    path.write_bytes(gzip.compress(json.dumps(TRACE).encode()))
    return path


def test_json_has_the_documented_shape(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(trace), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tracekit.analysis/1"
    assert document["run"]["ranks"] == [1]
    assert document["run"]["missing_ranks"] == [0]
    breakdown = document["analyses"]["breakdown"]
    assert breakdown["status"] == "ok"
    row = breakdown["tables"]["per_step"]["rows"][0]
    assert (row["step_ns"], row["compute_ns"]) == (100_000, 50_500)
    assert (row["exposed_comm_ns"], row["hidden_comm_ns"], row["idle_ns"]) == (
        19_500, 10_500, 30_000,
    )  # fmt: skip
    axis = document["analyses"]["overlap"]["tables"]["per_axis"]["rows"][0]
    assert (axis["axis"], axis["comm_ns"]) == ("world", 30_000)


def test_analyze_to_a_file_and_as_text(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert run(["analyze", str(trace), "overlap", "--json", "-o", str(out)]) == 0
    assert list(json.loads(out.read_text())["analyses"]) == ["overlap"]
    assert capsys.readouterr().out == ""
    assert run(["analyze", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "35.0 %" in text.replace("\u202f", " ") or "35 %" in text
    assert max(map(len, text.splitlines())) <= 100


def test_list_names_every_analysis(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == sorted(analyzers())
    assert {"breakdown", "overlap"} <= set(listed)


def test_report_is_written_whole(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert run(["report", str(trace), "-o", str(out)]) == 0
    assert out.read_text().rstrip().endswith("</html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "rank1.json.gz"]


def _write(name: str, data: str | bytes) -> Any:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return make


def _empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def _no_traces(folder: Path) -> Path:
    (folder / "notes.txt").write_text("hello")
    return folder


def _two_sizes(folder: Path) -> Path:
    for rank, size in enumerate((2, 4)):
        info = {"rank": rank, "world_size": size, "backend": "nccl"}
        document = {**TRACE, "distributedInfo": info}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return folder


def _twice_the_same_rank(folder: Path) -> Path:
    for name in ("a.json", "b.json"):
        (folder / name).write_text(json.dumps(TRACE))
    return folder


def _alien_manifest(folder: Path) -> Path:
    (folder / "run.json").write_text('{"schema": "other/9", "name": "x"}')
    return folder


def _escaping_manifest(folder: Path) -> Path:
    entry = {"rank": 0, "path": "../../etc/passwd"}
    (folder / "run.json").write_text(
        json.dumps({"schema": "tracekit.run/1", "name": "x", "files": [entry]})
    )
    return folder


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "nowhere", "no such file or folder"),
        (_empty_folder, "is empty"),
        (_no_traces, "holds no"),
        (_write("t.json", '{"traceEvents": []}'), "holds no events"),
        (_write("t.json", "just some words"), "not a JSON trace"),
        (_write("t.json", ""), "empty"),
        (_write("t.json", '{"a": 1}'), "not a trace"),
        (_write("t.json.gz", b"\x1f\x8b\x08broken"), "cannot be decompressed"),
        (_two_sizes, "different world size"),
        (_twice_the_same_rank, "both hold rank 1"),
        (_alien_manifest, "schema 'other/9'"),
        (_escaping_manifest, "leads out of the run folder"),
    ],
)
@pytest.mark.parametrize("command", ["analyze", "report"])
def test_wrong_input_is_one_line_and_exit_code_3(
    make: Any, words: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    extra = ["-o", str(tmp_path / "out.html")] if command == "report" else []
    assert run([command, str(path), *extra]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tracekit: error: ")
    assert words in lines[0]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["analyze"], "Usage"),
        (["analyze", "{trace}", "nonsense"], "no analysis 'nonsense'"),
        (["analyze", "{trace}", "--step-regex", "("], "not a regular expression"),
        (["analyze", "{trace}", "--comm-pattern", "["], "not a regular expression"),
        (["analyze", "{trace}", "--no-such-option"], "No such option"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], words: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([item.format(trace=trace) for item in arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.out + captured.err
    assert "Traceback" not in captured.err


def test_an_analysis_asked_for_by_name_but_impossible_is_exit_code_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lonely = {**TRACE, "traceEvents": TRACE["traceEvents"][:2]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(lonely))
    assert run(["analyze", str(path), "overlap"]) == 4
    assert "no communication" in capsys.readouterr().err
    assert run(["analyze", str(path)]) == 0


def test_an_output_that_cannot_be_written_is_said(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(trace), "-o", str(tmp_path / "no" / "such" / "r.html")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_comm_pattern_and_step_regex_reach_the_reader(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", str(trace), "--json", "--comm-pattern", "^gemm$"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["analyses"]["breakdown"]["tables"]["per_step"]["rows"][0]["compute_ns"] == 0
    assert run(["analyze", str(trace), "--json", "--step-regex", "nothing"]) == 0
    codes = [item["code"] for item in json.loads(capsys.readouterr().out)["run"]["diagnostics"]]
    assert "no-step-match" in codes


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tracekit.cli.app import run; run(['--help']);"
        "print([m for m in ('torch', 'pandas', 'plotly') if m in sys.modules])"
    )
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"
    # Half a second is the aim; a busy machine gets some grace.
    assert time.perf_counter() - begin < 3
