"""The whole way, live: profile on this machine, load, analyse, and find what was planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tracekit.cli.app import run as command

pytest.importorskip("torch")

DELAY_MS = 40


def _exposed_by_rank(folder: Path, out: Path) -> dict[int, float]:
    """Least exposed communication of each rank's counted steps, in ms, from the JSON.

    The least: what else runs on the machine can only add to a step.
    """
    assert command(["analyze", str(folder), "overlap", "--json", "-o", str(out)]) == 0
    document: dict[str, Any] = json.loads(out.read_text())
    rows = document["analyses"]["overlap"]["tables"]["per_step"]["rows"]
    times: dict[int, list[int]] = {}
    for row in rows:
        if row["counted"]:
            times.setdefault(row["rank"], []).append(row["exposed_ns"])
    return {rank: min(values) / 1e6 for rank, values in times.items()}


def test_a_delayed_rank_shows_as_the_others_communication(tmp_path: Path) -> None:
    small = ["--layers", "2", "--hidden", "128", "--steps", "4", "--warmup", "2"]
    exposed = {}
    for name, fault in (("clean", []), ("late", ["--fault", f"delay:1:{DELAY_MS}"])):
        folder = tmp_path / name
        assert command(["profile", "tp", "-o", str(folder), *small, *fault]) == 0
        exposed[name] = _exposed_by_rank(folder, tmp_path / f"{name}.json")
    grown = {rank: exposed["late"][rank] - exposed["clean"][rank] for rank in (0, 1)}
    # Rank 0 waits for rank 1, which itself waits for no one. Half the delay is the margin
    # for a busy machine; the twin shows how little there is without a fault.
    assert grown[0] > DELAY_MS / 2
    assert grown[0] > grown[1] + DELAY_MS / 2
    assert abs(exposed["clean"][0] - exposed["clean"][1]) < DELAY_MS / 2
    late = tracekit.load(tmp_path / "late")
    assert late.truth[0]["kind"] == "delay"
    assert late.topology.axes == {"tp": 2}
    assert late.overlap().per_axis.axis[0] == "tp"
    breakdown = late.breakdown().per_step
    parts = breakdown[["compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"]]
    assert (parts.sum(axis=1) == breakdown.step_ns).all()
    assert "unmatched-records" not in {note.code for note in late.diagnostics}


@pytest.mark.slow
def test_demo_ends_in_a_report_and_three_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    assert command(["demo", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert [line[:2] for line in text.splitlines() if line[:1].isdigit()] == ["1.", "2.", "3."]
    report = out / "report.html"
    assert str(report) in text
    html = report.read_text()
    for name in ("tp2", "pp2", "ep2"):
        assert name in html
        assert (out / name / "run.json").is_file()
    # A second demo replaces the first.
    assert command(["demo", "-o", str(out)]) == 0
