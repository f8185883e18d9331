"""The ``tracekit.analysis/1`` document: everything a report knows, for machines.

Plain dictionaries, lists, strings and numbers in a fixed order; what could not
be measured is null. ``docs`` and the command line promise these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analysis._contract import Outcome
from tracekit.core.clock import ClockFit
from tracekit.core.finding import Finding
from tracekit.core.run import Diagnostic
from tracekit.core.table import Column
from tracekit.core.topology import Topology
from tracekit.report.section import Section

SCHEMA = "tracekit.analysis/1"


def document(section: Section) -> dict[str, Any]:
    """The whole document of one run, ready for any JSON encoder."""
    ordered = sorted(section.outcomes, key=lambda outcome: outcome.analyzer.name)
    return {
        "schema": SCHEMA,
        "run": _run(section),
        "analyses": {outcome.analyzer.name: _analysis(outcome) for outcome in ordered},
        "findings": [_finding(finding) for finding in section.findings],
    }


def clean(value: Any) -> Any:
    """The same value in the types of JSON; NaN, NA and infinities become null.

    Raises:
        TypeError: the value has no form in JSON.
    """
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return clean(value.value)
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (Sequence, set, frozenset, np.ndarray)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [clean(item) for item in items]
    return _number(value)


def _number(value: Any) -> int | float | bool | None:
    if pd.isna(value):
        return None
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _run(section: Section) -> dict[str, Any]:
    run = section.run
    return {
        "name": run.name,
        "world_size": run.topology.world_size,
        "ranks": list(run.ranks),
        "missing_ranks": list(run.missing_ranks),
        "steps": list(section.step_numbers),
        "conditions": clean(run.conditions),
        "topology": _topology(run.topology),
        "clock": [_clock(item) for item in run.clock],
        "diagnostics": diagnostics(run.diagnostics),
    }


def _topology(topology: Topology) -> dict[str, Any]:
    return {
        "axes": clean(topology.axes),
        "groups": [
            {
                "name": group.name,
                "axis": group.axis,
                "ranks": list(group.ranks),
                "description": group.description,
                "inferred": group.inferred,
            }
            for group in topology.groups
        ],
    }


def _clock(item: ClockFit) -> dict[str, Any]:
    return {
        "rank": item.rank,
        "offset_ns": round(item.offset_ns),
        "uncertainty_ns": round(item.uncertainty_ns),
        "component": item.component,
        "drift_ppb": clean(item.drift_ppb),
    }


def diagnostics(items: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """Diagnostics as they stand in every document."""
    return [
        {
            "code": item.code,
            "severity": item.severity.value,
            "rank": item.rank,
            "count": item.count,
            "message": item.message,
        }
        for item in items
    ]


def _analysis(outcome: Outcome) -> dict[str, Any]:
    analyzer = outcome.analyzer
    if outcome.result is None:
        return {"status": "unavailable", "reason": outcome.reason, "scalars": {}, "tables": {}}
    return {
        "status": "ok",
        "reason": None,
        "scalars": {
            column.name: clean(getattr(outcome.result, column.name)) for column in analyzer.scalars
        },
        "tables": {
            name: table_document(outcome.tables[name], schema.columns)
            for name, schema in analyzer.tables.items()
        },
    }


def table_document(frame: pd.DataFrame, columns: Sequence[Column]) -> dict[str, Any]:
    """A table with the meaning of its columns, as it stands in every document."""
    names = [column.name for column in columns]
    values = [[clean(value) for value in frame[name].tolist()] for name in names]
    return {
        "columns": [
            {"name": column.name, "unit": column.unit, "description": column.description}
            for column in columns
        ],
        "rows": [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "analysis": finding.analysis,
        "title": finding.title,
        "severity": finding.severity,
        "lost_ns_per_step": clean(finding.lost_ns_per_step),
        "lost_ratio": clean(finding.lost_ratio),
        "ranks": list(finding.ranks),
        "evidence": finding.evidence,
        "confidence": finding.confidence.value,
        "advice": finding.advice,
    }
