"""Pages of users: by file, by entry point, and what is said of a broken one."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.report import made
from tracekit.core.errors import UsageError
from tracekit.report import html, page
from tracekit.report.page import page_from, pages

DOCS = Path(__file__).parents[2] / "docs/dashboards.md"


def example() -> str:
    found = re.search(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert found
    return found[1]


def test_the_documented_example_joins_the_report(tmp_path: Path) -> None:
    path = tmp_path / "my_page.py"
    path.write_text(example(), encoding="utf-8")
    assert len([line for line in example().splitlines() if line.strip()]) <= 33
    own = page_from(path)
    shown = html.render([made.slow()], extra=[own])
    assert 'id="longest"' in shown
    assert "The longest step takes 10.0\u00a0ms, on rank 0." in shown
    titles = [item.title for item in pages([own])]
    assert titles.index("Longest steps") < titles.index("Conditions")
    assert "longest" not in {item.slug for item in pages()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PAGE = 1", "PAGE must be a Page"),
        ("", "PAGE must be a Page"),
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def", "SyntaxError"),
        (
            "from tracekit.report.page import RunPage\nPAGE = RunPage('A', 'a b', lambda s: (), 1)",
            "the slug 'a b' must be of",
        ),
    ],
)
def test_a_broken_page_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        page_from(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_no_module(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Python module"):
        page_from(tmp_path / "absent.py")


def test_a_slug_is_taken_once() -> None:
    twin = page.RunPage("Mine", "overview", lambda section: (), 1)
    with pytest.raises(UsageError, match="two pages are called 'overview'"):
        pages([twin])


def test_installed_packages_add_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("x", "tracekit.dashboards.conditions:PAGE", page.ENTRY_POINTS)
    monkeypatch.setattr(page, "entry_points", lambda group: [point])
    page._installed.cache_clear()
    try:
        with pytest.raises(UsageError, match="'conditions'"):
            pages()
    finally:
        page._installed.cache_clear()


def test_the_package_is_the_function_of_the_same_name(tmp_path: Path) -> None:
    import tracekit

    for _ in range(2):  # importing the package must not hide the function
        path = tracekit.report([made.run()], tmp_path / "report.html")
        assert path.read_text("utf-8").startswith("<!doctype html>")
