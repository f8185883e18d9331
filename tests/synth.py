"""Runs from one line of text: ``synth.run(synth.rank(0, "K 0-100 s7 | C 50-150 s9 @tp"))``.

Each piece is KIND START-END in ns, with K compute, C communication, M memory;
then in any order ``sN`` the stream, ``dN`` the device, ``@AXIS`` the process
group of a communication or ``@AXIS:0,1`` with its ranks, ``#N`` its sequence number,
``op:NAME``, ``bytes:N``, ``peer:RANK``, ``root:PLACE`` of it, and a word for the kernel's name.
``+`` instead of START-END is one more call of the kernel before it, as of a coalesced one.
"""

from __future__ import annotations

import numpy as np

from tracekit.core.run import Run
from tracekit.core.topology import Group, Topology
from tracekit.core.trace import Calls, KernelKind, Kernels, RankTrace, StepFlag, Steps

_KINDS = {"K": KernelKind.COMPUTE, "C": KernelKind.COMMUNICATION, "M": KernelKind.MEMORY}


def rank(
    number: int,
    text: str,
    steps: str = "",
    device_type: str = "gpu",
    *,
    unit_ns: int = 1,
    host: str | None = None,
    first_step: int = 0,
    marked: bool = True,
) -> RankTrace:
    """One rank; ``steps`` like "0-200 200-400", numbered from 0, the first one unflagged."""
    windows = [tuple(int(at) * unit_ns for at in part.split("-")) for part in steps.split()]
    pieces = [_piece(part.split(), unit_ns) for part in text.split("|") if part.strip()]
    rows = [piece for piece in pieces if not piece["shares"]]
    names: list[str] = []
    axes: list[str] = []
    calls = []
    index = -1
    for row in pieces:
        index += not row["shares"]
        if row["kind"] == KernelKind.COMMUNICATION:
            axis = row["axis"]
            group = _code(axes, axis) if axis else -1
            op = _code(names, row["op"])
            calls.append((index, op, group, row["seq"], row["bytes"], row["peer"], row["root"]))
    start = np.array([row["start"] for row in rows], dtype=np.int64)
    step = [
        next((i for i, (low, high) in enumerate(windows) if low <= at < high), -1) for at in start
    ]
    call = np.array(calls, dtype=np.int64).reshape(len(calls), 7).T
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
        host=host,
        device_type=device_type,
        steps=Steps(
            number=np.arange(first_step, first_step + len(windows), dtype=np.int64),
            start_ns=np.array([low for low, _ in windows], dtype=np.int64),
            end_ns=np.array([high for _, high in windows], dtype=np.int64),
            flag=np.full(len(windows), StepFlag.OK, dtype=np.uint8),
        ),
        kernels=kernels,
        calls=Calls(
            kernel=call[0].astype(np.int32),
            op_id=call[1].astype(np.int32),
            group=call[2].astype(np.int32),
            seq=call[3].copy(),
            in_bytes=call[4].copy(),
            out_bytes=call[4].copy(),
            dtype_id=unknown.astype(np.int32),
            peer=call[5].astype(np.int32),
            root=call[6].astype(np.int32),
        ),
        names=tuple(names),
        groups=tuple(_group(axis) for axis in axes),
        steps_marked=marked,
    )


def _group(text: str) -> Group:
    axis, _, ranks = text.partition(":")
    return Group(axis, axis, tuple(map(int, ranks.split(","))) if ranks else (), axis)


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


def _piece(words: list[str], unit_ns: int) -> dict[str, object]:
    shares = words[1] == "+"
    start, end = (0, 0) if shares else (int(at) * unit_ns for at in words[1].split("-"))
    row: dict[str, object] = {
        "kind": _KINDS[words[0]], "start": start, "end": end, "shares": shares,
        "stream": 0, "device": 0, "axis": "", "name": f"kernel_{words[0]}",
        "op": "all_reduce", "seq": -1, "bytes": -1, "peer": -1, "root": -1,
    }  # fmt: skip
    for word in words[2:]:
        if word[0] == "@":
            row["axis"] = word[1:]
        elif word[0] == "#":
            row["seq"] = int(word[1:])
        elif ":" in word:
            key, _, value = word.partition(":")
            row[key] = value if key == "op" else int(value)
        elif word[0] in "sd" and word[1:].isdigit():
            row["stream" if word[0] == "s" else "device"] = int(word[1:])
        else:
            row["name"] = word
    return row
