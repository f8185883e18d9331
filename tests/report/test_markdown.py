from __future__ import annotations

import re

from tests.report import made
from tracekit.report import markdown
from tracekit.report.blocks import Answer, Table, TableColumn


def test_the_answer_comes_first_and_pages_are_folded() -> None:
    shown = markdown.render(made.slow())
    lines = [line for line in shown.splitlines() if line]
    assert lines[0] == "## tp 2"
    assert lines[2].startswith("**A step takes 10.0 ms")
    assert "| finding | lost per step |" in shown
    assert shown.count("<details>") == shown.count("</details>") >= 3


def test_nothing_in_a_name_acts() -> None:
    shown = markdown.render(made.hostile())
    allowed = {"details", "/details", "summary", "/summary", "sub", "/sub", "!-- --"}
    assert set(re.findall(r"(?<!\\)<([^>]*)>", shown)) <= allowed
    assert "\u202e" not in shown
    text = "@octocat #12 https://x.y www.x.y ![a](b) `c` :tada: | <b> **d**"
    assert markdown.escape(text) == (
        "@<!-- -->octocat #<!-- -->12 https:\\//x.y www\\.x.y !\\[a\\](b) \\`c\\` \\:tada: "
        "\\| \\<b\\> \\*\\*d\\*\\*"
    )


def test_tables_keep_their_columns_whatever_a_cell_holds() -> None:
    columns = (TableColumn("name", "", numeric=False), TableColumn("time", "ns"))
    table = Table("T", columns, (("a|b\nc", 1_500_000), ("d", None)))
    shown = markdown.render_blocks((Answer("Yes.", ""), table))
    assert "| name | time (ms) |\n| --- | ---: |\n| a\\|b\\\\x0ac | 1.50 |\n| d | — |" in shown


def test_a_comment_has_room_for_it() -> None:
    big = Table("T", (TableColumn("n", "", numeric=False),), (("x" * 80,),) * 12)
    shown = markdown.render_blocks([big] * 200)
    assert len(shown.encode()) < 65_536
    assert "further parts do not fit" in shown
