"""What a CPU trace cannot hold: the group and sequence of collectives, and p2p transfers."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules

from tracekit.io.records import CollectiveRecord, P2pRecord, Records

# Entries of PyTorch's Flight Recorder, a ring: the window must fit.
BUFFER_SIZE = 20_000


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Turn the Flight Recorder on; only counts before the first process group exists."""
    environment.setdefault("TORCH_FR_BUFFER_SIZE", str(BUFFER_SIZE))


class Recorder:
    """Keeps one rank's point-to-point transfers while :meth:`watch` is open."""

    def __init__(self) -> None:
        self._p2p: list[P2pRecord] = []
        # Work handles have no identity of their own that outlives them: keep them until waited for.
        self._open: dict[int, tuple[dist.Work, list[dist.P2POp], int]] = {}

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Note each transfer that the pipeline schedules post and wait for."""
        if not hasattr(schedules, "_wait_batch_p2p"):  # another version of torch: do without
            yield
            return
        post, wait = schedules._batch_p2p, schedules._wait_batch_p2p

        def posted(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
            now = time.time_ns()
            works = post(p2p_ops, desc)
            self._note(p2p_ops, works, now)
            return works

        schedules._batch_p2p = posted
        schedules._wait_batch_p2p = self._wait
        try:
            yield
        finally:
            schedules._batch_p2p, schedules._wait_batch_p2p = post, wait

    def _note(self, ops: list[dist.P2POp], works: list[dist.Work], now: int) -> None:
        # One work per transfer, or a single coalesced one for all of them.
        shares = [[op] for op in ops] if len(works) == len(ops) else [ops]
        for work, share in zip(works, shares, strict=False):
            self._open[id(work)] = (work, share, now)

    def _wait(self, work: list[dist.Work]) -> None:
        for each in work:
            start = time.time_ns()
            each.wait()
            end = time.time_ns()
            _, ops, posted = self._open.pop(id(each), (each, [], 0))
            self._p2p.extend(_p2p_record(op, posted, start, end) for op in ops)

    def records(self, rank: int, start_ns: int, end_ns: int) -> Records:
        """Everything of this rank that was issued inside the window.

        Raises:
            RuntimeError: the Flight Recorder's ring overflowed and lost the window's beginning.
        """
        entries = flight_entries()
        size = int(os.environ.get("TORCH_FR_BUFFER_SIZE", "0"))
        if len(entries) >= size > 0 and int(entries[0]["time_created_ns"]) > start_ns:
            raise RuntimeError(
                f"more than {size} collectives in the window; profile fewer steps "
                "or set TORCH_FR_BUFFER_SIZE higher"
            )
        return Records(
            rank=rank,
            collectives=[
                _collective_record(entry)
                for entry in entries
                if start_ns <= int(entry["time_created_ns"]) < end_ns and not entry["is_p2p"]
            ],
            # Kept as they were waited for; put in the order of the trace's c10d::send and recv_.
            p2p=sorted(
                (record for record in self._p2p if start_ns <= record.posted_ns < end_ns),
                key=lambda record: record.posted_ns,
            ),
        )


def flight_entries() -> list[dict[str, Any]]:
    """What the Flight Recorder holds, oldest first; empty where this torch has none."""
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return []
    entries: list[dict[str, Any]] = json.loads(dump()).get("entries", [])
    return entries


def _collective_record(entry: dict[str, Any]) -> CollectiveRecord:
    return CollectiveRecord(
        group=entry["process_group"][0],
        seq=entry["collective_seq_id"],
        op=entry["profiling_name"].rpartition(":")[2],
        created_ns=entry["time_created_ns"],
        in_sizes=entry["input_sizes"],
        out_sizes=entry["output_sizes"],
        in_dtypes=entry["input_dtypes"],
        out_dtypes=entry["output_dtypes"],
    )


def _p2p_record(op: dist.P2POp, posted: int, start: int, end: int) -> P2pRecord:
    group = op.group or dist.distributed_c10d._get_default_group()
    return P2pRecord(
        op="send" if op.op is dist.isend else "recv",
        group=group.group_name,
        peer=op.peer,
        bytes=op.tensor.numel() * op.tensor.element_size(),
        posted_ns=posted,
        wait_start_ns=start,
        wait_end_ns=end,
    )
