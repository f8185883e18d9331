"""The documents of comparisons and scaling series, for machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tracekit.analysis._compare import DETAILS, PER_RANK, VERDICTS, CompareResult
from tracekit.analysis._scaling import PER_RUN, ScalingResult
from tracekit.core.conditions import Difference
from tracekit.core.table import Schema
from tracekit.report.json import clean, table_document

COMPARE = "tracekit.compare/1"
SCALING = "tracekit.scaling/1"


def compare_document(result: CompareResult) -> dict[str, Any]:
    """A comparison; ``verdicts`` are all inconclusive where it is not comparable."""
    return {
        "schema": COMPARE,
        "base": result.base,
        "new": result.new,
        "comparable": result.comparable,
        "forced": result.forced,
        "conditions": [_difference(item) for item in result.conditions],
        "tables": _tables(
            {
                "verdicts": (result.verdicts, VERDICTS),
                "per_rank": (result.per_rank, PER_RANK),
                "details": (result.details, DETAILS),
            }
        ),
    }


def scaling_document(result: ScalingResult) -> dict[str, Any]:
    """A scaling series, smallest run first."""
    return {
        "schema": SCALING,
        "kind": result.kind,
        "comparable": result.comparable,
        "forced": result.forced,
        "conditions": [{"run": run, **_difference(item)} for run, item in result.conditions],
        "tables": _tables({"per_run": (result.per_run, PER_RUN)}),
    }


def _difference(item: Difference) -> dict[str, Any]:
    return clean({"field": item.field, "base": item.base, "new": item.new, "status": item.status})  # type: ignore[no-any-return]


def _tables(frames: Mapping[str, tuple[pd.DataFrame, Schema]]) -> dict[str, Any]:
    return {name: table_document(frame, schema.columns) for name, (frame, schema) in frames.items()}
