"""Marks of stages as the work of CPU ranks, and sends that leave late."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests import synth
from tracekit.core.clock import ClockFit
from tracekit.core.match import match
from tracekit.core.program import program, window
from tracekit.core.slowsends import slow_sends
from tracekit.core.staged import is_staged, staged
from tracekit.core.timing import timing
from tracekit.core.trace import Phase, RankTrace, Spans

MS = 1_000_000


def marked(trace: RankTrace, rows: list[tuple[Phase, int, int, int, int]]) -> RankTrace:
    """With spans of (phase, begin, end, stage, microbatch), times in ms."""
    column = [np.array(values) for values in zip(*sorted(rows, key=lambda r: r[1]), strict=True)]
    spans = Spans(
        start_ns=column[1].astype(np.int64) * MS, end_ns=column[2].astype(np.int64) * MS,
        phase=column[0].astype(np.uint8), stage=column[3].astype(np.int32),
        chunk=np.zeros(len(rows), np.int32), microbatch=column[4].astype(np.int32),
    )  # fmt: skip
    return dataclasses.replace(trace, spans=spans)


FORWARD = [(Phase.RECV, 0, 10, -1, -1), (Phase.FORWARD, 10, 30, 0, 0)]


def test_the_mark_is_the_work_where_nothing_else_is_recorded() -> None:
    text = "K 11-12 op_a | C 0-10 op:recv peer:1 @pp:0,1 | K 40-41 op_b"
    trace = marked(synth.rank(0, text, "0-50", "cpu", unit_ns=MS), FORWARD)
    made = staged(trace)
    assert is_staged(made)
    assert not is_staged(trace)
    work = made.kernels.kind == 0
    assert (made.kernels.start_ns[work] // MS).tolist() == [40, 10]
    assert (made.kernels.end_ns[work] // MS).tolist() == [41, 30]
    call = made.calls.kernel[0]
    assert made.kernels.end_ns[call] == 10 * MS


@pytest.mark.parametrize(
    ("text", "device"),
    [("K 11-29 op_a | C 0-10 op:recv", "cpu"), ("K 11-12 op_a | C 0-10 op:recv", "gpu")],
)
def test_operators_that_fill_the_mark_and_devices_stay(text: str, device: str) -> None:
    trace = marked(synth.rank(0, text, "0-50", device, unit_ns=MS), FORWARD)
    assert staged(trace) is trace


def sending(held_ms: dict[tuple[int, int], int], ranks: int) -> list[RankTrace]:
    """Neighbours that send to each other eight times; each send is held back so long."""
    out = []
    for rank in range(ranks):
        text, spans = [], []
        for turn in range(8):
            at = 1000 * turn
            for peer in (rank - 1, rank + 1):
                if not 0 <= peer < ranks:
                    continue
                pair = f"@pp:{min(rank, peer)},{max(rank, peer)}"
                held = held_ms.get((rank, peer), 0)
                text.append(f"K {at}-{at + 20} work")
                text.append(f"C {at + 20 + held}-{at + 21 + held} s1 op:send peer:{peer} {pair}")
                spans.append((Phase.SEND, at + 20, at + 21 + held, -1, -1))
                text.append(f"C {at + 150}-{at + 200} s2 op:recv peer:{peer} {pair}")
                at += 300
        trace = synth.rank(rank, " | ".join(text), "0-8000", "cpu", unit_ns=MS)
        out.append(marked(trace, spans))
    return out


def links(held_ms: dict[tuple[int, int], int], ranks: int = 3) -> tuple[tuple[int, ...], ...]:
    traces = sending(held_ms, ranks)
    clock = [ClockFit(rank, 0.0, 0.0, 0) for rank in range(ranks)]
    matching = match(traces)
    chosen = window(traces, clock)
    assert chosen is not None
    made = program(traces, matching, clock, timing(traces, matching, clock), chosen)
    removed = np.zeros(len(made.busy_ns))
    owner = np.full(len(removed), -1, dtype=np.int32)
    found = slow_sends(traces, clock, made, 1000.0 * MS, removed, owner)
    assert (owner >= ranks).any() == bool(found)
    return tuple(item.ranks for item in found)


def test_sends_held_back_in_both_directions_are_a_slow_link() -> None:
    assert links({(0, 1): 25, (1, 0): 25}) == ((0, 1),)


def test_sends_that_leave_at_once_are_not() -> None:
    assert links({}) == ()


def test_one_direction_is_not_enough() -> None:
    assert links({(0, 1): 25}) == ()


def test_a_rank_that_is_slow_to_everybody_is_no_link() -> None:
    assert links({(0, 1): 25, (1, 0): 25, (1, 2): 25, (2, 1): 25}) == ()
