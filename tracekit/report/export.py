"""Result tables as files of columns: CSV for spreadsheets, Parquet for programs.

One file per table, named ``ANALYSIS.TABLE``, besides ``findings`` and ``scalars``.
Columns and units are those of the JSON document. Names come from traces, and a
spreadsheet takes a cell that begins with ``=``, ``+``, ``-`` or ``@`` for a formula:
in CSV such a name gets an apostrophe in front; in Parquet names stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from tracekit.core.errors import UsageError
from tracekit.core.table import Column, Schema
from tracekit.io.output import write_bytes
from tracekit.report.section import Section

FINDINGS = Schema(
    Column("analysis", "str", "", "Analysis that found it."),
    Column("title", "str", "", "The finding as a sentence."),
    Column("severity", "str", "", "high, medium or low."),
    Column("lost_ns_per_step", "int64", "ns", "Mean over ranks and counted steps."),
    Column("lost_ratio", "float64", "ratio", "The same as a share of the step."),
    Column("ranks", "str", "", "Whom it concerns; empty for all."),
    Column("evidence", "str", "", "What it rests on."),
    Column("confidence", "str", "", "exact, high or low."),
    Column("advice", "str", "", "What to try."),
)
SCALARS = Schema(
    Column("analysis", "str", "", "Analysis it belongs to."),
    Column("name", "str", "", "Name of the number or word."),
    Column("value", "str", "", "As text; empty where it could not be measured."),
    Column("unit", "str", "", "ns, bytes, ratio, gbps, count or none."),
    Column("description", "str", "", "What it is."),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Named = tuple[str, pd.DataFrame, Schema]


def tables(section: Section) -> Iterator[Named]:
    """Every table of a run with its name and schema, in alphabetical order of analyses."""
    yield "findings", _findings(section), FINDINGS
    yield "scalars", _scalars(section), SCALARS
    for outcome in sorted(section.outcomes, key=lambda item: item.analyzer.name):
        for name, schema in outcome.analyzer.tables.items():
            if outcome.result is not None:
                frame = outcome.tables[name]
                yield f"{outcome.analyzer.name}.{name}", frame[list(schema.names)], schema


def write_csv(section: Section, folder: Path) -> tuple[Path, ...]:
    """Write every table as CSV; returns the files.

    Raises:
        TracekitError: the folder cannot be made or written.
    """
    return _write(section, folder, "csv", lambda frame, _: csv_text(frame).encode())


def write_parquet(section: Section, folder: Path) -> tuple[Path, ...]:
    """Write every table as Parquet, units and descriptions in its metadata.

    Raises:
        UsageError: pyarrow is not installed.
        TracekitError: the folder cannot be made or written.
    """
    if find_spec("pyarrow") is None:
        raise UsageError("Parquet needs pyarrow: pip install 'torch-tracekit[parquet]'")
    return _write(section, folder, "parquet", _parquet_bytes)


def csv_text(frame: pd.DataFrame) -> str:
    """One table as CSV; what could not be measured is empty."""
    safe = frame.copy()
    for name in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[name]):
            safe[name] = [_safe(value) for value in safe[name].tolist()]
    return str(safe.to_csv(index=False, lineterminator="\n"))


def _safe(value: object) -> object:
    if not isinstance(value, str):
        return value
    # A lone surrogate has no form in UTF-8.
    text = value.encode("utf-8", "backslashreplace").decode()
    return f"'{text}" if text.startswith(_FORMULA) else text


def _write(section: Section, folder: Path, suffix: str, form: Any) -> tuple[Path, ...]:
    # All tables are formed before the first is written, so that a failure leaves nothing.
    made = [(folder / f"{name}.{suffix}", form(frame, schema))
            for name, frame, schema in tables(section)]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in made:
        write_bytes(path, data)
    return tuple(path for path, _ in made)


def _parquet_bytes(frame: pd.DataFrame, schema: Schema) -> bytes:
    import pyarrow
    from pyarrow import parquet

    plain = frame.copy()
    for name in plain.columns:
        if not pd.api.types.is_numeric_dtype(plain[name]):
            plain[name] = [
                value.encode("utf-8", "backslashreplace").decode()
                if isinstance(value, str)
                else value
                for value in plain[name].tolist()
            ]
    made = pyarrow.Table.from_pandas(plain, preserve_index=False)
    about = {column.name: _meta(column) for column in schema.columns}
    fields = [field.with_metadata(about[field.name]) for field in made.schema]
    made = made.cast(pyarrow.schema(fields, made.schema.metadata))
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(made, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _meta(column: Column) -> Mapping[str, str]:
    return {"unit": column.unit, "description": column.description}


def _findings(section: Section) -> pd.DataFrame:
    rows: Sequence[Mapping[str, Any]] = [
        {
            **asdict(item),
            "severity": item.severity,
            "confidence": item.confidence.value,
            "ranks": ",".join(map(str, item.ranks)),
        }
        for item in section.findings
    ]
    return pd.DataFrame([[row[name] for name in FINDINGS.names] for row in rows],
                        columns=list(FINDINGS.names))  # fmt: skip


def _scalars(section: Section) -> pd.DataFrame:
    rows = [
        (
            outcome.analyzer.name,
            column.name,
            _word(getattr(outcome.result, column.name)),
            column.unit,
            column.description,
        )
        for outcome in sorted(section.outcomes, key=lambda item: item.analyzer.name)
        if outcome.result is not None
        for column in outcome.analyzer.scalars
    ]
    return pd.DataFrame(rows, columns=list(SCALARS.names))


def _word(value: object) -> str | None:
    if isinstance(value, (list, tuple, set, frozenset)):
        return json.dumps(sorted(value) if isinstance(value, (set, frozenset)) else list(value),
                          default=str)  # fmt: skip
    return None if pd.isna(value) else str(value)
