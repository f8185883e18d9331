"""Tracks by hand: what a rank is at, cut, and thinned without losing time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import synth
from tracekit.core.trace import RankTrace
from tracekit.core.tracks import At, Track, cut, thinned, track


def rank(text: str) -> RankTrace:
    return synth.run(synth.rank(0, text, steps="0-1000")).traces[0]


def pieces(found: Track) -> list[tuple[int, int, str]]:
    return [
        (int(a), int(b), At(int(at)).name)
        for a, b, at in zip(found.start_ns, found.end_ns, found.at, strict=True)
    ]


def no_waits(trace: RankTrace) -> np.ndarray:
    return np.full(len(trace.calls), -1, dtype=np.int64)


def test_each_moment_is_one_thing() -> None:
    trace = rank("K 0-100 s7 | C 50-200 s9 | M 180-250 s11")
    assert pieces(track(trace, no_waits(trace))) == [
        (0, 50, "COMPUTE"),
        (50, 100, "HIDING"),
        (100, 200, "TRANSFER"),
        (200, 250, "MEMORY"),
    ]


def test_a_wait_ends_when_the_last_arrives() -> None:
    trace = rank("K 0-100 s7 | C 50-200 s9")
    until = np.full(len(trace.calls), 160, dtype=np.int64)
    assert pieces(track(trace, until)) == [
        (0, 50, "COMPUTE"),
        (50, 100, "HIDING"),
        (100, 160, "WAIT"),
        (160, 200, "TRANSFER"),
    ]


def test_the_kernel_that_began_first_is_shown() -> None:
    trace = rank("K 0-100 s7 | K 20-60 s8 | K 50-120 s8")
    found = track(trace, no_waits(trace))
    assert pieces(found) == [(0, 100, "COMPUTE"), (100, 120, "COMPUTE")]
    assert trace.kernels.start_ns[found.kernel].tolist() == [0, 50]


def test_nothing_gives_nothing() -> None:
    empty = cut(track(rank("K 0-10"), np.empty(0, dtype=np.int64)), 500, 600)
    assert len(empty) == 0
    assert thinned(empty, 5) == (empty, 0)


def test_cutting_keeps_the_ends() -> None:
    trace = rank("K 0-100 s7 | K 150-300 s7")
    assert pieces(cut(track(trace, no_waits(trace)), 50, 200)) == [
        (50, 100, "COMPUTE"),
        (150, 200, "COMPUTE"),
    ]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 200)), min_size=1, max_size=300))
def test_thinning_keeps_ends_and_counts(parts: list[tuple[int, int]]) -> None:
    gaps, lengths = (np.array(column, dtype=np.int64) for column in zip(*parts, strict=True))
    end = np.cumsum(gaps + lengths)
    whole = Track(
        end - lengths, end, np.arange(len(end)) % len(At), np.arange(len(end)),
        np.ones(len(end), dtype=np.int64),
    )  # fmt: skip
    kept, threshold = thinned(whole, 20)
    assert len(kept) <= 20
    assert kept.count.sum() == len(whole)
    assert kept.start_ns[0] == whole.start_ns[0]
    assert kept.end_ns[-1] == whole.end_ns[-1]
    assert (kept.start_ns[1:] >= kept.end_ns[:-1]).all()
    long = (whole.end_ns - whole.start_ns) >= threshold
    if threshold:
        alone = set(zip(kept.start_ns[kept.count == 1], kept.end_ns[kept.count == 1], strict=True))
        assert set(zip(whole.start_ns[long], whole.end_ns[long], strict=True)) <= alone
