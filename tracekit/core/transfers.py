"""Transfers of all ranks, and how much compute runs beside each.

A transfer is a call without its waiting. Those of one operation, axis, group size and
message size are alike; their slowdown is fitted as that of kernels is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.core.beside import BLOCKS, Beside
from tracekit.core.grouped import Codes, mixed, turns
from tracekit.core.intervals import covered_within
from tracekit.core.slowdown import LEAST, Pieces, Slowdown, slowdown
from tracekit.core.trace import Int64

Float = npt.NDArray[np.float64]


class Transfer(NamedTuple):
    """Transfers of one operation, axis and size."""

    op: str
    axis: str
    bytes: int
    ns: Int64
    share: Float  # overlapped by compute
    trace: Int64
    step: Int64
    members: int  # of the group; 0 when not known
    fit: Slowdown | None

    @property
    def alone_p50(self) -> float | None:
        """Median time of those without compute beside them; None below five."""
        alone = self.ns[self.share == 0]
        return float(np.median(alone)) if len(alone) >= LEAST else None

    @property
    def lost(self) -> Float:
        """(n,) what each loses to compute: x - x0; 0 without a baseline."""
        base = self.alone_p50
        if base is None:
            return np.zeros(len(self.ns))
        out: Float = np.where(self.share > 0, self.ns - base, 0.0)
        return out


class _Moved(NamedTuple):
    """Transfers of counted steps whose wait is known; op and axis are codes over all ranks."""

    op: Int64
    axis: Int64
    members: Int64
    bytes: Int64
    ns: Int64
    share: Float
    trace: Int64
    step: Int64
    position: Float

    def take(self, rows: npt.NDArray[np.intp]) -> _Moved:
        """Some of the rows."""
        return _Moved(
            self.op[rows], self.axis[rows], self.members[rows], self.bytes[rows], self.ns[rows],
            self.share[rows], self.trace[rows], self.step[rows], self.position[rows],
        )  # fmt: skip


def transfers_of(ranks: Sequence[Beside]) -> list[Transfer]:
    """Transfers by operation, axis and size."""
    words = Codes()
    parts = [_moved(place, item, words) for place, item in enumerate(ranks)]
    every = _Moved(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    key = mixed(every.op, every.axis, every.members, every.bytes)
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order], prepend=~key[order][:1], append=~key[order][-1:]))
    texts = words.texts()
    found = [
        _transfer(every.take(order[low:high]), texts)
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return sorted(found, key=lambda item: (item.op, item.axis, item.bytes))


def _moved(place: int, item: Beside, words: Codes) -> _Moved:
    """The transfers of one rank in order of call."""
    trace = item.trace
    calls, kernels = trace.calls, trace.kernels
    use = np.append(trace.statistic_steps(), False)[kernels.step[calls.kernel]]
    end = kernels.end_ns[calls.kernel]
    # How long one transfer of a coalesced kernel took is not known.
    use &= calls.carried() == 1
    chosen = np.flatnonzero(use & (item.start_ns >= 0) & (end > item.start_ns))
    start, end = item.start_ns[chosen], end[chosen]
    step = kernels.step[calls.kernel[chosen]].astype(np.int64)
    length = np.maximum(trace.steps.end_ns - trace.steps.start_ns, 1)[step]
    axes = [group.axis or group.description or "world" for group in trace.groups]
    # The last entry, which -1 selects, is a name of its own here.
    axis = words.of([*axes, "unknown"])[:-1]
    members = np.array([*(len(group.ranks) for group in trace.groups), 0], dtype=np.int64)
    return _Moved(
        op=words.of(trace.names)[calls.op_id[chosen]],
        axis=axis[calls.group[chosen]],
        members=members[calls.group[chosen]],
        bytes=np.maximum(calls.in_bytes, calls.out_bytes)[chosen],
        ns=end - start,
        share=covered_within(item.compute, start, end) / (end - start),
        trace=np.full(len(chosen), place, dtype=np.int64),
        step=step,
        position=np.clip((start - trace.steps.start_ns[step]) / length, 0, 1),
    )


def _transfer(rows: _Moved, texts: tuple[str, ...]) -> Transfer:
    zero = np.zeros(len(rows.ns), dtype=np.int64)
    part = np.minimum(rows.position * BLOCKS, BLOCKS - 1).astype(np.int64)
    pieces = Pieces(
        rows.ns, rows.share, zero, turns(mixed(rows.trace, rows.step)), zero - 1, rows.position,
        (rows.trace << 40) + (rows.step << 8) + part,
    )  # fmt: skip
    return Transfer(
        texts[rows.op[0]], texts[rows.axis[0]], int(rows.bytes[0]), rows.ns, rows.share,
        rows.trace, rows.step, int(rows.members[0]), slowdown(pieces),
    )  # fmt: skip
