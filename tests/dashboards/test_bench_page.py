"""The page of a benchmark of the links."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.cli.app import run as command
from tracekit.dashboards import _bench
from tracekit.io import baseline
from tracekit.io.baseline import Baseline, Latency
from tracekit.report.blocks import Answer, Grid, KeyValues, Lines, Table

SAMPLE = Path(__file__).parents[2] / "sample_traces/tp2"


def latency(op: str, ranks: int, size: int, p50: int, n: int = 200) -> Latency:
    return Latency(
        op=op, backend="gloo", dtype="float32", group_size=ranks, ranks=list(range(ranks)),
        bytes=size, in_bytes=size, out_bytes=size, n=n, min_ns=p50 // 2, p50_ns=p50,
        p95_ns=2 * p50, p99_ns=3 * p50 if n >= 100 else None, max_ns=4 * p50,
        algbw_gbps=size / p50, busbw_gbps=size / p50, crowded=ranks > 2,
    )  # fmt: skip


ROWS = [
    latency(op, ranks, size, ranks * (10_000 + size // 4), n)
    for op in ("all_reduce", "send_recv")
    for ranks in (2, 4)
    for size, n in ((1024, 200), (65_536, 200), (1 << 20, 30))
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "links.json"
    conditions = {"hardware": {"cpu": "A CPU"}, "software": {"torch": "2.13"}}
    baseline.write(path, Baseline(conditions=conditions, rows=ROWS))
    return path


def test_a_panel_per_operation_and_a_line_per_group_size(file: Path) -> None:
    import msgspec

    found = baseline.read(file)
    sheet = _bench.sheet("links", msgspec.to_builtins(found.rows), found.conditions)
    answer, panels, numbers, conditions = sheet.blocks[:4]
    assert isinstance(answer, Answer)
    assert "all_reduce of 1.00 MiB over 2 ranks" in answer.sentence
    assert "more ranks than cores" in answer.detail
    assert isinstance(panels, Grid)
    assert isinstance(numbers, Table)
    assert isinstance(conditions, Grid)
    charts = [block for block in panels.blocks if isinstance(block, Lines)]
    assert [chart.title for chart in charts] == ["all_reduce", "send_recv"]
    assert len({chart.y_reach for chart in charts}) == 1
    for chart in charts:
        assert chart.x_log
        assert chart.y_log
        assert [line.label for line in chart.lines] == ["2 ranks", "4 ranks"]
    (first, _) = charts[0].lines
    assert first.x == (1024.0, 65_536.0, 1_048_576.0)
    assert first.y[0] == 20_512.0
    # Up to p99, and to p95 where 30 iterations give no more.
    assert first.high == (3 * 20_512.0, 3 * 52_768.0, 2 * 544_288.0)
    assert len(numbers.rows) == len(ROWS)
    assert "bus bandwidth" in [column.label for column in numbers.columns]
    assert any(("cpu", "A CPU") in b.items for b in conditions.blocks if isinstance(b, KeyValues))


def test_report_takes_a_benchmark_alone_and_beside_runs(file: Path, tmp_path: Path) -> None:
    alone, both = tmp_path / "alone.html", tmp_path / "both.html"
    assert command(["report", str(file), "-o", str(alone)]) == 0
    text = alone.read_text("utf-8")
    assert 'data-page="bench"' in text
    assert "64 KiB" in text
    assert "connect-src" in text
    assert command(["report", str(SAMPLE), str(file), "-o", str(both)]) == 0
    text = both.read_text("utf-8")
    assert 'data-page="bench"' in text
    assert 'data-page="overview"' in text


def test_an_empty_benchmark_says_so(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    baseline.write(path, Baseline())
    assert command(["report", str(path), "-o", str(tmp_path / "r.html")]) == 0
    assert "measured nothing" in (tmp_path / "r.html").read_text("utf-8")
