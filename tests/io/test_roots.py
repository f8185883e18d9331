"""The root of a broadcast or reduce, from NCCL's arguments and from a CPU's operators."""

from __future__ import annotations

from typing import Any

import pytest

from tests.io.documents import event, kernel, window
from tracekit.io.assemble import Window

GLOO = {"backend": "gloo", "rank": 0, "world_size": 2}


def roots(found: Window) -> list[int]:
    return found.trace.calls.root.tolist()


def codes(found: Window) -> set[str]:
    return {note.code for note in found.diagnostics}


def nccl(collective: str, root: object, *, own: bool) -> Window:
    """A kernel whose operator alone says the rank; it has other arguments of its own, or none."""
    args = {"Collective_name": collective, "dtype": "Float", "In_msg_nelems": 8}
    operator = event("cpu_op", "record_param_comms", 0, 2, External_id=4, Rank=root, **args)
    shown = args if own else {}
    return window(operator, kernel("ncclDevKernel_Generic", 5, 5, External_id=4, **shown))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("collective", "root"),
    [("broadcast", 3), ("_broadcast_oop", 3), ("reduce", 3), ("_reduce_oop", 3), ("gather", 3),
     ("scatter", 3), ("allreduce", -1), ("_allgather_base", -1), ("send", -1)],
)  # fmt: skip
def test_the_rank_of_a_rooted_operation_is_its_root(collective: str, root: int, own: bool) -> None:
    assert roots(nccl(collective, 3, own=own)) == [root]
    assert roots(nccl(collective, "3", own=own)) == [root]


@pytest.mark.parametrize("odd", [-1, "x", "", 1 << 40, 2.5])
def test_what_can_be_no_place_is_ignored_and_told(odd: object) -> None:
    found = nccl("broadcast", odd, own=True)
    assert roots(found) == [-1]
    assert "odd-root" in codes(found)
    assert "odd-root" not in codes(nccl("allreduce", odd, own=True))


def test_without_a_rank_there_is_no_root() -> None:
    found = nccl("broadcast", None, own=True)
    assert roots(found) == [-1]
    assert "odd-root" not in codes(found)


def operator(name: str, start: float, size: int, *concrete: str) -> dict[str, Any]:
    return event(
        "cpu_op", f"c10d::{name}_", start, 2, Concrete_Inputs=list(concrete),
        Input_Dims=[[[size]], *([] for _ in concrete[1:])], Input_type=["TensorList"],
    )  # fmt: skip


def transfer(name: str, start: float, size: int) -> dict[str, Any]:
    return event(
        "user_annotation", f"gloo:{name}", start, 5, tid=2,
        Input_Dims=[[size]], Input_type=["float"],
    )  # fmt: skip


def test_a_cpus_operators_tell_for_their_transfers() -> None:
    # As torch 2.13 writes them.
    found = window(
        operator("broadcast", 0, 8, "", "", "1", "0", "False", "-1"), transfer("broadcast", 3, 8),
        operator("reduce", 10, 8, "", "", "", "0", "0", "False", "-1"), transfer("reduce", 13, 8),
        transfer("all_reduce", 23, 8), distributedInfo=GLOO,
    )  # fmt: skip
    assert roots(found) == [1, 0, -1]


def test_operators_that_do_not_fit_tell_nothing() -> None:
    told = operator("broadcast", 0, 8, "", "", "1", "0", "False", "-1")
    other = window(told, transfer("broadcast", 3, 9), distributedInfo=GLOO)
    fewer = window(told, transfer("broadcast", 3, 8), transfer("broadcast", 9, 8),
                   distributedInfo=GLOO)  # fmt: skip
    unsaid = window(operator("broadcast", 0, 8, "", ""), transfer("broadcast", 3, 8),
                    distributedInfo=GLOO)  # fmt: skip
    assert roots(other) == [-1]
    assert roots(fewer) == [-1, -1]
    assert roots(unsaid) == [-1]
