"""``tracekit check``: facts of files, possible analyses, advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.io.documents import event, kernel
from tracekit.cli.app import run


def put(folder: Path, name: str, *events: dict[str, Any], **header: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({**header, "traceEvents": list(events)}))
    return path


def checked(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["check", str(path), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_whole_run_and_what_it_allows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        put(
            tmp_path, f"rank{rank}.json",
            event("user_annotation", "ProfilerStep#3", 0, 10), kernel("gemm", 1, 2),
            kernel("ncclDevKernel_AllReduce", 3, 2, Collective_name="allreduce",
                   Process_Group_Name="0", Process_Group_Ranks="[0, 1]"),
            distributedInfo={"rank": rank, "world_size": 2, "backend": "nccl",
                             "nccl_version": "2.27.5"},
            cuda_runtime_version=12090, deviceProperties=[{"id": 0, "name": "NVIDIA H100"}],
        )  # fmt: skip
    document = checked(tmp_path, capsys)
    assert document["schema"] == "tracekit.check/1"
    first = document["files"][0]
    assert (first["rank"], first["rank_from"], first["world_size"]) == (0, "content", 2)
    assert first["software"] == {"cuda": "12.9", "nccl": "2.27.5"}
    assert first["devices"] == ["NVIDIA H100"]
    assert (first["events"], first["kernels"], first["steps"]) == (3, 2, [3])
    assert all(item["possible"] for item in document["analyses"].values() if item["reason"] is None)
    assert document["analyses"]["breakdown"]["possible"]
    assert not any("device activity" in line for line in document["advice"])


def test_what_is_missing_is_said_with_how_to_record_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "trace.json", event("cpu_op", "aten::mm", 0, 5),
        distributedInfo={"backend": "nccl", "world_size": 4})  # fmt: skip
    document = checked(tmp_path, capsys)
    assert document["run"]["missing_ranks"] == [1, 2, 3]
    assert document["files"][0]["rank_from"] == "order"
    assert "ProfilerActivity.CUDA" in document["analyses"]["breakdown"]["reason"]
    advice = " ".join(document["advice"])
    for words in ("device activity", "prof.step()", "all ranks", "torch.distributed", "conditions"):
        assert words in advice
    assert run(["check", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "How to record better" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_recorded_sample_needs_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    sample = Path(__file__).parents[2] / "sample_traces" / "tp2"
    document = checked(sample, capsys)
    assert document["advice"] == []
    assert document["run"]["has_conditions"]
    assert {file["device_type"] for file in document["files"]} == {"cpu"}


def test_a_cut_file_is_located_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, "rank0.json", *(kernel(f"k{n}", n, 1) for n in range(20)))
    path.write_text(path.read_text()[:-400])
    document = checked(tmp_path, capsys)
    codes = {note["code"] for note in document["diagnostics"]}
    assert "cut-file" in codes
    assert any("stop the profiler" in line for line in document["advice"])
