"""What a CPU trace cannot hold: the group and sequence of collectives, and p2p transfers."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils.hooks import RemovableHandle

from tracekit.core.trace import Phase
from tracekit.io.records import ClockRecord, CollectiveRecord, ExpertRecord, P2pRecord, Records
from tracekit.profile import marks

# Entries of PyTorch's Flight Recorder, a ring: the window must fit.
BUFFER_SIZE = 20_000


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Turn the Flight Recorder on; only counts before the first process group exists."""
    environment.setdefault("TORCH_FR_BUFFER_SIZE", str(BUFFER_SIZE))


class ExpertLayer(Protocol):
    """A layer that counts the tokens of the experts it holds."""

    layer: int
    first: int  # number of the first expert held
    tokens: torch.Tensor | None  # of each held expert in the latest call

    def register_forward_hook(self, hook: Callable[..., None]) -> RemovableHandle: ...


class Recorder:
    """Keeps what one rank does and a trace does not tell, while :meth:`watch` is open."""

    def __init__(self, experts: Sequence[ExpertLayer] = ()) -> None:
        self._experts = experts
        self._tokens: list[tuple[ExpertLayer, int, torch.Tensor]] = []
        self._p2p: list[P2pRecord] = []
        # Work handles have no identity of their own that outlives them: keep them until waited for.
        self._open: dict[int, tuple[dist.Work, list[dist.P2POp], int]] = {}

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Mark and note everything until closed."""
        with contextlib.ExitStack() as open_:
            open_.enter_context(marks.pipeline())
            open_.enter_context(marks.garbage_collection())
            schedules = marks.loaded("schedules")
            open_.enter_context(marks.replaced(schedules, "_batch_p2p", self._posting))
            open_.enter_context(
                marks.replaced(schedules, "_wait_batch_p2p", lambda original: self._wait)
            )
            for layer in self._experts:
                handle = layer.register_forward_hook(self._count)
                open_.callback(handle.remove)
            yield

    def _count(self, layer: ExpertLayer, *_: object) -> None:
        if layer.tokens is not None:
            self._tokens.append((layer, time.time_ns(), layer.tokens))

    def _posting(self, post: Callable[..., list[dist.Work]]) -> Callable[..., list[dist.Work]]:
        def posted(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
            now = time.time_ns()
            works = post(p2p_ops, desc)
            self._note(p2p_ops, works, now)
            return works

        return posted

    def _note(self, ops: list[dist.P2POp], works: list[dist.Work], now: int) -> None:
        # One work per transfer, or a single coalesced one for all of them.
        shares = [[op] for op in ops] if len(works) == len(ops) else [ops]
        for work, share in zip(works, shares, strict=False):
            self._open[id(work)] = (work, share, now)

    def _wait(self, work: list[dist.Work]) -> None:
        for each in work:
            _, ops, posted = self._open.pop(id(each), (each, [], 0))
            receives = any(op.op is dist.irecv for op in ops)
            start = time.time_ns()
            with marks.mark(Phase.RECV if receives else Phase.SEND):
                each.wait()
            end = time.time_ns()
            self._p2p.extend(_p2p_record(op, posted, start, end) for op in ops)

    def records(
        self, rank: int, start_ns: int, end_ns: int, clock: Sequence[ClockRecord] = ()
    ) -> Records:
        """Everything of this rank that was issued inside the window, and its clock samples.

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
            experts=[
                ExpertRecord(layer=layer.layer, first=layer.first, at_ns=at, tokens=tokens.tolist())
                for layer, at, tokens in self._tokens
                if start_ns <= at < end_ns
            ],
            clock=list(clock),
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
