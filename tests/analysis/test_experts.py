"""Experts: splits by hand, exact recovery from simulated routing, missing ranks, refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests import synth
from tracekit import simulate
from tracekit.analysis.experts import analyze
from tracekit.core.errors import MissingDataError
from tracekit.core.finding import Confidence
from tracekit.core.run import Run
from tracekit.core.topology import Group, Topology
from tracekit.core.trace import ExpertLoads, RankTrace, Splits
from tracekit.io.load import load

Exchange = tuple[Sequence[int], Sequence[int]]  # rows sent to, and received from, each member


def exchanging(trace: RankTrace, found: Sequence[Exchange]) -> RankTrace:
    """The trace with its communication kernels made all_to_alls with these splits."""
    names = (*trace.names, "all_to_all")
    calls = dataclasses.replace(
        trace.calls, op_id=np.full(len(trace.calls), len(names) - 1, dtype=np.int32)
    )
    members = len(found[0][0])
    splits = Splits(
        call=np.repeat(np.arange(len(found), dtype=np.int32), members),
        member=np.tile(np.arange(members, dtype=np.int32), len(found)),
        sent=np.array([rows for sent, _ in found for rows in sent], dtype=np.int64),
        received=np.array([rows for _, got in found for rows in got], dtype=np.int64),
    )
    groups = (Group("7", "mesh_ep", tuple(range(members)), "ep"),)
    return dataclasses.replace(trace, names=names, calls=calls, splits=splits, groups=groups)


def moe(matrix: Sequence[Sequence[int]], ns_per_row: int = 10, steps: int = 3) -> Run:
    """A step is dispatch, experts' work in proportion to their rows, combine."""
    rows = np.array(matrix)
    traces = []
    for rank in range(len(rows)):
        work = int(rows[:, rank].sum()) * ns_per_row
        pieces = []
        for start in np.arange(steps) * 10_000:
            pieces.append(f"C {start}-{start + 10} @ep")
            pieces.append(f"K {start + 10}-{start + 10 + work} experts")
            pieces.append(f"C {start + 10 + work}-{start + 5000} @ep")
        windows = " ".join(f"{start}-{start + 10_000}" for start in np.arange(steps) * 10_000)
        trace = synth.rank(rank, " | ".join(pieces), steps=windows)
        there = (rows[rank].tolist(), rows[:, rank].tolist())
        traces.append(exchanging(trace, [there, there[::-1]] * steps))
    return synth.run(*traces)


def test_balance_by_hand() -> None:
    result = analyze(moe([[10, 30], [10, 50]]))
    first = result.per_layer[result.per_layer.step == 0]
    assert first[["layer", "rank", "tokens", "work_ns"]].to_numpy().tolist() == [
        [0, 0, 20, 200],
        [0, 1, 80, 800],
    ]
    assert first.max_over_mean.tolist() == [1.6, 1.6]
    # Ten ns a row, the busiest is 30 rows above the mean.
    assert first.lost_ns.tolist() == [300.0, 300.0]
    assert result.traffic.to_numpy().tolist() == [[0, 0, 30], [0, 1, 90], [1, 0, 30], [1, 1, 150]]
    assert (result.source, result.slope_ns, result.lost_ns_per_step) == ("splits", 10.0, 300.0)
    assert result.persistence.to_dict("records") == [
        {"layer": 0, "group": "0–1", "rank": 1, "share": 1.0, "n": 3}
    ]
    (finding,) = result.findings
    assert finding.ranks == (1,)
    assert (finding.lost_ns_per_step, finding.confidence) == (300, Confidence.HIGH)


def test_an_even_routing_is_silent() -> None:
    result = analyze(moe([[25, 25], [25, 25]]))
    assert (result.max_over_mean, result.findings) == (1.0, ())
    assert result.per_layer.lost_ns.tolist() == [0.0] * 6


def test_ranks_that_tell_differently_are_left_out() -> None:
    run = moe([[10, 30], [10, 50]])
    splits = run.traces[1].splits
    received = splits.received.copy()
    received[0] = 31  # of the first dispatch
    sent = splits.sent.copy()
    sent[2] = 31  # its combine agrees on this rank
    wrong = dataclasses.replace(
        run.traces[1], splits=dataclasses.replace(splits, received=received, sent=sent)
    )
    result = analyze(dataclasses.replace(run, traces=(run.traces[0], wrong)))
    assert result.inconsistent_count == 1
    assert set(result.per_layer.step) == {1, 2}


def test_what_a_missing_rank_gets_follows_from_the_others() -> None:
    run = moe([[10, 30, 20], [10, 40, 10], [5, 15, 40]])
    here = dataclasses.replace(run, traces=run.traces[:2], topology=Topology(3))
    frame = analyze(here).per_layer
    first = frame[frame.step == 0]
    assert first.tokens.tolist() == [25, 85, 70]
    assert first.inferred.tolist() == [False, False, True]


def test_what_cannot_be_known_is_null() -> None:
    run = moe([[10, 30, 20], [10, 40, 15], [5, 15, 40]])  # ranks send differently much
    here = dataclasses.replace(run, traces=run.traces[:2], topology=Topology(3))
    first = analyze(here).per_layer.query("step == 0")
    assert first.tokens.isna().tolist() == [False, False, True]


