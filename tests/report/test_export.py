from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from tests.report import made
from tracekit.core.errors import UsageError
from tracekit.report import export


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_csv_holds_every_table_findings_and_scalars(tmp_path: Path) -> None:
    section = made.section()
    files = export.write_csv(section, tmp_path / "out")
    names = {path.name for path in files}
    assert {"breakdown.per_step.csv", "overlap.per_axis.csv"} <= names
    assert {"findings.csv", "scalars.csv"} <= names
    assert names == {path.name for path in (tmp_path / "out").iterdir()}
    rows = read(tmp_path / "out/breakdown.per_step.csv")
    assert (rows[1]["rank"], rows[1]["step"], rows[1]["step_ns"]) == ("0", "11", "10000000")
    scalars = {(row["analysis"], row["name"]): row for row in read(tmp_path / "out/scalars.csv")}
    assert scalars["breakdown", "step_p50_ns"]["value"] == "10000000"
    assert scalars["breakdown", "step_p50_ns"]["unit"] == "ns"


def test_no_name_becomes_a_formula() -> None:
    frame = pd.DataFrame({"name": ["=1+1", "@x", "-y", "+z", "plain"], "n": [-1, 2, 3, 4, 5]})
    lines = export.csv_text(frame).splitlines()
    assert lines == ["name,n", "'=1+1,-1", "'@x,2", "'-y,3", "'+z,4", "plain,5"]


def test_hostile_names_survive(tmp_path: Path) -> None:
    export.write_csv(made.hostile(), tmp_path)
    assert any("K" * 10_000 in path.read_text("utf-8") for path in tmp_path.iterdir())


def test_what_is_not_measurable_is_empty(tmp_path: Path) -> None:
    export.write_csv(made.unavailable(), tmp_path)
    assert not (tmp_path / "overlap.per_step.csv").exists()
    assert (tmp_path / "breakdown.per_step.csv").exists()


def test_parquet_carries_units(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    export.write_parquet(made.hostile(), tmp_path)
    read_back = parquet.read_table(tmp_path / "breakdown.per_step.parquet")
    assert read_back.schema.field("step_ns").metadata[b"unit"] == b"ns"
    assert read_back.schema.field("step_ns").metadata[b"description"]
    assert read_back.to_pandas()["step_ns"].tolist() == [10 * made.MS] * 10


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'torch-tracekit\[parquet\]'"):
        export.write_parquet(made.section(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
