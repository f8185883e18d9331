"""Which transfers a coalesced kernel carries, from what the host recorded before its launch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.io.documents import event, window
from tests.io.documents import kernel as device
from tracekit.io.assemble import Window

SEND, RECV = {"Dst_Rank": 1}, {"Src_Rank": 2}


def record(start: float, collective: str, **args: Any) -> dict[str, Any]:
    """The record of one transfer, of 8 bytes."""
    return event(
        "cpu_op", "record_param_comms", start, 1, Collective_name=collective, dtype="Float",
        In_msg_nelems=2, Out_msg_nelems=2, Process_Group_Name="0",
        Process_Group_Ranks="[0, 1, 2]", **args,
    )  # fmt: skip


def launch(start: float, number: int, name: str = "cudaLaunchKernelExC", **args: Any) -> Any:
    return event("cuda_runtime", name, start, 1, correlation=number, **args)


def kernel(start: float, number: int, name: str = "ncclDevKernel_SendRecv(x)", **args: Any) -> Any:
    return device(name, start, 9, correlation=number, **args)


def told(found: Window) -> list[tuple[int, str, int, int]]:
    """Kernel, operation, peer and bytes of each call."""
    calls, names = found.trace.calls, found.trace.names
    columns = (calls.kernel, calls.op_id, calls.peer, calls.in_bytes)
    return [
        (row, names[op], peer, size)
        for row, op, peer, size in zip(*(item.tolist() for item in columns), strict=True)
    ]


def codes(found: Window) -> dict[str, int]:
    return {note.code: note.count for note in found.diagnostics}


BATCH = (record(0, "send", **SEND), record(2, "recv", **RECV))
BOTH = [(0, "send", 1, 8), (0, "recv", 2, 8)]


@pytest.mark.parametrize("name", ["ncclDevKernel_SendRecv(x)", "ncclDevKernel_Generic(x)"])
def test_a_batch_is_what_was_recorded_before_its_launch(name: str) -> None:
    found = window(*BATCH, launch(4, 7), kernel(9, 7, name))
    assert told(found) == BOTH
    assert found.trace.calls.carried().tolist() == [2, 2]
    assert found.trace.groups[found.trace.calls.group[0]].ranks == (0, 1, 2)
    assert codes(found) == {"coalesced-transfers": 1, "no-steps": 1}


def test_batches_follow_each_other() -> None:
    more = (record(20, "recv", **RECV), launch(22, 8), kernel(29, 8))
    found = window(*BATCH, launch(4, 7), kernel(9, 7), *more)
    assert told(found) == [*BOTH, (1, "recv", 2, 8)]
    assert found.trace.calls.carried().tolist() == [2, 2, 1]


def test_a_record_around_the_launch_adds_nothing_of_its_own() -> None:
    whole = event("cpu_op", "record_param_comms", 0, 9, Collective_name="coalesced", External_id=5)
    inside = [{**item, "ts": item["ts"] + 1} for item in BATCH]
    found = window(whole, *inside, launch(5, 7), kernel(9, 7, External_id=5))
    assert told(found) == BOTH


def test_a_host_function_may_come_before_the_kernel() -> None:
    found = window(*BATCH, launch(4, 6, "cudaLaunchHostFunc"), launch(5, 7), kernel(9, 7))
    assert told(found) == BOTH


UNTOLD = [(0, "send_recv", -1, -1)]


def test_a_batch_of_several_kernels_is_refused_and_told() -> None:
    found = window(*BATCH, launch(4, 7), kernel(9, 7), launch(5, 8), kernel(29, 8))
    assert told(found) == [*UNTOLD, (1, "send_recv", -1, -1)]
    assert codes(found)["split-batches"] == 1


@pytest.mark.parametrize(
    "events",
    [
        (launch(4, 7), kernel(9, 7)),  # no records
        # The batch's own kernel is lost, and another launch lies between.
        (*BATCH, launch(4, 99), launch(6, 7), kernel(9, 7)),
        (*BATCH, launch(4, 7, tid=2), kernel(9, 7)),  # another thread
        (*BATCH, kernel(9, 7)),  # the launch is not recorded
        # Two kernels of one launch, as of a graph.
        (*BATCH, launch(4, 7), kernel(9, 7), event("kernel", "gemm", 30, 1, device=0, stream=7,
                                                   correlation=7)),
    ],
)  # fmt: skip
def test_what_nothing_tells_stays_untold(events: tuple[Any, ...]) -> None:
    assert told(window(*events)) == UNTOLD


def test_transfers_with_a_kernel_of_their_own_are_in_no_batch() -> None:
    own = record(0, "send", External_id=3, **SEND)
    found = window(own, kernel(1, 6, External_id=3), *BATCH[1:], launch(4, 7), kernel(20, 7))
    assert told(found) == [(0, "send", 1, 8), (1, "recv", 2, 8)]


def test_odd_arguments_cost_only_what_they_say() -> None:
    odd = record(0, "send", Dst_Rank="x" * 99)
    big = record(1, "recv", Src_Rank=1 << 40)
    found = window(odd, big, launch(4, 7), kernel(9, 7))
    assert [row[:2] for row in told(found)] == [(0, "send"), (0, "recv")]
    assert [row[2] for row in told(found)] == [-1, -1]