ZIPF = simulate.made(
    {"ep": 4, "layers": 3, "experts": 16, "routing": "zipf:1.1", "steps": 4, "seed": 3,
     "microbatches": 2}
)  # fmt: skip


@pytest.mark.parametrize("missing", [(), (2,)])
@pytest.mark.parametrize("comm_args", ["full", "operator"])
def test_zipf_routing_is_recovered_exactly(missing: tuple[int, ...], comm_args: str) -> None:
    changes = {"missing": missing, "comm_args": comm_args}
    spec = dataclasses.replace(ZIPF, **changes)  # type: ignore[arg-type]
    result = analyze(simulate.load(spec))
    truth = simulate.truth(spec)["experts"]
    got = {(r.layer, r.step, r.rank): int(r.tokens) for r in result.per_layer.itertuples()}
    assert got == {(r["layer"], r["step"], r["rank"]): r["tokens"] for r in truth["tokens"]}
    assert result.inconsistent_count == 0


def test_the_recorded_hot_expert_is_found() -> None:
    result = analyze(load(Path(__file__).parents[2] / "sample_traces/ep4_hot"))
    assert set(result.balance.top_rank) == {2}
    assert result.persistence["rank"].tolist() == [2]
    assert result.findings[0].ranks == (2,)
    assert result.max_over_mean > 1.5
    hottest = result.per_expert.loc[result.per_expert.share.idxmax()]
    assert (hottest.expert, hottest["rank"]) == (5, 2)
    assert hottest.share == pytest.approx(0.4, abs=0.01)


def test_cost_of_imbalance_is_what_was_planted() -> None:
    result = analyze(simulate.load(ZIPF))
    truth = {(r["layer"], r["step"]): r["lost_ns"] for r in simulate.truth(ZIPF)["experts"]["lost"]}
    for row in result.balance[result.balance.counted].itertuples():
        # The truth holds the weight gradients too, which run apart from the dispatch.
        assert row.lost_ns == pytest.approx(truth[row.layer, row.step] * 2 / 3, rel=0.35)


def test_pipelined_layers_are_numbered_over_the_model() -> None:
    spec = simulate.made({"ep": 2, "pp": 2, "layers": 4, "routing": "zipf:1", "steps": 3})
    result = analyze(simulate.load(spec))
    truth = simulate.truth(spec)["experts"]["tokens"]
    got = {(r.layer, r.step, r.rank): int(r.tokens) for r in result.per_layer.itertuples()}
    assert got == {(r["layer"], r["step"], r["rank"]): r["tokens"] for r in truth}


def test_counters_serve_where_no_splits_are() -> None:
    traces = []
    for rank, tokens in enumerate(([10, 20], [5, 65])):
        loads = ExpertLoads(
            np.full(2, 50, dtype=np.int64), np.zeros(2, dtype=np.int32),
            np.arange(2 * rank, 2 * rank + 2, dtype=np.int32), np.array(tokens, dtype=np.int64),
        )  # fmt: skip
        traces.append(dataclasses.replace(synth.rank(rank, "K 0-90", steps="0-100"), loads=loads))
    result = analyze(synth.run(*traces))
    assert result.source == "counters"
    assert result.per_layer.tokens.tolist() == [30, 70]
    assert result.per_expert.set_index("expert").tokens.to_dict() == {0: 10, 1: 20, 2: 5, 3: 65}
    assert "expert 3 on rank 1 65 %" in result.findings[0].title
    assert result.lost_ns_per_step is None
    assert result.findings[0].confidence is Confidence.LOW


def test_grouped_products_are_the_last_resort_and_marked() -> None:
    run = synth.run(
        synth.rank(0, "K 0-20 grouped_gemm_kernel", steps="0-100"),
        synth.rank(1, "K 0-60 grouped_gemm_kernel", steps="0-100"),
    )
    result = analyze(run)
    assert result.source == "grouped-gemm"
    assert result.per_layer.tokens.isna().all()
    assert result.per_layer.work_ns.tolist() == [20, 60]
    assert result.lost_ns_per_step == 20.0
    assert result.findings[0].confidence is Confidence.LOW


def test_without_experts_the_question_is_refused() -> None:
    with pytest.raises(MissingDataError, match="no exchange of tokens"):
        analyze(synth.run(synth.rank(0, "K 0-90 gemm", steps="0-100")))


def test_a_cpu_jobs_counters_and_splits_are_those_of_the_routing(tmp_path: Path) -> None:
    spec = simulate.made(
        {
            "ep": 2,
            "dp": 2,
            "backend": "gloo",
            "faults": ["hot-expert:3:0.4"],
            "layers": 2,
            "steps": 3,
        }
    )
    run = load(simulate.simulate(spec, tmp_path / "run"))
    truth = simulate.truth(spec)["experts"]
    result = analyze(run)
    got = {(r.layer, r.step, r.rank): int(r.tokens) for r in result.per_layer.itertuples()}
    assert got == {(r["layer"], r["step"], r["rank"]): r["tokens"] for r in truth["tokens"]}
    assert result.inconsistent_count == 0
    assert int(result.per_expert.loc[result.per_expert.share.idxmax(), "expert"]) == 3
    # Dispatch and combine, forward and backward: each moves every counted token once.
    moved = sum(int(trace.splits.received.sum()) for trace in run.traces)
    assert moved == 4 * sum(int(trace.loads.tokens.sum()) for trace in run.traces) > 0
