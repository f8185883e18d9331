"""How far the clocks of a job's hosts are apart: ping-pong over a connection of its own.

Torch's own communication would do on some backends only, and would show in the
trace. The exchange with the least round trip of many counts: queueing can only
make it longer.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import torch.distributed as dist

from tracekit.io.records import ClockRecord
from tracekit.profile.place import Place

EXCHANGES = 40
TIMEOUT_S = 20.0
_TIME = struct.Struct("!q")


def hosts(place: Place) -> list[int]:
    """The first rank of each host, by local rank: alone on one, the clock needs no samples."""
    if place.world_size == 1:
        return [place.rank]
    leaders: list[int | None] = [None] * place.world_size
    dist.all_gather_object(leaders, place.rank if place.local_rank == 0 else None)
    return [rank for rank in leaders if rank is not None]


def sample(place: Place, leaders: Sequence[int]) -> list[ClockRecord]:
    """Compare each host's clock with that of rank 0; every rank must call this.

    Returns:
        One sample on the first rank of every host but that of rank 0, else nothing.
    """
    if len(leaders) < 2:
        return []
    address = urlsplit(place.init_method).hostname
    with socket.socket() as listener:
        port: list[int] = [0]
        if place.rank == 0:
            listener.bind(("", 0))
            listener.listen()
            listener.settimeout(TIMEOUT_S)
            port[0] = listener.getsockname()[1]
        dist.broadcast_object_list(port, src=0)
        if place.rank == 0:
            for _ in leaders[1:]:
                _answer(listener)
            return []
    if place.rank not in leaders or address is None:
        return []
    return [_ask(address, port[0])]


def _answer(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(1):
            connection.sendall(_TIME.pack(time.time_ns()))


def _ask(address: str, port: int) -> ClockRecord:
    found = []
    with socket.create_connection((address, port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(EXCHANGES):
            before = time.time_ns()
            connection.sendall(b"?")
            (there,) = _TIME.unpack(connection.recv(_TIME.size, socket.MSG_WAITALL))
            after = time.time_ns()
            found.append((after - before, before, there - (before + after) // 2))
    round_trip, at, offset = min(found)
    return ClockRecord(peer=0, at_ns=at, offset_ns=offset, round_trip_ns=round_trip)
