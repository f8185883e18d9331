"""Runs from one line of text: ``synth.run(synth.rank(0, "K 0-100 s7 | C 50-150 s9 @tp"))``.

Each piece is KIND START-END in ns, with K compute, C communication, M memory;
then in any order ``sN`` the stream, ``dN`` the device, ``@AXIS`` the process
group of a communication, and a word for the kernel's name.
"""

from __future__ import annotations

import numpy as np

from tracekit.core.run import Run
from tracekit.core.topology import Group, Topology
from tracekit.core.trace import Calls, KernelKind, Kernels, RankTrace, StepFlag, Steps

_KINDS = {"K": KernelKind.COMPUTE, "C": KernelKind.COMMUNICATION, "M": KernelKind.MEMORY}


def rank(number: int, text: str, steps: str = "", device_type: str = "gpu") -> RankTrace:
    """One rank; ``steps`` like "0-200 200-400", numbered from 0, the first one unflagged."""
    windows = [tuple(map(int, part.split("-"))) for part in steps.split()]
    rows = [_piece(part.split()) for part in text.split("|") if part.strip()]
    names: list[str] = []
    axes: list[str] = []
    calls = []
    for index, row in enumerate(rows):
        if row["kind"] == KernelKind.COMMUNICATION:
            axis = row["axis"]
            calls.append((index, _code(names, "all_reduce"), _code(axes, axis) if axis else -1))
    start = np.array([row["start"] for row in rows], dtype=np.int64)
    step = [
        next((i for i, (low, high) in enumerate(windows) if low <= at < high), -1) for at in start
    ]
    call = np.array(calls, dtype=np.int32).reshape(len(calls), 3).T
    unknown = np.full(len(calls), -1, dtype=np.int64)
    kernels = Kernels(
        start_ns=start,
        end_ns=np.array([row["end"] for row in rows], dtype=np.int64),
        device=np.array([row["device"] for row in rows], dtype=np.int16),
        stream=np.array([row["stream"] for row in rows], dtype=np.int32),
        kind=np.array([row["kind"] for row in rows], dtype=np.uint8),
        name_id=np.array([_code(names, row["name"]) for row in rows], dtype=np.int32),
        correlation=np.full(len(rows), -1, dtype=np.int64),
        step=np.array(step, dtype=np.int32),
        launch_ns=np.full(len(rows), -1, dtype=np.int64),
    )
    return RankTrace(
        rank=number,
        host=None,
        device_type=device_type,
        steps=Steps(
            number=np.arange(len(windows), dtype=np.int64),
            start_ns=np.array([low for low, _ in windows], dtype=np.int64),
            end_ns=np.array([high for _, high in windows], dtype=np.int64),
            flag=np.full(len(windows), StepFlag.OK, dtype=np.uint8),
        ),
        kernels=kernels,
        calls=Calls(
            kernel=call[0].copy(),
            op_id=call[1].copy(),
            group=call[2].copy(),
            seq=unknown,
            in_bytes=unknown,
            out_bytes=unknown,
            dtype_id=unknown.astype(np.int32),
            peer=unknown.astype(np.int32),
        ),
        names=tuple(names),
        groups=tuple(Group(axis, axis, (), axis) for axis in axes),
    )


def run(*traces: RankTrace, **changes: object) -> Run:
    """A run of these ranks; keywords set other fields of :class:`Run`."""
    fields: dict[str, object] = {
        "name": "synthetic",
        "traces": tuple(traces),
        "topology": Topology(world_size=len(traces)),
        **changes,
    }
    return Run(**fields)  # type: ignore[arg-type]


def _code(table: list[str], text: str) -> int:
    if text not in table:
        table.append(text)
    return table.index(text)


def _piece(words: list[str]) -> dict[str, object]:
    start, end = map(int, words[1].split("-"))
    row: dict[str, object] = {
        "kind": _KINDS[words[0]], "start": start, "end": end,
        "stream": 0, "device": 0, "axis": "", "name": f"kernel_{words[0]}",
    }  # fmt: skip
    for word in words[2:]:
        if word[0] == "@":
            row["axis"] = word[1:]
        elif word[0] in "sd" and word[1:].isdigit():
            row["stream" if word[0] == "s" else "device"] = int(word[1:])
        else:
            row["name"] = word
    return row
