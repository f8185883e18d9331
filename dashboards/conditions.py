"""Last page: what was repaired or guessed, and the conditions under which the run was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tracekit.core.run import Diagnostic, Severity
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Block,
    Copyable,
    Folded,
    Grid,
    KeyValues,
    Table,
    TableColumn,
)
from tracekit.report.json import clean
from tracekit.report.page import RunPage
from tracekit.report.section import Section, plural


def build(section: Section) -> Sequence[Block]:
    """Diagnostics first: they bear on every number; then each group of conditions."""
    run = section.run
    blocks: list[Block] = [_answer(section)]
    if run.diagnostics:
        blocks.append(_diagnostics(section))
    if run.truth:
        blocks.append(_planted(run.truth))
    if run.topology.groups:
        blocks.append(Folded("Process groups", (_groups(section),)))
    if run.conditions:
        blocks.append(Grid(listed(run.conditions)))
        text = json.dumps(clean(run.conditions), indent=2)
        blocks.append(Copyable("All conditions, to copy", text))
    return blocks


def _answer(section: Section) -> Answer:
    run = section.run
    sentence = "Nothing in the traces had to be dropped, guessed or repaired."
    if run.diagnostics:
        sentence = f"Reading these traces left {_counts(run.diagnostics)}."
    facts = []
    if run.missing_ranks:
        facts.append(f"No trace of {section.who(run.missing_ranks)}")
    flagged = section.flagged_steps
    if flagged:
        steps = ", ".join(f"{step} ({why})" for step, why in list(flagged.items())[:6])
        facts.append(f"Steps flagged: {steps}")
    if not run.conditions:
        facts.append("The traces came without a manifest, so the conditions are not known")
    return Answer(sentence, " · ".join(facts))


def _counts(diagnostics: Sequence[Diagnostic]) -> str:
    """ "1 error, 2 warnings", worst first."""
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
    found = [item.severity for item in diagnostics]
    return ", ".join(plural(found.count(s), w) for s, w in words.items() if s in found)


def _diagnostics(section: Section) -> Table:
    order = {"error": 0, "warning": 1, "info": 2}

    def key(item: Diagnostic) -> tuple[int, str, int]:
        return order[item.severity.value], item.code, -1 if item.rank is None else item.rank

    rows = tuple(
        (
            item.severity.value,
            item.message,
            "all ranks" if item.rank is None else section.rank_name(item.rank),
            item.count,
            item.code,
        )
        for item in sorted(section.run.diagnostics, key=key)
    )
    columns = (
        TableColumn("severity", "", numeric=False),
        TableColumn("what", "", numeric=False, prose=True),
        TableColumn("who", "", numeric=False),
        TableColumn("count", "count"),
        TableColumn("code", "", numeric=False),
    )
    return Table("Diagnostics", columns, rows)


def _planted(truth: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        TableColumn("fault", "", numeric=False),
        TableColumn("details", "", numeric=False, prose=True),
    )
    rows = tuple(
        (
            str(fault.get("kind") or fault.get("fault") or "fault"),
            ", ".join(f"{k} {v}" for k, v in fault.items() if k not in ("kind", "fault")),
        )
        for fault in truth
    )
    return Table("Faults planted on purpose", columns, rows)


def _groups(section: Section) -> Table:
    columns = tuple(TableColumn(name, "", numeric=False) for name in ("group", "axis", "ranks"))
    rows = tuple(
        (
            group.description or group.name,
            group.axis,
            ", ".join(map(str, group.ranks)) or None,
        )
        for group in section.run.topology.groups
    )
    return Table("Process groups", columns, rows)


def listed(conditions: Mapping[str, Any]) -> tuple[Block, ...]:
    """One list for each group of conditions; single values stand together."""
    single = tuple((k, _word(v)) for k, v in conditions.items() if not isinstance(v, Mapping))
    blocks: list[Block] = [KeyValues("Run", single)] if single else []
    for name, values in conditions.items():
        if isinstance(values, Mapping) and values:
            # Names of the environment are to be copied, the others to be read.
            raw = name == "environment"
            items = tuple(
                (key, _word(value)) if raw else _fact(str(key), value)
                for key, value in values.items()
            )
            blocks.append(KeyValues(name.capitalize(), items))
    return tuple(blocks)


def _fact(key: str, value: object) -> tuple[str, object]:
    """A condition in words: sizes in bytes and large counts are written out."""
    if isinstance(value, int) and key.endswith("_bytes"):
        return key.removesuffix("_bytes"), format.quantity(value, "bytes")
    if isinstance(value, int) and key in ("params", "vocab"):
        return key, format.quantity(value, "count")
    return key.replace("_", " "), _word(value)


def _word(value: object) -> object:
    """A condition as one cell; nested ones in JSON, as they are in the manifest."""
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(clean(value)) if value else None
    return value


PAGE = RunPage("Conditions", "conditions", build, order=90)
