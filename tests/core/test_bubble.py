"""Bubbles: the replay of a schedule gives what the papers say."""

from __future__ import annotations

import pytest

from tracekit.core import bubble
from tracekit.core import schedule as schedules


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("name", "chunks", "times"),
    [
        ("gpipe", 1, (3.0, 4.0, 2.0)),
        ("1f1b", 1, (3.0, 4.0, 2.0)),
        ("interleaved_1f1b", 2, (3.0, 4.0, 2.0)),
        ("interleaved_1f1b", 3, (3.0, 4.0, 2.0)),
        ("zero_bubble", 1, (3.0, 4.0, 2.0)),
        ("zero_bubble", 2, (3.0, 4.0, 2.0)),
        ("zbv", 2, (3.0, 4.0, 2.0)),
        # DualPipeV's formula is for inputs that take no longer than a forward.
        ("dualpipev", 2, (3.0, 3.0, 3.0)),
        ("dualpipev", 2, (2.0, 2.0, 1.0)),
    ],
)
def test_bubbles_equal_the_papers(
    name: str, chunks: int, times: tuple[float, float, float], ranks: int
) -> None:
    forward, inputs, weights = times
    costs = {"F": forward, "B": inputs + weights, "I": inputs, "W": weights}
    plan = schedules.pipeline(name, ranks, 4 * ranks, chunks)
    spans = bubble.replay(plan, lambda action: costs[action.kind.value] / chunks)
    total = max(end for _, end in spans) - min(start for start, _ in spans)
    busy = 4 * ranks * sum(times)
    assert total - busy == pytest.approx(bubble.closed_form_bubble(plan, *times))


def test_a_transfer_delays_each_hop() -> None:
    plan = schedules.pipeline("gpipe", 3, 1)
    (_, first), _, (start, last) = bubble.replay(plan, lambda _: 10.0, transfer=1.0)
    assert (start, last, first) == (22.0, 42.0, 64.0)


def test_a_receive_reached_late_is_not_hidden_unless_it_is_early() -> None:
    plan = schedules.pipeline("gpipe", 2, 2)
    late, early = (
        bubble.replay(plan, lambda _: 10.0, transfer=3.0, early=early) for early in (False, True)
    )
    # The second microbatch is sent while the first one computes there, or after it.
    assert (early[1][1], late[1][1]) == (53.0, 56.0)
