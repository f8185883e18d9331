"""Properties of any described job, drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit import simulate
from tracekit.core.errors import UsageError
from tracekit.core.schedule import SCHEDULES
from tracekit.core.trace import KernelKind
from tracekit.simulate import Spec, engine
from tracekit.simulate.engine import Do, Timeline

DEGREES = st.sampled_from([1, 1, 2, 3])
JOBS = st.fixed_dictionaries(
    {
        "tp": DEGREES,
        "pp": DEGREES,
        "dp": DEGREES,
        "fsdp": st.sampled_from([1, 1, 2]),
        "ep": st.sampled_from([1, 1, 2]),
        "schedule": st.sampled_from(SCHEDULES),
        "microbatches": st.sampled_from([2, 4, 6]),
        "steps": st.sampled_from([1, 2]),
        "seed": st.integers(0, 5),
        "ranks_per_host": st.sampled_from([2, 4, 64]),
        "sequence_parallel": st.booleans(),
        "norm": st.booleans(),
        "graph": st.booleans(),
        "coalesced": st.booleans(),
        "launch_us": st.sampled_from([0.0, 5.0, 150.0]),
        "contention": st.sampled_from([{}, {"*": 1.4}]),
        "routing": st.sampled_from(["balanced", "zipf:1.1", "hot:3"]),
        "faults": st.sampled_from([(), ("delay:0:3",), ("slow-rank:0:1.5", "gc:0:2:every=2")]),
        "offset_ms": st.sampled_from([0.0, 50.0]),
        "cut_steps": st.sampled_from([0.0, 0.0, 0.4]),
    }
)


def _checked(fields: dict[str, Any]) -> Spec | None:
    try:
        return simulate.made(fields)
    except UsageError:  # the draw contradicts itself, and was told so
        return None


@settings(max_examples=40, deadline=None)
@given(JOBS)
def test_any_job_runs_in_order(fields: dict[str, Any]) -> None:
    spec = _checked(fields)
    if spec is None:
        return
    timeline = engine.run(spec)
    for lane in timeline.lanes:
        assert (lane.launched >= lane.launch).all()
        assert (np.diff(lane.launch, axis=0) >= 0).all()
        assert (lane.end >= lane.start).all()
        _streams_in_order(lane)
    _collectives_end_together(timeline)


def _streams_in_order(lane: engine.Lane) -> None:
    # Of a coalesced kernel the last row stands for all.
    own = [number if op.batch < 2 else -1 for number, op in zip(lane.stream, lane.ops, strict=True)]
    stream = np.tile(own, len(lane.start) // len(lane.ops))
    for number in set(lane.stream) - {-1}:
        rows = np.flatnonzero(stream == number)
        assert (lane.start[rows][1:] >= lane.end[rows][:-1]).all()
        assert (lane.start[rows] >= lane.launched[rows]).all()


def _collectives_end_together(timeline: Timeline) -> None:
    job = timeline.job
    for lane in timeline.lanes:
        for row in range(len(lane.start)):
            op = lane.ops[row % len(lane.ops)]
            if op.do is not Do.COLLECTIVE or op.axis == "world":
                continue
            assert (lane.ready[row] == job.members_reduce(lane.start[row], op.axis)).all()
            # Ends differ by their noise alone.
            end = lane.end[row] - lane.costs.end_noise_ns[row]
            assert (end == job.members_reduce(end, op.axis)).all()


@settings(max_examples=15, deadline=None)
@given(JOBS)
def test_any_job_is_read_without_repair(fields: dict[str, Any]) -> None:
    spec = _checked(fields)
    if spec is None:
        return
    run = simulate.load(spec)
    damage = {"cut-file", "cut-event", "lost-event", "no-time", "negative-duration", "unpaired"}
    assert not damage & {note.code for note in run.diagnostics}
    assert run.ranks == tuple(range(spec.world_size))
    if not spec.cut_steps:
        for trace in run.traces:
            assert (trace.kernels.step >= 0).all()
            assert len(trace.steps) == spec.steps
            assert (trace.kernels.kind == KernelKind.COMPUTE).any()
