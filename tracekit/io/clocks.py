"""The runner's clock samples between hosts, from the records beside the traces."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tracekit.core.sampled import ClockSample
from tracekit.io.discover import TraceFile
from tracekit.io.records import ClockRecord


class _Clocks(msgspec.Struct):
    """What is wanted of one rank's records; the rest is skipped, not decoded."""

    rank: int
    clock: list[ClockRecord] = []


def samples(files: Iterable[TraceFile]) -> tuple[ClockSample, ...]:
    """Every sample once; records that cannot be read were told when their trace was."""
    found: dict[ClockSample, None] = {}
    for path in sorted({file.records for file in files if file.records is not None}):
        try:
            clocks = msgspec.json.decode(path.read_bytes(), type=_Clocks)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
        for item in clocks.clock:
            sample = ClockSample(
                clocks.rank, item.peer, item.at_ns, item.offset_ns, item.round_trip_ns
            )
            found[sample] = None
    return tuple(found)
