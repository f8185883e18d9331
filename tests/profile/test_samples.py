"""The recorded samples are whole, small and tell what was planted in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.profile.raw import RawRun

SAMPLES = Path(__file__).parents[2] / "sample_traces"
PLANTED = {
    "tp2": [],
    "tp2_delay": [("delay", 1)],
    "pp4_1f1b": [],
    "ep4_hot": [("hot-expert", None)],
    "dp2tp2_delay": [("delay", 2)],
    "pp4_1f1b_sleep": [],
    "pp4_zbv_sleep": [],
    "pp4_slow_stage": [("slow-stage", None)],
    "pp2_slow_link": [("slow-link", None)],
}


@pytest.mark.parametrize("name", PLANTED)
def test_sample(name: str) -> None:
    run = RawRun(SAMPLES / name)
    truth = [(fault["kind"], fault.get("rank")) for fault in run.manifest.truth]
    assert truth == PLANTED[name]
    steps = run.manifest.steps
    assert steps is not None
    for file in run.manifest.files:
        assert (run.folder / file.path).stat().st_size < 1_000_000
        assert len(run.spans(file.rank, "ProfilerStep#")) == steps.active
        assert len(run.records(file.rank)["collectives"]) == len(
            [
                span
                for span in run.spans(file.rank, "c10d::")
                if span.name not in ("c10d::send", "c10d::recv_")
            ]
        )


def test_the_readme_gives_the_command_of_every_sample() -> None:
    text = (SAMPLES / "README.md").read_text()
    folders = {path.name for path in SAMPLES.iterdir() if (path / "run.json").exists()}
    assert folders == set(PLANTED)
    for name in folders:
        assert RawRun(SAMPLES / name).manifest.conditions["command"] in text
