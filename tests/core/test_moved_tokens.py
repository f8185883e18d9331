"""Who has too many tokens is told by what ranks exchange, not by who is slow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from tracekit import simulate
from tracekit.analysis.stragglers import analyze
from tracekit.core.run import Run
from tracekit.core.slowkernels import expert_groups, moved_bytes, with_most_tokens
from tracekit.core.timing import across
from tracekit.io.load import load

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def test_the_rank_with_the_hot_expert_moves_most() -> None:
    moved = [moved_bytes(trace) for trace in load(SAMPLES / "ep4_hot").traces]
    assert int(np.argmax(moved)) == 2
    assert moved[2] > 1.1 * np.mean(moved)


def test_without_sizes_or_exchanges_nothing_is_claimed() -> None:
    (trace, _) = load(SAMPLES / "tp2").traces
    assert np.isnan(moved_bytes(trace))


def with_equal_sizes(run: Run) -> Run:
    """The same run, as if every rank had exchanged equally much."""
    traces = []
    for trace in run.traces:
        sizes = np.full(len(trace.calls), 4096, dtype=np.int64)
        calls = dataclasses.replace(trace.calls, in_bytes=sizes, out_bytes=sizes.copy())
        traces.append(dataclasses.replace(trace, calls=calls))
    return dataclasses.replace(run, traces=tuple(traces))


def test_equal_exchanges_forbid_to_blame_the_experts() -> None:
    run = simulate.load(
        simulate.made({"ep": 4, "layers": 4, "steps": 8, "faults": ["hot-expert:1:0.5"]})
    )
    assert analyze(run).cause == "experts"
    assert "experts" not in set(analyze(with_equal_sizes(run)).per_rank.cause)


def test_who_has_far_more_tokens_than_its_group() -> None:
    for name, most in (("ep4_hot", {2}), ("tp2", set())):
        run = load(SAMPLES / name)
        matching, _ = across(run)
        groups = expert_groups(matching, run.traces, run.traces[0].steps.number)
        assert with_most_tokens(groups) == most
