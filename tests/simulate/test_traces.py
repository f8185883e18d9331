"""What is written is what is read: nothing lost, repaired or guessed, times and calls exact."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracekit import simulate
from tracekit.core.trace import KernelKind, RankTrace
from tracekit.io.load import load
from tracekit.simulate import Spec, clock, engine
from tracekit.simulate.engine import Do, Timeline
from tracekit.simulate.program import programs

JOBS: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "sequence": {"tp": 4, "sequence_parallel": True},
    "dp": {"dp": 3},
    "fsdp": {"fsdp": 4, "dp": 2},
    "pp": {"pp": 4, "norm": True},
    "vee": {"pp": 2, "schedule": "zbv", "tp": 2},
    "both": {"pp": 2, "schedule": "dualpipev", "chunks": 2},
    "ep": {"ep": 4, "dp": 2, "routing": "zipf:1.2"},
    "all": {"pp": 2, "dp": 2, "ep": 2, "tp": 2, "microbatches": 4, "norm": True},
    "clocks": {"dp": 2, "tp": 2, "offset_ms": 50, "drift_ppm": 20, "bases": "mixed"},
    "gloo": {"tp": 2, "dp": 2, "backend": "gloo"},
    "gloo-pp": {"pp": 2, "backend": "gloo", "norm": True},
    "gloo-ep": {"ep": 2, "backend": "gloo", "routing": "zipf:1"},
    "contended": {"dp": 2, "pp": 2, "contention": {"*": 1.3}, "transfer_contention": 1.2},
}
EXPECTED = {"p2p-upper-bound"}  # of every gloo pipeline


@pytest.fixture(params=JOBS, scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    spec = Spec(name=request.param, steps=3, **JOBS[request.param])
    folder = simulate.simulate(spec, tmp_path_factory.mktemp("runs") / "run", compress=False)
    return spec, folder, load(folder), engine.run(spec)


def _lane(timeline: Timeline, rank: int) -> tuple[engine.Lane, int]:
    pp, place = divmod(rank, timeline.job.width)
    return timeline.lanes[pp], place


def test_nothing_is_lost_repaired_or_guessed(job: Any) -> None:
    _, folder, run, _ = job
    serious = {note.code for note in run.diagnostics if note.code not in EXPECTED}
    serious -= {"unconnected-ranks"}  # what a tp or dp group alone cannot tell
    assert serious == set()
    for facts in run.files:
        text = (folder / "traces" / facts.name).read_text()
        assert facts.events == text.count('"ph": "X"') == len(json.loads(text)["traceEvents"])
        assert facts.rank_from == "content"


def test_every_kernel_is_there_at_its_time(job: Any) -> None:
    spec, _, run, timeline = job
    clocks = clock.clocks(spec)
    for trace in run.traces:
        lane, place = _lane(timeline, trace.rank)
        for kinds, do in (
            ((KernelKind.COMPUTE,), (Do.COMPUTE,)),
            ((KernelKind.COMMUNICATION,), (Do.COLLECTIVE, Do.SEND, Do.RECV)),
        ):
            rows = [row for row in range(len(lane.start)) if lane.ops[row % len(lane.ops)].do in do]
            chosen = np.isin(trace.kernels.kind, kinds)
            shown = clocks[trace.rank].shown(lane.end[rows, place]) + clock.BASE_NS
            assert sorted(trace.kernels.end_ns[chosen].tolist()) == sorted(shown.tolist())
            if spec.backend == "nccl":
                start = clocks[trace.rank].shown(lane.start[rows, place]) + clock.BASE_NS
                assert sorted(trace.kernels.start_ns[chosen].tolist()) == sorted(start.tolist())


def test_every_call_knows_its_group_and_partner(job: Any) -> None:
    spec, _, run, timeline = job
    for trace in run.traces:
        lane, _ = _lane(timeline, trace.rank)
        wanted: Counter[tuple[str, str]] = Counter()
        for op in lane.ops:
            if op.do in (Do.COLLECTIVE, Do.SEND, Do.RECV):
                wanted[op.name, "pp" if op.do is not Do.COLLECTIVE else op.axis] += spec.steps
        assert _calls(trace) == wanted
        peers = {trace.calls.peer[row] for row in _rows(trace, ("send", "recv"))}
        width = timeline.job.width
        assert {abs(int(peer) - trace.rank) % width for peer in peers} <= {0}


def _calls(trace: RankTrace) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for op, group in zip(trace.calls.op_id.tolist(), trace.calls.group.tolist(), strict=True):
        found[trace.names[op], trace.groups[group].axis or "world"] += 1
    return found


def _rows(trace: RankTrace, ops: tuple[str, ...]) -> list[int]:
    return [row for row, op in enumerate(trace.calls.op_id.tolist()) if trace.names[op] in ops]


def test_sequence_numbers_agree_within_groups(job: Any) -> None:
    _, _, run, _ = job
    seen: dict[tuple[str, int], set[str]] = {}
    for trace in run.traces:
        for row, op in enumerate(trace.calls.op_id.tolist()):
            if trace.names[op] not in ("send", "recv"):
                group = trace.groups[trace.calls.group[row]]
                key = (group.name, int(trace.calls.seq[row]))
                seen.setdefault(key, set()).add(trace.names[op])
    assert all(len(ops) == 1 for ops in seen.values())
    assert min((seq for _, seq in seen), default=1) >= 1


def test_breakdown_is_the_simulators_own(job: Any) -> None:
    spec, _, run, _ = job
    if spec.backend == "gloo":
        pytest.skip("a CPU's kernels are self times")
    from tracekit.analysis.breakdown import analyze

    true = {row["rank"]: row["compute_ns"] for row in simulate.truth(spec)["compute"]}
    table = analyze(run).per_step
    parts = table[["compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"]].sum(axis=1)
    assert (parts == table.step_ns).all()
    if spec.drift_ppm:
        return  # a drifting clock shows other durations
    for row in table.itertuples():
        assert row.compute_ns == true[row.rank][row.step]


def test_memory_equals_disk(tmp_path: Path) -> None:
    spec = Spec(name="same", tp=2, dp=2, steps=2, faults=("delay:1:5",))
    folder = simulate.simulate(spec, tmp_path / "same")
    for one, other in zip(simulate.load(spec).traces, load(folder).traces, strict=True):
        assert one.names == other.names
        assert one.groups == other.groups
        for table in ("kernels", "calls", "steps", "spans"):
            left, right = getattr(one, table), getattr(other, table)
            for name in left.__dataclass_fields__:
                assert (getattr(left, name) == getattr(right, name)).all(), (table, name)


# -- how traces can look -----------------------------------------------------------------


def _codes(spec: Spec) -> tuple[Any, set[str]]:
    run = simulate.load(spec)
    return run, {note.code for note in run.diagnostics}


def test_without_arguments_calls_have_no_group() -> None:
    run, codes = _codes(Spec(tp=2, comm_args="none"))
    assert "communication-without-group" in codes
    assert all((trace.calls.group == -1).all() for trace in run.traces)


def test_arguments_on_operators_only_are_found_through_the_launch() -> None:
    run, codes = _codes(Spec(tp=2, comm_args="operator"))
    assert "communication-without-group" not in codes
    assert all((trace.calls.seq >= 1).all() for trace in run.traces)


@pytest.mark.parametrize("kernels", ["custom", "symmetric"])
def test_kernels_of_an_engine_are_known_by_name(kernels: str) -> None:
    run, codes = _codes(Spec(tp=2, tp_kernels=kernels))
    assert "communication-without-group" in codes
    trace = run.traces[0]
    assert (trace.kernels.kind == KernelKind.COMMUNICATION).sum() == len(trace.calls) > 0
    assert set(trace.kernels.stream.tolist()) == {engine.COMPUTE_STREAM}


def test_coalesced_kernels_carry_the_transfers_of_their_operators() -> None:
    spec = Spec(pp=4, coalesced=True, steps=2)
    run, codes = _codes(spec)
    assert "coalesced-transfers" in codes
    for trace, ops in zip(run.traces, programs(spec), strict=True):
        planted = [(op.name, op.peer) for op in ops if op.do in (Do.SEND, Do.RECV)]
        calls = trace.calls
        assert [
            (trace.names[op], peer)
            for op, peer in zip(calls.op_id.tolist(), calls.peer.tolist(), strict=True)
        ] == planted * 2
        batches = [op.batch for op in ops if op.batch]
        first = [True, *(one <= other for one, other in itertools.pairwise(batches))]
        sizes = [batch for batch, begins in zip(batches, first, strict=True) if begins]
        assert np.bincount(calls.kernel)[np.unique(calls.kernel)].tolist() == sizes * 2
    assert max(trace.calls.carried().max() for trace in run.traces) > 1
    assert run.matching is not None
    assert (run.matching.present() == 2).all()


def test_coalesced_kernels_without_arguments_on_operators_have_no_partner() -> None:
    run, _ = _codes(Spec(pp=2, coalesced=True, comm_args="none"))
    assert all((trace.calls.peer == -1).all() and len(trace.calls) for trace in run.traces)


def test_what_is_untraced_leaves_no_trace() -> None:
    run, _ = _codes(Spec(pp=2, tp=2, untraced=("send", "recv")))
    assert _rows(run.traces[0], ("send", "recv")) == []
    assert len(_rows(run.traces[0], ("all_reduce",))) == len(run.traces[0].calls) > 0


def test_ranks_of_a_host_can_share_a_clock() -> None:
    spec = Spec(dp=8, ranks_per_host=4, offset_ms=50, host_clocks=True)
    offsets = [row["offset_ns"] for row in simulate.truth(spec)["clock"]]
    assert len(set(offsets[:4])) == len(set(offsets[4:])) == 1
    assert offsets[0] != offsets[4]


def test_a_replayed_graph_has_one_launch_and_no_operators() -> None:
    run, _ = _codes(Spec(pp=2, tp=2, graph=True, steps=2))
    kernels = run.traces[0].kernels
    counts = Counter(kernels.correlation.tolist())
    assert max(counts.values()) > 10
    assert (kernels.step >= 0).all()


def test_one_group_under_two_names() -> None:
    run, _ = _codes(Spec(tp=2, alias=True))
    trace = run.traces[0]
    used = {trace.groups[group] for group in trace.calls.group.tolist()}
    assert len(used) == 2
    assert len({group.ranks for group in used}) == 1


def test_sibling_groups_can_share_a_name() -> None:
    run, _ = _codes(Spec(tp=2, dp=2, group_names="local"))
    tp = [group for group in run.topology.groups if group.axis == "tp"]
    assert [group.ranks for group in tp] == [(0, 1), (2, 3)]
    assert len({group.name for group in tp}) == 1


def test_long_lists_are_cut_in_calls_but_not_in_the_header() -> None:
    run, _ = _codes(Spec(dp=40, steps=1, manifest=False))
    assert run.traces[7].groups[run.traces[7].calls.group[0]].ranks == tuple(range(40))
    bare, _ = _codes(Spec(dp=40, steps=1, manifest=False, pg_config=False))
    assert bare.traces[7].groups[bare.traces[7].calls.group[0]].ranks == ()


@pytest.mark.parametrize(
    ("style", "text"),
    [("mesh", "mesh_tp"), ("megatron", "TENSOR_MODEL_PARALLEL_GROUP"), ("undefined", "undefined")],
)
def test_descriptions(style: str, text: str) -> None:
    run, _ = _codes(Spec(tp=2, groups=style, steps=1))
    trace = run.traces[0]
    assert trace.groups[trace.calls.group[0]].description == text


def test_without_markers_the_capture_is_one_step() -> None:
    run, codes = _codes(Spec(tp=2, markers=False))
    assert "no-steps" in codes
    assert [len(trace.steps) for trace in run.traces] == [1, 1]


def test_missing_ranks_and_cut_windows() -> None:
    run, codes = _codes(Spec(tp=4, missing=(2,), cut_steps=0.6))
    assert run.ranks == (0, 1, 3)
    assert "missing-ranks" in codes
    assert len({len(trace.kernels) for trace in run.traces}) > 1
    assert all(2 <= len(trace.steps) < 4 for trace in run.traces)


@pytest.mark.parametrize("style", ["tracekit", "torch", "none"])
def test_stage_markers(style: str) -> None:
    run, _ = _codes(Spec(pp=2, stage_markers=style, steps=1, microbatches=4))
    spans = run.traces[1].spans
    stages = {int(stage) for stage in spans.stage if stage >= 0}
    assert stages == (set() if style == "none" else {1})
    assert (spans.stage >= 0).sum() == (0 if style == "none" else 8)
