"""Real traces against figures computed by a slow, independent reference: equality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REAL_TRACES
from tracekit.analysis import breakdown, overlap
from tracekit.core.activity import devices
from tracekit.core.errors import MissingDataError
from tracekit.core.intervals import intersect, length, subtract
from tracekit.core.run import Run
from tracekit.core.trace import KernelKind
from tracekit.io.load import load

_FACTS = REAL_TRACES / "facts.json"
FACTS: dict[str, Any] = json.loads(_FACTS.read_text()) if _FACTS.is_file() else {}


def loaded(folder: Path, name: str) -> Run:
    return load(folder / name)


@pytest.mark.parametrize("name", sorted(FACTS) or ["absent"])
def test_whole_file_sums_are_exact(real_traces: Path, name: str) -> None:
    facts, (trace,) = FACTS[name], loaded(real_traces, name).traces
    got = {
        str(device): {
            "compute_ns": length(activity.compute),
            "comm_ns": length(activity.communication),
            "memory_ns": length(activity.memory),
            "hidden_ns": length(intersect(activity.compute, activity.communication)),
            "exposed_ns": length(subtract(activity.communication, activity.compute)),
        }
        for device, activity in devices(trace)
        if trace.device_type == "gpu"
    }
    want = {
        device: {key: sums[key] for key in got.get(device, sums)}
        for device, sums in facts["devices"].items()
    }
    assert got == want
    if trace.device_type == "gpu":
        kinds = trace.kernels.kind
        assert int((kinds == KernelKind.COMMUNICATION).sum()) == facts["comm_kernels"]
        assert int((kinds != KernelKind.MEMORY).sum()) == facts["kernels"]
    if facts["rank"] is not None:
        assert trace.rank == facts["rank"]
    if facts["profiler_steps"]:
        assert trace.steps.number.tolist() == facts["profiler_steps"]


@pytest.mark.parametrize("name", sorted(FACTS) or ["absent"])
def test_breakdown_sums_to_the_step_or_says_why_not(real_traces: Path, name: str) -> None:
    run = loaded(real_traces, name)
    if run.traces[0].device_type == "none":
        with pytest.raises(MissingDataError, match=r"record with|not understood"):
            breakdown.analyze(run)
        return
    frame = breakdown.analyze(run).per_step
    parts = frame[["compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"]]
    assert (parts.sum(axis=1) == frame.step_ns).all()
    assert (parts >= 0).all().all()


def test_symmetric_memory_all_reduce_is_communication(real_traces: Path) -> None:
    run = loaded(real_traces, "b200_vllm_tp8/eager_trace.json.gz")
    per_op = overlap.analyze(run).per_op.set_index("op")
    assert per_op.n.to_dict() == {"all_reduce": 73, "all_gather": 1}


def test_two_ranks_of_one_job_become_one_run(real_traces: Path) -> None:
    run = load(real_traces / "two_ranks_v100")
    assert run.ranks == (0, 1)
    assert run.topology.world_size == 128
    assert len(run.missing_ranks) == 126


@pytest.mark.parametrize(
    ("name", "roots"), [("mi300_resnet_8rank", [0] * 6), ("nccl_v100", [-1] * 6)]
)
def test_roots_of_real_broadcasts(real_traces: Path, name: str, roots: list[int]) -> None:
    (trace,) = loaded(real_traces, name).traces
    calls = trace.calls
    names = [trace.names[op] for op in calls.op_id.tolist()]
    told = [root for op, root in zip(names, calls.root.tolist(), strict=True) if op == "broadcast"]
    assert told == roots
    others = {r for op, r in zip(names, calls.root.tolist(), strict=True) if op != "broadcast"}
    assert others == {-1}
