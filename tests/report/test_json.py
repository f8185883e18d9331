from __future__ import annotations

import json as encoder
from enum import Enum

import numpy as np
import pandas as pd
import pytest

from tests.report import made
from tracekit.report import json
from tracekit.report.section import Section


def test_the_document_has_the_promised_shape() -> None:
    run = made.run(diagnostics=[made.WARNING], world_size=3)
    document = json.document(made.section(run))
    assert document["schema"] == "tracekit.analysis/1"
    assert list(document) == ["schema", "run", "analyses", "findings"]
    about = document["run"]
    assert about["name"] == "tp 2"
    assert about["world_size"] == 3
    assert about["ranks"] == [0, 1]
    assert about["missing_ranks"] == [2]
    assert about["steps"] == [10, 11, 12, 13, 14]
    assert about["clock"] == []
    assert about["topology"]["axes"] == {"tp": 2}
    assert about["topology"]["groups"][0]["ranks"] == [0, 1]
    assert about["diagnostics"] == [
        {
            "code": "cut_file",
            "severity": "warning",
            "rank": 1,
            "count": 3,
            "message": "3 events after the cut were dropped",
        }
    ]


def test_tables_carry_their_columns_and_plain_numbers() -> None:
    table = json.document(made.section())["analyses"]["breakdown"]["tables"]["per_step"]
    assert {"name": "compute_ns", "unit": "ns"}.items() <= table["columns"][4].items()
    row = table["rows"][1]
    assert (row["rank"], row["step"], row["step_ns"]) == (0, 11, 10 * made.MS)
    parts = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
    assert sum(row[part] for part in parts) == row["step_ns"]
    assert row["counted"] is True


def test_findings_are_ranked_by_lost_time() -> None:
    lost = [item["lost_ns_per_step"] for item in json.document(made.section())["findings"]]
    assert lost == sorted(lost, reverse=True)
    assert lost


def test_an_unavailable_analysis_says_why() -> None:
    outcomes = json.document(made.unavailable())["analyses"]
    assert outcomes["overlap"]["status"] == "unavailable"
    assert "no communication" in outcomes["overlap"]["reason"]


def test_the_document_is_strict_json_and_always_the_same() -> None:
    section = made.hostile()
    once = encoder.dumps(json.document(section), allow_nan=False)
    again = Section(section.run, tuple(reversed(section.outcomes)))
    assert once == encoder.dumps(json.document(again), allow_nan=False)


class _Word(str, Enum):
    A = "a"


def test_clean() -> None:
    value = {
        "nan": float("nan"),
        "na": pd.NA,
        "inf": np.inf,
        "int": np.int32(3),
        "bool": np.bool_(True),
        "word": _Word.A,
        "list": (1, [np.float32(0.5)]),
        "set": frozenset({2, 1}),
        "array": np.arange(2),
    }
    assert json.clean(value) == {
        "nan": None,
        "na": None,
        "inf": None,
        "int": 3,
        "bool": True,
        "word": "a",
        "list": [1, [0.5]],
        "set": [1, 2],
        "array": [0, 1],
    }
    with pytest.raises(TypeError, match="object has no form"):
        json.clean(object())
