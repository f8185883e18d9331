"""What the runner writes beside a trace because the trace cannot hold it.

CPU backends leave no group and no sequence number in a Kineto trace. The
runner therefore keeps, per rank, what PyTorch's Flight Recorder knows of each
collective, its own marks of each point-to-point transfer, the tokens of each
expert, and how far clocks of several hosts are apart.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

SCHEMA = "tracekit.records/1"


class CollectiveRecord(msgspec.Struct, frozen=True):
    """One collective as its rank issued it, from the Flight Recorder."""

    group: str  # process group name, as in the manifest's topology
    seq: int  # per group, counted alike on all its ranks
    op: str  # "all_reduce", "all_to_all", ...
    created_ns: int  # wall clock, like the trace's
    in_sizes: list[list[int]]
    out_sizes: list[list[int]]
    in_dtypes: list[str]
    out_dtypes: list[str]


class P2pRecord(msgspec.Struct, frozen=True):
    """One send or recv: when it was posted and when the caller waited for it."""

    op: str  # "send" or "recv"
    group: str
    peer: int  # global rank
    bytes: int
    posted_ns: int
    wait_start_ns: int
    wait_end_ns: int


class ExpertRecord(msgspec.Struct, frozen=True):
    """Tokens that the experts of one layer on this rank got, in one call of that layer."""

    layer: int
    first: int  # number of the first expert held here
    at_ns: int  # when the call ended
    tokens: list[int]  # of each held expert, in order


class ClockRecord(msgspec.Struct, frozen=True):
    """This rank's clock against another's: ``peer's clock = own clock + offset``."""

    peer: int
    at_ns: int
    offset_ns: int
    round_trip_ns: int  # of the fastest exchange: the offset is known to half of it


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """All records of one rank, within the profiled window."""

    schema: str = SCHEMA
    rank: int
    collectives: list[CollectiveRecord] = []
    p2p: list[P2pRecord] = []
    experts: list[ExpertRecord] = []
    clock: list[ClockRecord] = []


def write(path: Path, records: Records) -> None:
    """Write the records of one rank."""
    path.write_bytes(msgspec.json.encode(records))
