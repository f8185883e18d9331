"""From events to a rank's columns: steps, launches, calls, and CPU traces."""

from __future__ import annotations

import re

import pytest

from tests.io.documents import event, kernel, parsed, window
from tracekit.core.trace import KernelKind, StepFlag
from tracekit.io import names
from tracekit.io.assemble import Options, assemble


def step(number: int, start: float, dur: float) -> dict[str, object]:
    return event("user_annotation", f"ProfilerStep#{number}", start, dur)


def launch(start: float, correlation: int, **args: object) -> dict[str, object]:
    return event("cuda_runtime", "cudaLaunchKernel", start, 1, correlation=correlation, **args)


def codes(found: object) -> list[str]:
    return [note.code for note in found.diagnostics]  # type: ignore[attr-defined]


def test_a_step_ends_with_its_last_kernel_and_the_next_begins_there() -> None:
    trace = window(
        step(5, 0, 10), step(6, 10, 10),
        launch(8, 1), launch(12, 2),
        kernel("a", 15, 5, correlation=1), kernel("b", 20, 8, correlation=2),
    ).trace  # fmt: skip
    assert trace.kernels.step.tolist() == [0, 1]
    assert trace.steps.start_ns.tolist() == [0, 20_000]
    assert trace.steps.end_ns.tolist() == [20_000, 28_000]
    assert trace.steps.number.tolist() == [5, 6]
    assert trace.steps.flag.tolist() == [StepFlag.FIRST, StepFlag.OK]


def test_a_kernel_launched_outside_all_steps_has_none() -> None:
    trace = window(
        step(1, 0, 10), launch(20, 1), kernel("a", 5, 1, correlation=1), kernel("b", 6, 1)
    ).trace
    assert trace.kernels.step.tolist() == [-1, 0]


def test_steps_from_annotations_nested_ones_left_out() -> None:
    found = window(
        event("user_annotation", "execute_context_1(8)", 0, 10),
        event("user_annotation", "execute_new_1", 2, 3),
        event("user_annotation", "execute_context_0(9)", 12, 10),
        kernel("a", 1, 2),
    )
    assert found.trace.steps.start_ns.tolist() == [0, 12_000]
    assert found.trace.steps.number.tolist() == [0, 1]
    assert "steps-from-annotations" in codes(found)


def test_optimizer_steps_end_a_step() -> None:
    found = window(
        kernel("a", 0, 2),
        event("user_annotation", "Optimizer.step#AdamW.step", 8, 2),
        event("user_annotation", "Optimizer.step#AdamW.step", 18, 2),
    )
    assert found.trace.steps.start_ns.tolist() == [0, 10_000]
    assert found.trace.steps.end_ns.tolist() == [10_000, 20_000]


def test_no_marker_at_all_makes_the_capture_one_step_and_says_so() -> None:
    found = window(kernel("a", 3, 2), kernel("b", 9, 4))
    assert found.trace.steps.start_ns.tolist() == [3_000]
    assert found.trace.steps.end_ns.tolist() == [13_000]
    assert "no-steps" in codes(found)


def test_the_users_step_expression_goes_first() -> None:
    events = parsed(step(1, 0, 10), event("user_annotation", "## mine ##", 2, 3), kernel("a", 2, 1))
    options = Options(names.communication_pattern(), re.compile("mine"))
    assert assemble(events, options).trace.steps.start_ns.tolist() == [2_000]


def test_sync_and_event_rows_are_no_work() -> None:
    trace = window(
        kernel("a", 0, 2), event("cuda_sync", "Stream Sync", 0, 50),
        event("cuda_event", "Event", 0, 0), event("gpu_user_annotation", "nccl:x", 0, 50),
    ).trace  # fmt: skip
    assert len(trace.kernels) == 1


COMM = {
    "Collective_name": "allreduce", "dtype": "BFloat16", "In_msg_nelems": 8, "Out_msg_nelems": 8,
    "Process_Group_Name": "7", "Process_Group_Description": "mesh_tp",
    "Process_Group_Ranks": "[0, 1]", "Seq": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "events",
    [
        [kernel("vendor_ar", 5, 2, **COMM)],
        [event("cpu_op", "record_param_comms", 0, 4, External_id=9, **COMM),
         kernel("vendor_ar", 5, 2, External_id=9)],
        [event("cpu_op", "record_param_comms", 0, 4, External_id=9, **COMM),
         launch(2, 77), kernel("ncclDevKernel_X", 5, 2, correlation=77)],
    ],
    ids=["own-arguments", "external-id", "enclosing-operator"],
)  # fmt: skip
def test_a_call_is_known_by_any_of_its_links(events: list[dict[str, object]]) -> None:
    trace = window(*events).trace
    assert trace.kernels.kind.tolist() == [KernelKind.COMMUNICATION]
    assert [trace.names[code] for code in trace.calls.op_id] == ["all_reduce"]
    assert trace.calls.in_bytes.tolist() == [16]
    assert trace.calls.seq.tolist() == [3]
    (group,) = trace.groups
    assert (group.name, group.ranks, group.axis) == ("7", (0, 1), "tp")


