"""The pattern that keeps a new analyzer at one file, one page and one test."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import tracekit
from tracekit.analysis._contract import analyzers
from tracekit.report.page import Page, pages

ROOT = Path(__file__).parents[2]
NAMES = sorted(
    path.stem for path in (ROOT / "tracekit/analysis").glob("*.py") if path.stem[0] != "_"
)


@pytest.mark.parametrize("name", NAMES)
def test_every_analyzer_has_a_page_a_test_and_declared_results(name: str) -> None:
    analyzer = analyzers()[name]
    assert analyzer.question.endswith("?")
    shown = [page.analyzer.name for page in pages() if isinstance(page, Page)]
    assert name in shown, f"dashboards/ has no page whose analyzer is {name!r}"
    assert (ROOT / f"tests/analysis/test_{name}.py").is_file(), f"{name} has no test"
    fields = {item.name for item in dataclasses.fields(analyzer.result)}
    declared = {*analyzer.tables, *(column.name for column in analyzer.scalars), "findings"}
    assert fields == declared, "each field of a result is a declared table, scalar or findings"
    columns = [column for schema in analyzer.tables.values() for column in schema.columns]
    for column in (*columns, *analyzer.scalars):
        assert column.description.endswith("."), f"{name}.{column.name}: one sentence"
        suffix = column.name.rpartition("_")[2]
        if suffix in {"ns", "bytes", "ratio", "gbps"}:
            assert column.unit == suffix, f"{name}.{column.name} is in {column.unit!r}"


def test_public_names_are_few_sorted_and_real() -> None:
    assert list(tracekit.__all__) == sorted(tracekit.__all__)
    assert len(tracekit.__all__) <= 15
    for name in tracekit.__all__:
        assert getattr(tracekit, name) is not None
    with pytest.raises(AttributeError, match="no attribute"):
        tracekit.nonsense  # noqa: B018
