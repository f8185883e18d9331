"""The grammar of planted faults."""

from __future__ import annotations

import pytest

from tracekit.core import fault
from tracekit.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("slow-rank:3:1.5", fault.SlowRank(3, 1.5)),
        ("delay:2:40", fault.Delay(2, 40.0, 1)),
        ("delay:0:1.5:every=3", fault.Delay(0, 1.5, 3)),
        ("gc:1:30:every=2", fault.Gc(1, 30.0, 2)),
        ("slow-stage:0:2", fault.SlowStage(0, 2.0)),
        ("slow-link:3-2:5", fault.SlowLink((2, 3), 5.0)),
        ("hot-expert:3:0.25", fault.HotExpert(3, 0.25)),
        ("dataloader:1:20", fault.Dataloader(1, 20.0)),
    ],
)
def test_forms(text: str, meant: fault.Fault) -> None:
    assert fault.parse(text) == meant
    assert meant.truth()["kind"] == text.partition(":")[0]


@pytest.mark.parametrize(
    "text",
    [
        "", "warm-rank:1:2", "delay", "delay:1", "delay:one:40", "delay:-1:40", "delay:1:0",
        "delay:1:inf", "delay:1:nan", "delay:1:40:3", "delay:1:40:every=0", "delay:1:40:each=2",
        "delay:1:40:every=2:more", "gc:1", "slow-link:1:5", "slow-link:1-1:5", "slow-link:1-2-3:5",
        "hot-expert:1", "hot-expert:1:0", "hot-expert:1:1.5", "hot-expert:-1:0.5",
        "hot-expert:1:nan", "dataloader:0:-1", "slow-rank:0:x",
    ],
)  # fmt: skip
def test_anything_else_lists_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match=r"known faults: slow-rank:RANK:FACTOR, delay:RANK:MS"):
        fault.parse(text)


def test_every_nth_step() -> None:
    assert [step for step in range(7) if fault.Delay(0, 1.0, 3).hits(step)] == [0, 3, 6]
