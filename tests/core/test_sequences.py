"""Longer sequences lengthen forward and backward of a microbatch; slow devices do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests import synth
from tests.core.test_staged import marked
from tracekit.analysis.stragglers import analyze
from tracekit.core.clock import ClockFit
from tracekit.core.run import Run
from tracekit.core.sequences import lengths_differ
from tracekit.core.trace import Phase, RankTrace

STEPS, MICROBATCHES = 6, 4
MS = 1_000_000
Length = Callable[[int, int], tuple[int, int]]  # step, microbatch -> forward, backward in ms


def job(*lengths: Length) -> Run:
    """Ranks that meet in an all_reduce after their microbatches of such lengths."""
    done, texts, spans = 0, [[] for _ in lengths], [[] for _ in lengths]  # type: ignore[var-annotated]
    bounds: list[str] = []
    for step in range(STEPS):
        arrive = []
        for rank, length in enumerate(lengths):
            at = done
            for k in range(MICROBATCHES):
                for phase, took in zip((Phase.FORWARD, Phase.BACKWARD), length(step, k),
                                       strict=True):  # fmt: skip
                    texts[rank].append(f"K {at}-{at + took} gemm")
                    spans[rank].append((phase, at, at + took, 0, k))
                    at += took
            arrive.append(at)
        over = max(arrive) + 5
        for rank, at in enumerate(arrive):
            members = ",".join(map(str, range(len(lengths))))
            texts[rank].append(f"C {at}-{over} s9 @dp:{members} #{step} bytes:64")
        bounds.append(f"{done}-{over}")
        done = over
    traces = [_rank(rank, texts[rank], bounds, spans[rank]) for rank in range(len(lengths))]
    clock = tuple(ClockFit(rank, 0.0, 0.0, 0) for rank in range(len(lengths)))
    return synth.run(*traces, clock=clock)


def _rank(
    rank: int, text: list[str], bounds: list[str], spans: list[tuple[Phase, int, int, int, int]]
) -> RankTrace:
    made = marked(synth.rank(rank, " | ".join(text), " ".join(bounds), unit_ns=MS), spans)
    kernels = dataclasses.replace(made.kernels, launch_ns=made.kernels.start_ns)
    return dataclasses.replace(made, kernels=kernels)


def longer_and_slower(step: int, microbatch: int) -> tuple[int, int]:
    forward, backward = longer(step, microbatch)
    return 2 * forward, 2 * backward


def even(step: int, microbatch: int) -> tuple[int, int]:
    return 100 + (step + microbatch) % 3, 200 + (step * microbatch) % 3


def longer(step: int, microbatch: int) -> tuple[int, int]:
    length = 100 + 60 * ((microbatch + step) % 4)
    return length, 2 * length


def slower(step: int, microbatch: int) -> tuple[int, int]:
    forward, backward = even(step, microbatch)
    return 2 * forward, 2 * backward


def one_phase(step: int, microbatch: int) -> tuple[int, int]:
    return 120 + 40 * ((microbatch + step) % 4), 400


def throttled(step: int, microbatch: int) -> tuple[int, int]:
    forward, backward = even(step, microbatch)
    return forward * (1 + step % 3), backward * (1 + step % 3)


def test_only_lengths_of_microbatches_are_lengths_of_sequences() -> None:
    for length, wanted in ((longer, True), (even, False), (slower, False), (one_phase, False),
                           (throttled, False)):  # fmt: skip
        assert lengths_differ(job(length, even).traces[0]) == wanted, length.__name__


def test_without_marks_nothing_is_said() -> None:
    assert not lengths_differ(synth.rank(0, "K 0-9", "0-9"))


def test_a_rank_with_longer_sequences_is_named_with_its_cause() -> None:
    result = analyze(job(even, longer, even, even))
    assert (result.culprit_ranks, result.cause) == ((1,), "sequence")


def test_a_slow_rank_among_ranks_of_differing_lengths_has_no_certain_cause() -> None:
    result = analyze(job(longer, longer_and_slower, longer, longer))
    assert (result.culprit_ranks, result.cause) == ((1,), None)


def test_a_slow_rank_is_not_taken_for_one() -> None:
    result = analyze(job(even, slower, even, even))
    assert (result.culprit_ranks, result.cause) == ((1,), "compute")
    assert analyze(job(even, even, even, even)).culprit_kind == "none"
