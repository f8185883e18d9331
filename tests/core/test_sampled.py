"""Clock samples between hosts: averaged, connecting, contradicting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import synth
from tracekit.core.clock import ClockFit
from tracekit.core.sampled import ClockSample, held_against
from tracekit.core.trace import RankTrace
from tracekit.io import clocks, records
from tracekit.io.discover import TraceFile

AT = 1_000_000_000


def traces(device_type: str = "cpu") -> list[RankTrace]:
    hosts = ("a", "a", "b", "b")
    return [synth.rank(n, "", device_type=device_type, host=host) for n, host in enumerate(hosts)]


def fits(offset: float, error: float, component: int = 0) -> list[ClockFit]:
    there = [ClockFit(n, offset, error, component, 0.0, AT) for n in (2, 3)]
    return [ClockFit(0, 0.0, 0.0, 0, 0.0, AT), ClockFit(1, 0.0, 500.0, 0, 0.0, AT), *there]


def sampled(*ahead: tuple[int, int], round_trip: int = 200_000) -> list[ClockSample]:
    """Samples of rank 2, which is so much ahead of rank 0 at these times."""
    return [ClockSample(2, 0, at, -value, round_trip) for at, value in ahead]


def test_what_agrees_is_averaged_by_the_variances() -> None:
    found, notes = held_against(traces(), fits(300_000.0, 200_000.0), sampled((AT, 200_000)))
    assert notes == ()
    assert found[:2] == tuple(fits(0, 0)[:2])
    for fit in found[2:]:
        # 200 µs against 100 µs: the samples weigh four times as much.
        assert fit.offset_ns == pytest.approx(220_000)
        assert fit.uncertainty_ns == pytest.approx(200_000 / 5**0.5)


def test_samples_before_and_after_make_a_line() -> None:
    around = sampled((AT - 100, 100_000), (AT + 300, 500_000), round_trip=2)
    found, _ = held_against(traces(), fits(200_000.0, 1_000.0), around)
    assert found[2].offset_ns == pytest.approx(200_000)
    assert found[2].uncertainty_ns < 2


def test_what_disagrees_is_told_and_trusted_less() -> None:
    found, (note,) = held_against(traces(), fits(900_000.0, 10_000.0), sampled((AT, 100_000)))
    assert (note.code, note.rank) == ("clock-samples-disagree", 2)
    assert "900 µs (± 10) by its collectives" in note.message
    assert "100 µs (± 100) by samples" in note.message
    for fit in found[2:]:
        assert fit.offset_ns == 900_000
        assert fit.uncertainty_ns >= 800_000


def test_samples_connect_what_nothing_else_does() -> None:
    found, notes = held_against(traces(), fits(0.0, 0.0, component=1), sampled((AT, 70_000)))
    assert notes == ()
    assert {fit.component for fit in found} == {0}
    assert [fit.offset_ns for fit in found] == [0, 0, 70_000, 70_000]
    assert found[2].uncertainty_ns == pytest.approx(100_000)


def test_of_devices_samples_only_check() -> None:
    before = tuple(fits(300_000.0, 200_000.0))
    assert held_against(traces("gpu"), before, sampled((AT, 200_000))) == (before, ())
    apart = tuple(fits(0.0, 0.0, component=1))
    assert held_against(traces("gpu"), apart, sampled((AT, 200_000))) == (apart, ())
    _, notes = held_against(traces("gpu"), before, sampled((AT, 2_000_000)))
    assert len(notes) == 1


def test_without_samples_nothing_changes() -> None:
    before = tuple(fits(300_000.0, 200_000.0))
    assert held_against(traces(), before, ()) == (before, ())
    elsewhere = [ClockSample(7, 0, AT, 5, 1)]
    assert held_against(traces(), before, elsewhere) == (before, ())


def test_samples_are_read_from_the_records(tmp_path: Path) -> None:
    kept = records.ClockRecord(peer=0, at_ns=AT, offset_ns=-70, round_trip_ns=20)
    records.write(tmp_path / "r2.json", records.Records(rank=2, clock=[kept]))
    (tmp_path / "bad.json").write_text("{")
    files = [
        TraceFile("t", n, None, tmp_path / name) for n, name in enumerate(("r2.json", "bad.json"))
    ]
    assert clocks.samples([*files, TraceFile("t", 3)]) == (ClockSample(2, 0, AT, -70, 20),)
