from __future__ import annotations

import sys
import types

import pytest

from tests.report import made
from tests.report.test_html import Document
from tracekit import api
from tracekit.report import notebook


def test_a_run_shows_its_overview() -> None:
    shown = notebook.run_html(made.run())
    assert "A step takes 10.0 ms" in shown
    assert "What to fix first" in shown
    assert 'class="role-compute" style="width: ' in shown


def test_a_result_shows_numbers_with_units() -> None:
    analyzer = made.analyzers()["breakdown"]
    shown = notebook.result_html(analyzer, analyzer.analyze(made.run()))
    assert "Where does each step" in shown
    assert "step_p50_ns" in shown
    assert "10.0 ms" in shown
    assert "10 of" in shown or "10 rows" in shown


def test_names_stay_text_and_nothing_runs() -> None:
    run = made.hostile().run
    for shown in (
        notebook.run_html(run),
        *(notebook.result_html(item, item.analyze(run)) for name, item in
          made.analyzers().items() if name in ("breakdown", "overlap")),
    ):  # fmt: skip
        tags = Document(shown).tags
        assert {tag for tag, _ in tags}.isdisjoint({"script", "img", "a", "iframe", "b"})
        assert not any(name.startswith("on") for _, attrs in tags for name in attrs)
        assert "\u202e" not in shown


def test_results_are_rich_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    result = api.analyze(made.run(), "overlap")
    assert "How much communication" in result._repr_html_()
