"""Kernel times by hand, sums, a rank that is slow and its clean twin."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import synth
from tracekit import simulate
from tracekit.analysis.kernels import NO_SCOPE, NOT_LINKED, analyze
from tracekit.core.errors import MissingDataError
from tracekit.core.trace import Origins, RankTrace


def test_kernels_by_hand() -> None:
    run = synth.run(
        synth.rank(0, "K 0-10 gemm | K 20-50 gemm | C 30-60 nccl | M 60-70 copy", steps="0-100")
    )
    frame = analyze(run).per_kernel
    assert frame.p95_ns.isna().all()
    assert frame.drop(columns="p95_ns").to_dict("records") == [
        {"kernel": "gemm", "kind": "compute", "n": 2, "total_ns": 40, "p50_ns": 20.0,
         "max_ns": 30, "share": 0.5},
        {"kernel": "nccl", "kind": "communication", "n": 1, "total_ns": 30, "p50_ns": 30.0,
         "max_ns": 30, "share": 0.375},
        {"kernel": "copy", "kind": "memory", "n": 1, "total_ns": 10, "p50_ns": 10.0,
         "max_ns": 10, "share": 0.125},
    ]  # fmt: skip


def linked(trace: RankTrace, ops: str, scopes: str) -> RankTrace:
    """The trace with an operator and an annotation per kernel; "-" for none."""
    names = list(trace.names)

    def codes(words: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        for word in words.split():
            if word != "-" and word not in names:
                names.append(word)
        return np.array(
            [-1 if word == "-" else names.index(word) for word in words.split()], dtype=np.int32
        )

    op, scope = codes(ops), codes(scopes)
    origins = Origins(op, scope, np.full(len(op), -1, dtype=np.int32))
    return dataclasses.replace(trace, names=tuple(names), origins=origins)


def test_by_operator_and_annotation() -> None:
    trace = linked(
        synth.rank(0, "K 0-10 a | K 10-30 b | C 30-60 c | K 60-100 d", steps="0-100"),
        "mm mm - add",
        "attention mlp mlp -",
    )
    result = analyze(synth.run(trace))
    per_op = result.per_op.set_index("op").total_ns.to_dict()
    assert per_op == {"add": 40, "mm": 30, NOT_LINKED: 30}
    assert result.per_op.set_index("op").comm_ns.to_dict() == {"add": 0, "mm": 0, NOT_LINKED: 30}
    per_scope = result.per_scope.set_index("scope").total_ns.to_dict()
    assert per_scope == {"mlp": 50, NO_SCOPE: 40, "attention": 10}
    assert result.unlinked_ratio == pytest.approx(0.3)
    assert result.by_name_ratio == pytest.approx(1.0)


@given(
    st.lists(st.tuples(st.sampled_from("KCM"), st.integers(0, 90), st.integers(1, 30)), min_size=1)
)
def test_each_table_sums_to_the_whole(rows: list[tuple[str, int, int]]) -> None:
    text = " | ".join(f"{kind} {start}-{start + ns} n{ns % 3}" for kind, start, ns in rows)
    result = analyze(synth.run(synth.rank(0, text, steps="0-100")))
    whole = sum(ns for *_, ns in rows)
    for frame in (result.per_kernel, result.per_op, result.per_scope):
        assert frame.total_ns.sum() == whole
        assert frame.n.sum() == len(rows)
        assert frame.share.sum() == pytest.approx(1)
    parts = result.per_op[["compute_ns", "comm_ns", "memory_ns"]].sum(axis=1)
    assert (parts == result.per_op.total_ns).all()


def many(rank: int, factor: float, spread: float = 0.02) -> RankTrace:
    """A rank with 40 kernels of about 1000 ns in one step."""
    noise = np.random.default_rng(rank).normal(1, spread, 40)
    starts = np.arange(40) * 2000
    ends = starts + (1000 * factor * noise).astype(int)
    text = " | ".join(f"K {low}-{high} gemm" for low, high in zip(starts, ends, strict=True))
    return synth.rank(rank, text, steps="0-80000")


def test_a_slow_rank_is_named_and_its_twin_is_silent() -> None:
    slow = analyze(synth.run(*(many(rank, 1.2 if rank == 2 else 1.0) for rank in range(4))))
    (finding,) = slow.findings
    assert finding.ranks == (2,)
    assert finding.lost_ns_per_step == pytest.approx(40 * 200, rel=0.1)
    ratio = slow.per_rank.set_index("rank").slowdown
    assert ratio[2] == pytest.approx(1.2, rel=0.03)
    assert analyze(synth.run(*(many(rank, 1.0) for rank in range(4)))).findings == ()


def test_stages_are_not_held_against_each_other() -> None:
    base = {"pp": 2, "dp": 2, "layers": 4, "steps": 3, "stage_factors": [1.0, 1.5]}
    assert analyze(simulate.load(simulate.made(base))).findings == ()
    slow = simulate.made({**base, "faults": ["slow-rank:3:1.3"]})
    (finding,) = analyze(simulate.load(slow)).findings
    assert finding.ranks == (3,)


def test_kernels_that_run_differently_often_are_not_compared() -> None:
    run = synth.run(
        synth.rank(0, "K 0-10 a | K 20-30 a", steps="0-100"),
        synth.rank(1, "K 0-40 a", steps="0-100"),
    )
    assert analyze(run).per_rank.slowdown.isna().all()


def test_kernels_outside_steps_are_counted_not_summed() -> None:
    result = analyze(synth.run(synth.rank(0, "K 0-10 a | K 150-160 a", steps="0-100")))
    assert (result.outside_count, int(result.per_kernel.n.sum())) == (1, 1)


def test_no_device_work_is_refused() -> None:
    with pytest.raises(MissingDataError, match="record with"):
        analyze(synth.run(synth.rank(0, "", steps="0-100")))
