"""What is in a run's files, which analyses are possible on them, and how to record better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tracekit.core.run import FileFacts, Run, Severity
from tracekit.report import format
from tracekit.report.blocks import Answer, Block, Table, TableColumn, Text
from tracekit.report.json import clean, diagnostics
from tracekit.report.section import Section, plural

SCHEMA = "tracekit.check/1"


def document(section: Section, tokenizer: str) -> dict[str, Any]:
    """The check as JSON.

    Args:
        section: the run and the outcome of every analyzer.
        tokenizer: which reader did the work: "native" or "python".
    """
    run = section.run
    return {
        "schema": SCHEMA,
        "tokenizer": tokenizer,
        "run": {
            "name": run.name,
            "world_size": run.topology.world_size,
            "ranks": list(run.ranks),
            "missing_ranks": list(run.missing_ranks),
            "has_conditions": bool(run.conditions),
        },
        "files": [
            {**clean(asdict(file)), "diagnostics": diagnostics(file.diagnostics)}
            for file in run.files
        ],
        "diagnostics": diagnostics(run.diagnostics),
        "analyses": {
            item.analyzer.name: {"possible": item.reason is None, "reason": item.reason}
            for item in section.outcomes
        },
        "advice": list(advice(run)),
    }


def build(section: Section, tokenizer: str) -> Sequence[Block]:
    """The check in blocks: the answer, the files, the analyses, what was repaired, advice."""
    blocks: list[Block] = [_answer(section, tokenizer), _files(section.run)]
    blocks.append(_analyses(section))
    if section.run.diagnostics:
        blocks.append(_notes(section))
    better = list(advice(section.run))
    if better:
        blocks.append(Text("How to record better"))
        blocks.extend(Text(f"- {line}") for line in better)
    return blocks


def advice(run: Run) -> Iterator[str]:
    """What to record differently next time, most valuable first."""
    codes = {note.code for note in run.diagnostics}
    if "no-device-work" in codes:
        yield (
            "record device activity: torch.profiler.profile(activities=[ProfilerActivity.CPU, "
            "ProfilerActivity.CUDA])"
        )
    if codes & {"no-steps", "steps-from-annotations"}:
        yield "call prof.step() once per iteration, so that steps are marked"
    if run.missing_ranks:
        yield "keep the traces of all ranks: waiting and stragglers cannot be seen on one alone"
    if codes & {"rank-guessed"}:
        yield "initialise torch.distributed before the profiler starts, so that traces hold ranks"
    if any(file.calls > file.grouped_calls for file in run.files):
        yield (
            "use torch 2.4 or newer with record_shapes=True, so that collectives carry their group"
        )
    if codes & {"cut-file", "cut-stream", "cut-event"}:
        yield "stop the profiler before the process ends, and wait until the trace is exported"
    if codes & {"raw-quote", "raw-bytes", "lost-event"}:
        yield "leave with_stack off, or use a newer torch: unescaped names broke this file"
    if not run.conditions:
        yield (
            "record with `tracekit profile`, which keeps the conditions: without them "
            "two runs cannot be compared"
        )


def _answer(section: Section, tokenizer: str) -> Answer:
    run = section.run
    possible = sum(item.reason is None for item in section.outcomes)
    worst = [note for note in run.diagnostics if note.severity is not Severity.INFO]
    state = f"with {plural(len(worst), 'warning')}" if worst else "without loss or repair"
    ranks = plural(len(run.traces), "rank")
    if run.missing_ranks:
        ranks = f"{len(run.traces)} of {run.topology.world_size} ranks"
    return Answer(
        f"{run.name}: {plural(len(run.files), 'file')} of {ranks} read {state}; "
        f"{possible} of {len(section.outcomes)} analyses are possible.",
        f"read by the {tokenizer} tokenizer",
    )


def _files(run: Run) -> Table:
    columns = (
        TableColumn("file", "", numeric=False),
        TableColumn("rank", "", numeric=False),
        TableColumn("of", "count"),
        TableColumn("backend", "", numeric=False),
        TableColumn("device", "", numeric=False),
        TableColumn("versions", "", numeric=False),
        TableColumn("steps", "", numeric=False),
        TableColumn("events", "count"),
        TableColumn("size", "bytes"),
    )
    rows = tuple(
        (
            file.name,
            str(file.rank) + ("" if file.rank_from == "content" else f" (by {file.rank_from})"),
            file.world_size,
            file.backend,
            _device(file),
            ", ".join(f"{name} {version}" for name, version in file.software.items()) or None,
            _steps(file.steps),
            file.events,
            file.bytes,
        )
        for file in run.files
    )
    return Table("Files", columns, rows)


def _device(file: FileFacts) -> str:
    if file.device_type == "none":
        return "no device work"
    models = sorted(set(file.devices))
    return ", ".join(models) if models else file.device_type


def _steps(steps: Sequence[int]) -> str | None:
    """ "12", "3-8", or with gaps "3-8 (5)"."""
    if not steps:
        return None
    low, high = min(steps), max(steps)
    if low == high:
        return str(low)
    whole = high - low + 1 == len(steps)
    return f"{low}-{high}" if whole else f"{low}-{high} ({len(steps)})"


def _analyses(section: Section) -> Table:
    columns = (
        TableColumn("analysis", "", numeric=False),
        TableColumn("possible", "", numeric=False),
        TableColumn("why not", "", numeric=False, prose=True),
    )
    rows = tuple(
        (item.analyzer.name, "yes" if item.reason is None else "no", item.reason)
        for item in section.outcomes
    )
    return Table("Analyses", columns, rows)


def _notes(section: Section) -> Table:
    columns = (
        TableColumn("severity", "", numeric=False),
        TableColumn("what", "", numeric=False, prose=True),
        TableColumn("rank", "", numeric=False),
        TableColumn("count", "count"),
    )
    rows = tuple(
        (
            note.severity.value,
            note.message,
            "several" if note.rank is None else format.plain(str(note.rank)),
            note.count,
        )
        for note in section.run.diagnostics
    )
    return Table("Dropped, guessed or repaired", columns, rows)
