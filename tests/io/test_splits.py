"""Splits of uneven all_to_alls, from NCCL's arguments and from a CPU's operators."""

from __future__ import annotations

from typing import Any

import pytest

from tests.io.documents import event, kernel, window
from tracekit.core.trace import RankTrace

GLOO = {"backend": "gloo", "rank": 0, "world_size": 2}


def told(trace: RankTrace) -> list[tuple[int, int, int, int]]:
    splits = trace.splits
    columns = (splits.call, splits.member, splits.sent, splits.received)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def nccl(start: float, sent: object, received: object) -> dict[str, Any]:
    return kernel(
        "ncclDevKernel_SendRecv", start, 5, Collective_name="all_to_allv", dtype="BFloat16",
        In_msg_nelems=8, Out_msg_nelems=8, In_split_size=sent, Out_split_size=received,
    )  # fmt: skip


def test_splits_of_a_call() -> None:
    trace = window(nccl(0, "[3, 1]", "[3, 7]"), nccl(10, [1, 2], [3, 4])).trace
    assert told(trace) == [(0, 0, 3, 3), (0, 1, 1, 7), (1, 0, 1, 3), (1, 1, 2, 4)]


@pytest.mark.parametrize(
    ("sent", "received"),
    [("[]", "[]"), ("[1, 2, ..., 9]", "[1, 2, ..., 9]"), ("[1, 2]", "[1, 2, 3]"), (None, "[1]"),
     ("[99999999999999999999, 1]", "[1, 1]")],
)  # fmt: skip
def test_even_cut_and_odd_splits_are_not_known(sent: object, received: object) -> None:
    assert told(window(nccl(0, sent, received)).trace) == []


def operator(start: float, out: str, into: str, rows: int) -> dict[str, Any]:
    return event(
        "cpu_op", "c10d::alltoall_base_", start, 2,
        Concrete_Inputs=["", "", "", out, into, "True", "-1"],
        Input_Dims=[[9, 4], [rows, 4], [], [], [], [], []],
        Input_type=["float", "float", "", "ScalarList", "ScalarList", "Scalar", "Scalar"],
    )  # fmt: skip


def transfer(start: float, rows: int) -> dict[str, Any]:
    return event(
        "user_annotation", "gloo:all_to_all", start, 5, tid=2,
        Input_Dims=[[rows, 4]], Input_type=["float"],
    )  # fmt: skip


def test_a_cpus_operators_tell_for_their_transfers() -> None:
    trace = window(
        operator(0, "[]", "[]", 2), transfer(3, 2),
        operator(10, "[4, 5]", "[6, 1]", 7), transfer(13, 7),
        distributedInfo=GLOO,
    ).trace  # fmt: skip
    assert told(trace) == [(1, 0, 6, 4), (1, 1, 1, 5)]


def test_operators_that_do_not_fit_tell_nothing() -> None:
    one = window(operator(0, "[4, 5]", "[6, 1]", 7), transfer(3, 8), distributedInfo=GLOO)
    other = window(operator(0, "[4, 5]", "[6, 1]", 7), distributedInfo=GLOO)
    assert told(one.trace) == told(other.trace) == []
