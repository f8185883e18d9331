from __future__ import annotations

from tests.report import made
from tracekit.report import text
from tracekit.report.blocks import Table, TableColumn

GOLDEN = """\
tp 2 · 2 × H100, 1 host · bf16 · tp 2 · 5 steps · 2 of 2 ranks

Overview
--------
A step takes 10.0 ms; 4.00 ms of it (40.0 %) are lost, most to idle time (2.50 ms). No rank stands
out.
Median of 4 steps, from 10.0 to 10.0 ms (±0 %) · 1 step left out: first of the capture

Where a step goes (mean over ranks)
  compute alone                  5.00 ms  50.0 %
  compute hiding communication   1.00 ms  10.0 %
  exposed communication          1.00 ms  10.0 %
  exposed memory copies         0.500 ms  5.00 %
  idle                           2.50 ms  25.0 %
"""


def test_the_answer_comes_first() -> None:
    assert text.render(made.section()).startswith(GOLDEN)


def test_pages_come_in_the_order_of_the_report() -> None:
    shown = text.render(made.section())
    titles = ("Overview", "What to fix first", "Breakdown", "Overlap", "Conditions")
    places = [shown.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)


def test_lines_fit_the_terminal() -> None:
    for section in (made.section(), made.large(), made.unavailable(), made.hostile()):
        assert max(map(len, text.render(section).splitlines())) <= 100


def test_a_slow_rank_is_named() -> None:
    shown = " ".join(text.render(made.large()).split())
    assert "Rank 5 on node0 computes 31.1 % longer than the median of the others." in shown


def test_long_tables_say_which_rows_they_show() -> None:
    shown = text.render(made.large())
    assert "8 of 100 rows: those with the highest share lost." in shown
    assert len(shown.splitlines()) < 230


def test_an_unavailable_analysis_says_why() -> None:
    shown = text.render(made.unavailable())
    assert "What could not be analysed" in shown
    assert "no communication in any trace" in " ".join(shown.split())


def test_time_outside_operators_is_not_called_idle_on_cpu() -> None:
    cpus = (made.trace(rank, device_type="cpu") for rank in range(2))
    shown = text.render(made.section(made.run(*cpus)))
    assert "unattributed" in shown
    assert " idle" not in shown
    assert "1.50 ms of it (15.0 %) are lost" in shown


def test_diagnostics_are_shown() -> None:
    shown = text.render(made.section(made.run(diagnostics=[made.WARNING])))
    assert "Reading these traces left 1 warning." in shown
    assert "3 events after the cut were dropped" in shown


def test_names_cannot_drive_the_terminal() -> None:
    shown = text.render(made.hostile())
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert "\u202e" not in shown


def test_wide_tables_give_way_and_say_so() -> None:
    names = tuple(TableColumn(f"name {n}", "", numeric=False) for n in range(6))
    numbers = tuple(TableColumn(f"number {n}", "ns") for n in range(8))
    row = (*("long words " * 8 for _ in names), *(1_234_567 * 10**n for n in range(8)))
    shown = text.render_blocks([Table("T", (*names, *numbers), (row,))])
    assert max(map(len, shown.splitlines())) <= 100
    assert "In --json and --csv as well: " in shown
    assert "number 7" in shown