def test_a_launch_on_another_thread_links_nothing() -> None:
    trace = window(
        event("cpu_op", "record_param_comms", 0, 4, External_id=9, **COMM),
        launch(2, 77, tid=2),
        kernel("ncclDevKernel_X", 5, 2, correlation=77),
    ).trace
    assert trace.calls.group.tolist() == [-1]


def test_cut_rank_lists_are_completed_from_the_header() -> None:
    config = [{"pg_name": "7", "pg_desc": "mesh_tp", "ranks": list(range(64))}]
    trace = window(
        kernel("nccl_x", 5, 2, **{**COMM, "Process_Group_Ranks": "[0, 1, ..., 63]"}),
        distributedInfo={"rank": 1, "world_size": 64, "pg_config": config},
    ).trace
    assert len(trace.groups) == 1
    assert trace.groups[trace.calls.group[0]].ranks == tuple(range(64))


@pytest.mark.parametrize(
    ("name", "is_communication"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", True),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", True),
        ("ncclSymkDevKernel_AllGather", True),
        ("void vllm::cross_device_reduce_1stage<half, 8>(vllm::RankData*)", True),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()", True),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel<8>", True),
        ("void deep_ep::internode::dispatch<true, 4>()", True),
        ("userbuffers_fp16_sum_inplace_gpu_rr", True),
        ("nvshmemi_transfer_rma_p", True),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", False),
        ("void at::native::reduce_kernel<512, 1>", False),
        ("void cutlass::Kernel<dispatch_policy>", False),
    ],
)
def test_names_of_communication_kernels(name: str, is_communication: bool) -> None:
    assert (names.communication_pattern().search(name) is not None) is is_communication


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("mesh_tp", "tp"), ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("mesh_dp_shard", "dp_shard"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("DATA_PARALLEL_GROUP", "dp"), ("default_pg", None), ("undefined", None),
        ("DATA_PARALLEL_GROUP_WITH_CP", "cp"), ("tp", "tp"), ("mesh_fsdp", "fsdp"),
        ("POSITION_EMBEDDING_GROUP", None), ("http", None),
    ],
)  # fmt: skip
def test_axis_of_a_group_description(description: str, axis: str | None) -> None:
    assert names.mesh_axis(description) == axis


# -- traces without a device -----------------------------------------------------------


def test_cpu_compute_is_the_self_time_of_library_operators() -> None:
    trace = window(
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 0, 100),
        event("cpu_op", "MmBackward0", 5, 90),
        event("cpu_op", "aten::linear", 10, 30),
        event("cpu_op", "aten::addmm", 15, 20),
        event("cpu_op", "c10d::allreduce_", 50, 10),
        event("user_annotation", "gloo:all_reduce", 52, 30, tid=2,
              Input_Dims=[[4, 2]], Input_type=["float"]),
        distributedInfo={"backend": "gloo", "rank": 0, "world_size": 2},
    ).trace  # fmt: skip
    rows = [
        (trace.names[name], start // 1000, end // 1000, kind)
        for name, start, end, kind in zip(
            trace.kernels.name_id, trace.kernels.start_ns.tolist(),
            trace.kernels.end_ns.tolist(), trace.kernels.kind.tolist(), strict=True,
        )
    ]  # fmt: skip
    assert trace.device_type == "cpu"
    assert rows == [
        ("aten::linear", 10, 15, 0),
        ("aten::addmm", 15, 35, 0),
        ("aten::linear", 35, 40, 0),
        ("gloo:all_reduce", 52, 82, 1),
    ]
    assert trace.calls.in_bytes.tolist() == [32]


def test_operators_of_two_threads_do_not_nest() -> None:
    trace = window(
        event("cpu_op", "aten::mm", 0, 10, tid=1), event("cpu_op", "aten::add", 2, 4, tid=2)
    ).trace
    assert sorted((trace.kernels.end_ns - trace.kernels.start_ns).tolist()) == [4_000, 10_000]


def test_a_gpu_job_recorded_without_its_gpu_has_no_device_work() -> None:
    found = window(
        event("cpu_op", "aten::mm", 0, 10), distributedInfo={"backend": "nccl", "rank": 0}
    )
    assert found.trace.device_type == "none"
    assert len(found.trace.kernels) == 0
    assert "no-device-work" in codes(found)
