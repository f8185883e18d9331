"""``compare``, ``scaling`` and the exports of ``analyze``: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit.cli.app import run

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run([str(item) for item in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_planted_delay_is_a_regression(capsys: pytest.CaptureFixture[str]) -> None:
    pair = (SAMPLES / "tp2", SAMPLES / "tp2_delay")
    code, out, err = call(capsys, "compare", *pair, "--fail-on", "regression")
    assert code == 10
    assert "regression in" in err
    assert max(map(len, out.splitlines())) <= 100
    assert call(capsys, "compare", *pair)[0] == 0


def test_a_run_does_not_regress_against_itself(capsys: pytest.CaptureFixture[str]) -> None:
    same = (SAMPLES / "ep4_hot", SAMPLES / "ep4_hot")
    assert call(capsys, "compare", *same, "--fail-on", "regression")[0] == 0


def test_unequal_conditions_end_with_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    pair = (SAMPLES / "tp2", SAMPLES / "dp2tp2_delay")
    code, out, err = call(capsys, "compare", *pair)
    assert code == 4
    assert "parallel.dp" in err
    assert "workload.hidden" in out
    code, out, _ = call(capsys, "compare", *pair, "--force")
    assert code == 0
    assert out.startswith("Under unequal conditions (forced): ")


def test_json_and_markdown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pair = (SAMPLES / "tp2", SAMPLES / "tp2_delay")
    document = json.loads(call(capsys, "compare", *pair, "--json")[1])
    assert document["schema"] == "tracekit.compare/1"
    assert document["comparable"] is True
    rows = document["tables"]["verdicts"]["rows"]
    assert rows[0]["metric"] == "step"
    assert rows[0]["difference_ns"] > 0
    target = tmp_path / "comment.md"
    assert call(capsys, "compare", *pair, "--md", "-o", target)[0] == 0
    assert "| time per step | base (ms) |" in target.read_text("utf-8")
    assert call(capsys, "compare", *pair, "--md", "--json")[0] == 2


def test_scaling_names_what_is_not_held(capsys: pytest.CaptureFixture[str]) -> None:
    runs = (SAMPLES / "tp2", SAMPLES / "dp2tp2_delay")
    code, _, err = call(capsys, "scaling", *runs)
    assert code == 4
    assert "workload.hidden" in err
    code, out, _ = call(capsys, "scaling", *runs, "--force", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["schema"] == "tracekit.scaling/1"
    assert [row["world_size"] for row in document["tables"]["per_run"]["rows"]] == [2, 4]
    assert call(capsys, "scaling", SAMPLES / "tp2", SAMPLES / "tp2_delay")[0] == 4


def test_analyze_writes_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = call(capsys, "analyze", SAMPLES / "tp2", "overlap", "--csv", tmp_path / "csv")
    assert code == 0
    assert out == ""
    assert "tables to" in err
    assert (tmp_path / "csv/overlap.per_step.csv").is_file()
    code, out, _ = call(capsys, "analyze", SAMPLES / "tp2", "overlap", "--md")
    assert out.startswith("## tp2\n")


PAGE = """
from tracekit.report.blocks import Answer
from tracekit.report.page import RunPage
PAGE = RunPage("Mine", "mine", lambda section: (Answer("Mine it is."),), 45)
"""


def test_a_report_takes_a_page_and_leaves_plotly_beside(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "mine.py"
    page.write_text(PAGE, encoding="utf-8")
    target = tmp_path / "report.html"
    options = ("-o", target, "--page", page, "--plotlyjs", "directory")
    assert call(capsys, "report", SAMPLES / "tp2", *options)[0] == 0
    assert "Mine it is." in target.read_text("utf-8")
    assert target.stat().st_size < 1_500_000
    assert len(list(tmp_path.glob("plotly-*.min.js"))) == 1
    page.write_text("PAGE = None", encoding="utf-8")
    code, _, err = call(capsys, "report", SAMPLES / "tp2", "--page", page)
    assert code == 2
    assert "PAGE must be" in err
