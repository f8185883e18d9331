"""The records beside a trace fit the trace."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from tests.profile.raw import RawRun, record

OPS = {
    "all_reduce": {"c10d::allreduce_"},
    "all_gather": {"c10d::allgather_into_tensor_coalesced_"},
    "all_to_all": {"c10d::alltoall_base_"},
    "broadcast": {"c10d::broadcast_"},  # DDP settles its buckets in the second step
    "barrier": {"c10d::barrier"},
}


@pytest.mark.parametrize("workload", ["tp", "ep", "dp"])
def test_each_collective_was_created_inside_one_operator(tmp_path: Path, workload: str) -> None:
    run = record(tmp_path / "run", workload)
    for rank in (0, 1):
        operators = run.spans(rank, "c10d::")
        collectives = run.records(rank)["collectives"]
        assert len(collectives) == len(operators) > 5
        for row in collectives:
            inside = [op for op in operators if op.start_ns <= row["created_ns"] < op.end_ns]
            assert [op.name for op in inside] in [[name] for name in OPS[row["op"]]]
        transfers = Counter(span.name for span in run.spans(rank, "gloo:"))
        assert transfers == Counter(f"gloo:{row['op']}" for row in collectives)


def test_ranks_of_a_group_agree_on_sequence_and_sizes(tmp_path: Path) -> None:
    run = record(tmp_path / "run", "tp")
    first, second = (
        [
            (row["group"], row["seq"], row["op"], row["in_sizes"])
            for row in run.records(rank)["collectives"]
        ]
        for rank in (0, 1)
    )
    assert first == second
    names = {group.name: group.axis for group in topology_groups(run)}
    assert {names[group] for group, *_ in first} == {"tp", None}
    for group in names:
        numbers = [seq for name, seq, *_ in first if name == group]
        assert all(later == earlier + 1 for earlier, later in itertools.pairwise(numbers))


def topology_groups(run: RawRun) -> list:
    assert run.manifest.topology is not None
    return run.manifest.topology.groups


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_transfers_of_a_pipeline(tmp_path: Path, schedule: str) -> None:
    run = record(tmp_path / "run", "pp", schedule=schedule)
    for rank in (0, 1):
        rows = run.records(rank)["p2p"]
        # Four microbatches in each of three steps, an activation one way and a gradient the other.
        assert Counter(row["op"] for row in rows) == {"send": 12, "recv": 12}
        assert {row["peer"] for row in rows} == {1 - rank}
        assert {row["bytes"] for row in rows} == {2 * 32 * 64 * 4}
        assert all(row["posted_ns"] <= row["wait_start_ns"] <= row["wait_end_ns"] for row in rows)
        for op, name in (("send", "c10d::send"), ("recv", "c10d::recv_")):
            posted = [row["posted_ns"] for row in rows if row["op"] == op]
            started = [span.start_ns for span in run.spans(rank, name)]
            assert posted == sorted(posted)
            assert all(before <= at for before, at in zip(posted, started, strict=True))


def test_nothing_is_cut_at_the_ends_of_the_recording(tmp_path: Path) -> None:
    run = record(tmp_path / "run", "dp")
    for rank in (0, 1):
        steps = run.spans(rank, "ProfilerStep#")
        barriers = run.spans(rank, "c10d::barrier")
        assert len(barriers) == 2
        assert barriers[0].end_ns <= steps[0].start_ns
        assert barriers[1].start_ns >= steps[-1].end_ns
