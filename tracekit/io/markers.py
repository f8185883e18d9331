"""What the host's program was at, from the trace: stages, microbatches, data, GC, waits.

The runner's own markers come first: they leave the wait for a receive out of
a stage's work. Where there are none, the names that torch's pipeline schedules
give serve, in which that wait is inside; a diagnostic says so.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracekit.core.run import Diagnostic, Severity
from tracekit.core.trace import NO_SPANS, Phase, Spans
from tracekit.io import names
from tracekit.io.events import MISSING, Events

PREFIX = "tracekit:"
LETTERS = {
    "F": Phase.FORWARD, "B": Phase.BACKWARD, "I": Phase.INPUT, "W": Phase.WEIGHT,
    "L": Phase.LOSS, "R": Phase.REDUCE,
}  # fmt: skip
WORDS = {
    "recv": Phase.RECV, "send": Phase.SEND, "data": Phase.DATA, "gc": Phase.GC,
    "sync": Phase.SYNC,
}  # fmt: skip

_OURS = re.compile(rf"{PREFIX}PP:(\d+)([{''.join(LETTERS)}])(\d*)$")
_TORCH = re.compile(r"PP:(\d+)([FBIW])(\d+)$")
_GPIPE = re.compile(r"(Forward|Backward) (\d+)$")
_DATA = re.compile(r"enumerate\(DataLoader\)#")
# Calls in which the host waits for the device, of CUDA, HIP and others.
_SYNC = re.compile(r"(?:cuda|hip|cu|xpu)\w*Synchronize")

Meaning = tuple[int, int, int]  # phase, stage, microbatch


def name(phase: Phase, stage: int = MISSING, microbatch: int = MISSING) -> str:
    """The name of a marker, as the runner writes and this module reads it."""
    for word, meant in WORDS.items():
        if phase is meant:
            return PREFIX + word
    letter = next(letter for letter, meant in LETTERS.items() if phase is meant)
    return f"{PREFIX}PP:{stage}{letter}{'' if microbatch < 0 else microbatch}"


def spans_of(events: Events) -> tuple[Spans, tuple[Diagnostic, ...]]:
    """The spans of one file, sorted by start, and what is to be said of them."""
    meanings = [_meaning(text) for text in events.strings]
    pipeline = [_ours(text) for text in events.strings]
    note: tuple[Diagnostic, ...] = ()
    if not any(pipeline):
        pipeline = [_torchs(text) for text in events.strings]
        note = _note(sum(meant is not None for meant in pipeline))
    known = [other or meant for other, meant in zip(meanings, pipeline, strict=True)]
    if not any(meant is not None for meant in known):
        return NO_SPANS, ()
    rows = events.rows(
        names.OPERATOR_CATEGORIES | names.ANNOTATION_CATEGORIES | names.LAUNCH_CATEGORIES
    )
    is_marker = np.array([meant is not None for meant in known], dtype=np.bool_)
    rows = rows[is_marker[events.columns.name[rows]]]
    return _spans(events, rows, known), note


def _meaning(text: str) -> Meaning | None:
    """Markers that belong to no stage."""
    if text.startswith(PREFIX) and text[len(PREFIX) :] in WORDS:
        return WORDS[text[len(PREFIX) :]], MISSING, MISSING
    if _DATA.match(text):
        return Phase.DATA, MISSING, MISSING
    return (Phase.SYNC, MISSING, MISSING) if _SYNC.match(text) else None


def _ours(text: str) -> Meaning | None:
    match = _OURS.match(text)
    if match is None:
        return None
    return LETTERS[match[2]], int(match[1]), int(match[3]) if match[3] else MISSING


def _torchs(text: str) -> Meaning | None:
    match = _TORCH.match(text)
    if match is not None:
        return LETTERS[match[2]], int(match[1]), int(match[3])
    match = _GPIPE.match(text)
    if match is not None:
        phase = Phase.FORWARD if match[1] == "Forward" else Phase.BACKWARD
        return phase, MISSING, int(match[2])
    return None


def _note(count: int) -> tuple[Diagnostic, ...]:
    if not count:
        return ()
    message = "stages are known by torch's own names only: their spans include waiting for input"
    return (Diagnostic("spans-include-waits", Severity.INFO, None, 1, message),)


def _spans(events: Events, rows: npt.NDArray[np.intp], known: list[Meaning | None]) -> Spans:
    start = events.columns.start_ns[rows] + events.base_ns
    end = start + events.columns.duration_ns[rows]
    order = np.lexsort((-end, start))
    table = np.array([meant or (0, MISSING, MISSING) for meant in known], dtype=np.int64)
    phase, stage, microbatch = table[events.columns.name[rows[order]]].T
    return Spans(
        start_ns=start[order],
        end_ns=end[order],
        phase=phase.astype(np.uint8),
        stage=stage.astype(np.int32),
        chunk=_chunks(stage),
        microbatch=microbatch.astype(np.int32),
    )


def _chunks(stage: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Place of each stage among those of this rank, -1 where it is not known."""
    held = np.unique(stage[stage >= 0])
    out: npt.NDArray[np.int32] = np.where(stage >= 0, np.searchsorted(held, stage), MISSING).astype(
        np.int32
    )
    return out
