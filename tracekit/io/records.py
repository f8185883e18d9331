"""What the runner writes beside a trace because the trace cannot hold it.

CPU backends leave no group and no sequence number in a Kineto trace. The
runner therefore keeps, per rank, what PyTorch's Flight Recorder knows of each
collective and its own marks of each point-to-point transfer.
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


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """All records of one rank, within the profiled window."""

    schema: str = SCHEMA
    rank: int
    collectives: list[CollectiveRecord] = []
    p2p: list[P2pRecord] = []


def write(path: Path, records: Records) -> None:
    """Write the records of one rank."""
    path.write_bytes(msgspec.json.encode(records))
