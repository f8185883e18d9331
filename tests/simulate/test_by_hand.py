"""Tiny jobs whose every time is computed by hand."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.simulate.jobs import ideal
from tracekit import simulate
from tracekit.core.run import Run
from tracekit.core.trace import Int64, KernelKind
from tracekit.simulate import engine
from tracekit.simulate.clock import BASE_NS, START_NS
from tracekit.simulate.contention import stretched

US = 1000


def _kernels(run: Run, rank: int, kind: KernelKind) -> list[tuple[float, float]]:
    """Start and end in us from the job's start."""
    trace = run.traces[rank]
    chosen = trace.kernels.kind == kind
    times = np.stack((trace.kernels.start_ns, trace.kernels.end_ns), axis=1)[chosen]
    return [tuple(row) for row in ((times - START_NS - BASE_NS) / US).tolist()]


def test_two_ranks_one_of_them_twice_as_slow() -> None:
    spec = ideal(tp=2, layers=1, steps=1, intra_latency_us=10, faults=("slow-rank:1:2",))
    run = simulate.load(spec)
    # Forward, sum, input gradients, sum, weight gradients; a sum takes 10 us once both are there.
    assert _kernels(run, 0, KernelKind.COMPUTE) == [(0, 100), (210, 310), (420, 520)]
    assert _kernels(run, 1, KernelKind.COMPUTE) == [(0, 200), (210, 410), (420, 620)]
    assert _kernels(run, 0, KernelKind.COMMUNICATION) == [(100, 210), (310, 420)]
    assert _kernels(run, 1, KernelKind.COMMUNICATION) == [(200, 210), (410, 420)]
    truth = simulate.truth(spec)
    assert truth["loss"]["clean_critical_ns"] == [320 * US]
    assert truth["steps"][0]["critical_ns"] == 620 * US
    assert truth["loss"]["slowdown"] == 620 / 320
    assert truth["collectives"]["wait_ns"] == [100 * US, 0, 100 * US, 0]
    assert truth["collectives"]["transfer_ns"] == [10 * US] * 4


def test_a_host_that_launches_slowly_starves_the_device() -> None:
    spec = ideal(layers=1, steps=1, launch_us=150, launch_latency_us=7)
    spec = dataclasses.replace(spec, forward_us=100.0)
    lane = engine.run(spec).lanes[0]
    rows = [place for place, op in enumerate(lane.ops) if op.do is engine.Do.COMPUTE]
    host = np.cumsum(lane.costs.host_ns[rows, 0])
    assert lane.start[rows, 0].tolist() == (host + 7 * US).tolist()


def test_a_pause_of_the_host_is_a_gap_on_the_device() -> None:
    spec = ideal(tp=2, layers=1, steps=2, faults=("delay:1:3:every=2",))
    truth = simulate.truth(spec)
    # The pause comes after the launch of the forward, before that of its sum.
    assert [step["critical_ns"] for step in truth["steps"]] == [3200 * US, 300 * US]
    assert truth["loss"]["lost_ns"] == [2900 * US, 0]


def test_gradients_are_summed_under_the_next_layer() -> None:
    spec = ideal(dp=2, layers=2, steps=1, intra_latency_us=50)
    run = simulate.load(spec)
    assert _kernels(run, 0, KernelKind.COMPUTE)[-1] == (500, 600)
    assert _kernels(run, 0, KernelKind.COMMUNICATION) == [(400, 450), (600, 650)]


def test_a_slow_link_is_slow_in_its_transfers_only() -> None:
    spec = ideal(pp=4, layers=4, microbatches=4, steps=1, faults=("slow-link:1-2:0.5",))
    calls = simulate.truth(spec)["collectives"]
    for rank, peer, transfer in zip(
        calls["rank"], calls["peer"], calls["transfer_ns"], strict=True
    ):
        assert transfer == (500 * US if {rank, peer} == {1, 2} else 0)


def test_clock_errors_are_added_to_what_a_rank_shows() -> None:
    spec = ideal(tp=2, layers=1, steps=1, offsets_ns=(0, -5000))
    run = simulate.load(spec)
    assert _kernels(run, 0, KernelKind.COMPUTE)[0] == (0, 100)
    assert _kernels(run, 1, KernelKind.COMPUTE)[0] == (-5, 95)


def _ns(*values: int) -> Int64:
    return np.array(values, dtype=np.int64)


def test_kernels_go_on_slower_while_communication_runs() -> None:
    begin, work = _ns(0, 0, 0, 0), _ns(100, 100, 100, 100)
    spans = [(_ns(200, 0, 50, -50), _ns(300, 1000, 1000, 50))]
    # Untouched; wholly under; the second half under; the first 25 of its work under.
    assert stretched(begin, work, spans, 2.0).tolist() == [100, 200, 150, 125]


def test_communication_on_two_streams_slows_down_once() -> None:
    begin, work = _ns(0), _ns(100)
    spans = [(_ns(0), _ns(60)), (_ns(20), _ns(80))]
    assert stretched(begin, work, spans, 2.0).tolist() == [140]


def test_a_rank_alone_pauses_too() -> None:
    truth = simulate.truth(ideal(layers=1, steps=1, faults=("delay:0:1",)))
    # The device works through its 300 us meanwhile.
    assert truth["loss"]["lost_ns"] == [700 * US]
