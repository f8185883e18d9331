"""No analysis raises on any real or recorded trace: each answers, or says why it cannot."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import REAL_TRACES
from tracekit.analysis._contract import analyzers, apply
from tracekit.io.load import load
from tracekit.report import text
from tracekit.report.json import clean
from tracekit.report.section import Section

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RECORDED = sorted(path for path in SAMPLES.iterdir() if (path / "run.json").is_file())
REAL = [*sorted(REAL_TRACES.rglob("*.json.gz")), REAL_TRACES / "two_ranks_v100"]
WHOLES = {
    "launch": ("idle_ns", ["host_bound_ns", "dependency_ns", "dataloader_ns", "gc_ns", "sync_ns",
                           "other_ns"]),
    "pipeline": ("bubble_ns", ["schedule_ns", "imbalance_ns", "p2p_ns", "jitter_ns"]),
}  # fmt: skip


def check(path: Path) -> None:
    run = load(path)
    outcomes = tuple(apply(analyzer, run) for analyzer in analyzers().values())
    for outcome in outcomes:
        if outcome.result is None:
            assert outcome.reason, outcome.analyzer.name
            assert len(outcome.reason) > 30
            continue
        for name, schema in outcome.analyzer.tables.items():
            assert tuple(outcome.tables[name].columns) == schema.names
        for column in outcome.analyzer.scalars:
            clean(getattr(outcome.result, column.name))
        if outcome.analyzer.name in WHOLES:
            whole, parts = WHOLES[outcome.analyzer.name]
            frame = outcome.tables["per_step" if whole == "idle_ns" else "per_stage"]
            known = frame[frame[parts].notna().any(axis=1)]
            assert (known[parts].fillna(0).sum(axis=1) == known[whole]).all()
    kernels = next(item for item in outcomes if item.analyzer.name == "kernels")
    if kernels.result is not None:
        sums = {
            int(kernels.tables[name].total_ns.sum())
            for name in ("per_kernel", "per_op", "per_scope")
        }
        assert len(sums) == 1
    assert text.render(Section(run, outcomes))
    assert all(
        isinstance(frame, pd.DataFrame) for item in outcomes for frame in item.tables.values()
    )


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_runs(path: Path) -> None:
    check(path)


@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parent.name}-{path.name[:20]}")
def test_real_traces(real_traces: Path, path: Path) -> None:
    assert real_traces
    check(path)


def test_two_ranks_without_stages_are_refused_with_a_reason(real_traces: Path) -> None:
    outcome = apply(analyzers()["pipeline"], load(real_traces / "two_ranks_v100"))
    assert outcome.reason is not None
    assert "no stage markers" in outcome.reason
