"""Each planted fault is found again, live, from the run folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.profile.raw import record
from tracekit.analysis.stragglers import StragglersResult, analyze

pytestmark = pytest.mark.slow

USUAL = {"hidden": 128, "seq": 64, "steps": 8, "warmup": 2, "layers": 2}
SLEEPING = {"compute": "sleep", "layer_ms": 10.0, "microbatches": 4, "layers": 2, "steps": 6}


def found(tmp_path: Path, workload: str, fault: str | None, **options: Any) -> StragglersResult:
    faults = (fault,) if fault else ()
    record(tmp_path / "run", workload, faults=faults, **options)
    return analyze(tracekit.load(tmp_path / "run"))


@pytest.mark.parametrize("workload", ["tp", "dp"])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("delay:1:60", {"host"}),
        ("gc:1:80:every=2", {"gc"}),
        ("dataloader:1:60", {"dataloader"}),
        # It is slowed by pauses between its operators: the trace shows a late host, and
        # operators that take longer with cold caches.
        ("slow-rank:1:3", {"host", "compute", None}),
    ],
)
def test_a_rank_and_why(tmp_path: Path, workload: str, fault: str, cause: set[str | None]) -> None:
    result = found(tmp_path, workload, fault, **USUAL)
    assert (result.culprit_kind, result.culprit_ranks) == ("rank", (1,))
    assert result.cause in cause


def test_a_stage(tmp_path: Path) -> None:
    result = found(tmp_path, "pp", "slow-stage:1:2", **SLEEPING)
    assert result.culprit_ranks == (1,)
    assert result.cause == "compute"


def test_a_link(tmp_path: Path) -> None:
    result = found(tmp_path, "pp", "slow-link:0-1:15", **SLEEPING)
    assert (result.culprit_kind, result.culprit_ranks) == ("link", (0, 1))


def test_a_hot_expert(tmp_path: Path) -> None:
    result = found(tmp_path, "ep", "hot-expert:0:0.5", **{**USUAL, "hidden": 256, "seq": 128})
    assert result.culprit_ranks == (0,)


@pytest.mark.parametrize("workload", ["tp", "dp", "pp", "ep"])
def test_nobody_without_a_fault(tmp_path: Path, workload: str) -> None:
    assert found(tmp_path, workload, None, **USUAL).culprit_kind in ("none", "diffuse")
