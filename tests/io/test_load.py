"""Runs from folders: ranks, windows, topology, records, and what is said about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.io.documents import event, kernel
from tracekit.core.errors import InputError
from tracekit.core.run import Run
from tracekit.io import manifest, records
from tracekit.io.discover import rank_of_name
from tracekit.io.load import load


def put(folder: Path, name: str, *events: dict[str, Any], **header: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**header, "traceEvents": list(events)}))
    return path


def codes(run: Run) -> set[str]:
    return {note.code for note in run.diagnostics}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("rank3_trace.json", 3),
        ("worker0.pt.trace.json", 0),
        ("dp0_pp0_tp3_dcp0_ep3_rank3.1773709679453551615.pt.trace.json.gz", 3),
        ("1751234567.12-TP-3.trace.json.gz", 3),
        ("ID-TP-1-DP-0-PP-0-EP-0.trace.json.gz", 1),
        ("primus-megatron-exp[NAME]-rank[3].2024.json.gz", 3),
        ("trace-rank-3.json", 3),
        ("rank_00012.json", 12),
        ("HOST_123.1699236267071.pt.trace.json.gz", None),
        ("ID-TP-1-DP-2-PP-0-EP-0.trace.json.gz", None),
        ("frank.json", None),
    ],
)
def test_rank_of_a_file_name(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


def test_content_wins_over_the_name_and_says_so(tmp_path: Path) -> None:
    put(tmp_path, "rank5.json", kernel("a", 0, 1), distributedInfo={"rank": 2, "world_size": 8})
    run = load(tmp_path)
    assert run.ranks == (2,)
    assert "rank-by-content" in codes(run)
    assert run.missing_ranks == (0, 1, 3, 4, 5, 6, 7)


def test_folders_per_rank_and_natural_order(tmp_path: Path) -> None:
    for rank in (10, 9):
        put(tmp_path, f"rank_{rank}/trace.json", kernel("a", 0, 1))
    assert load(tmp_path).ranks == (9, 10)


def test_files_without_any_rank_are_numbered_and_that_is_said(tmp_path: Path) -> None:
    for name in ("host_2.json", "host_10.json"):
        put(tmp_path, name, kernel(name, 0, 1))
    run = load(tmp_path)
    assert run.ranks == (0, 1)
    assert run.traces[0].names[run.traces[0].kernels.name_id[0]] == "host_2.json"
    assert "rank-guessed" in codes(run)


def test_windows_of_one_rank_become_one_trace(tmp_path: Path) -> None:
    for number, begin in enumerate((1000, 0)):
        put(
            tmp_path, f"cycle{number}.json",
            event("user_annotation", f"ProfilerStep#{begin}", begin, 10),
            kernel(f"k{begin}", begin + 1, 2),
            kernel("nccl_x", begin + 4, 2, Collective_name="allgather",
                   Process_Group_Name=str(begin), Process_Group_Ranks="[0]"),
            distributedInfo={"rank": 0, "world_size": 1},
        )  # fmt: skip
    (trace,) = load(tmp_path).traces
    assert trace.steps.number.tolist() == [0, 1000]
    assert trace.kernels.step.tolist() == [0, 0, 1, 1]
    assert [trace.names[code] for code in trace.kernels.name_id] == [
        "k0", "nccl_x", "k1000", "nccl_x",
    ]  # fmt: skip
    assert trace.calls.kernel.tolist() == [1, 3]
    assert [trace.groups[group].name for group in trace.calls.group] == ["0", "1000"]


def test_one_bad_file_never_costs_the_others(tmp_path: Path) -> None:
    put(tmp_path, "rank0.json", kernel("a", 0, 1))
    (tmp_path / "rank1.json.gz").write_bytes(b"\x1f\x8b\x08 broken")
    (tmp_path / "rank2.json").write_bytes(b"")
    run = load(tmp_path)
    assert run.ranks == (0,)
    assert [note.code for note in run.diagnostics].count("unreadable-file") == 2


def test_json_that_is_no_trace_is_left_out_and_said(tmp_path: Path) -> None:
    put(tmp_path, "rank0.json", kernel("a", 0, 1))
    (tmp_path / "config.json").write_text('{"lr": 1}')
    run = load(tmp_path)
    assert run.ranks == (0,)
    assert "not-a-trace" in codes(run)
    with pytest.raises(InputError, match="not a trace"):
        load(tmp_path / "config.json")


def test_equal_notes_of_many_ranks_are_one(tmp_path: Path) -> None:
    for rank in range(3):
        put(tmp_path, f"rank{rank}.json", kernel("a", 0, 1))
    notes = [note for note in load(tmp_path).diagnostics if note.code == "no-steps"]
    assert [(note.rank, note.count) for note in notes] == [(None, 3)]


def test_located_notes_of_many_ranks_are_one_that_names_the_first(tmp_path: Path) -> None:
    for rank in range(3):
        path = put(tmp_path, f"rank{rank}.json", kernel("a" * (rank + 1), 0, 1), kernel("b", 3, 1))
        path.write_text(path.read_text()[:-30])
    (note,) = [note for note in load(tmp_path).diagnostics if note.code == "cut-file"]
    assert note.count == 3
    assert note.rank is None
    assert all("cut-file" in {n.code for n in file.diagnostics} for file in load(tmp_path).files)


def _recorded(folder: Path, transfers: int) -> Run:
    put(
        folder, "traces/rank-00000.json",
        event("cpu_op", "aten::mm", 0, 5),
        *(event("user_annotation", "gloo:all_reduce", 10 * n, 5, tid=2,
                Input_Dims=[[16]], Input_type=["float"]) for n in range(transfers)),
        distributedInfo={"backend": "gloo", "rank": 0, "world_size": 2},
    )  # fmt: skip
    record = [
        records.CollectiveRecord(
            group=group, seq=seq, op="all_reduce", created_ns=seq,
            in_sizes=[[16]], out_sizes=[[16]], in_dtypes=["Float"], out_dtypes=["Float"],
        )
        for seq, group in enumerate(("3", "4"))
    ]  # fmt: skip
    records.write(folder / "r.json", records.Records(rank=0, collectives=record))
    manifest.write(
        folder,
        manifest.Manifest(
            schema=manifest.SCHEMA, name="it", conditions={"precision": "float32"},
            topology=manifest.TopologyEntry(
                2, {"tp": 2},
                [manifest.GroupEntry("3", "mesh_tp", "tp", [0, 1]),
                 manifest.GroupEntry("4", "mesh_dp", "dp", [0])],
            ),
            files=[manifest.FileEntry(0, "traces/rank-00000.json", "r.json")],
            truth=[{"kind": "delay", "rank": 1}],
        ),
    )  # fmt: skip
    return load(folder)


def test_records_give_cpu_transfers_their_group_and_sequence(tmp_path: Path) -> None:
    run = _recorded(tmp_path, transfers=2)
    (trace,) = run.traces
    assert [trace.groups[group].axis for group in trace.calls.group] == ["tp", "dp"]
    assert trace.calls.seq.tolist() == [0, 1]
    assert run.topology.axes == {"tp": 2}
    assert run.truth[0]["kind"] == "delay"
    assert run.conditions["precision"] == "float32"
    assert "unmatched-records" not in codes(run)


def test_records_that_do_not_fit_are_not_forced(tmp_path: Path) -> None:
    run = _recorded(tmp_path, transfers=3)
    assert run.traces[0].calls.group.tolist() == [-1, -1, -1]
    assert "unmatched-records" in codes(run)


def test_a_missing_file_of_the_manifest_is_a_note(tmp_path: Path) -> None:
    _recorded(tmp_path, transfers=1)
    text = msgspec.json.decode((tmp_path / "run.json").read_bytes())
    text["files"].append({"rank": 1, "path": "traces/gone.json", "records": None})
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(text))
    assert "missing-files" in codes(load(tmp_path))
    text["files"] = text["files"][1:]
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(text))
    with pytest.raises(InputError, match="no trace file that exists"):
        load(tmp_path)
