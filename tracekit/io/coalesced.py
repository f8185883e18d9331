"""The sends and receives that one coalesced kernel carries.

``batch_isend_irecv`` records each transfer on the host and then launches one kernel for all of
them, outside every record: the kernel has no arguments and no operator. On a thread a batch is
therefore what was recorded since the last launch. It tells the kernel's transfers only when
exactly one kernel was launched for it: NCCL may split a large batch over several, and then
nothing says which transfer is in which.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tracekit.core.trace import KernelKind
from tracekit.io import names
from tracekit.io.cpu import Work
from tracekit.io.events import MISSING, Events, StringTable

# A launch of a host function may come between a batch and its kernel.
_LAUNCH = re.compile("launch(?!hostfunc)", re.IGNORECASE)


class Coalesced(NamedTuple):
    """Arguments of each transfer, by index of the kernel in the work; and what stays untold."""

    transfers: dict[int, list[Mapping[str, Any]]]
    split: int  # batches that went on in further kernels


def transfers_of(
    events: Events, work: Work, table: StringTable, linked: Mapping[int, Mapping[str, Any]]
) -> Coalesced:
    """What the host recorded of each kernel that carries transfers and has no direction itself.

    Args:
        events: the file.
        work: its device work.
        table: strings of the file.
        linked: arguments of pieces of work that have any, by index.
    """
    columns = events.columns
    own = np.fromiter(events.args, dtype=np.int64, count=len(events.args))
    taken = np.setdiff1d(columns.external_id[work.row], [MISSING])
    records = own[
        (columns.name[own] == table[names.COMMUNICATION_RECORD])
        & ~np.isin(columns.external_id[own], taken)
    ]
    records = [row for row in records.tolist() if _has_direction(events.args[row])]
    candidates = _candidates(events, work, linked) if records else frozenset()
    if not candidates:
        return Coalesced({}, 0)
    kernel_of = _single_launches(events, work)
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row in [*records, *_launches(events)]:
        where = (int(columns.pid[row]), int(columns.tid[row]))
        threads[where].append((int(columns.start_ns[row]), row))
    found: dict[int, list[Mapping[str, Any]]] = {}
    split = 0
    for items in threads.values():
        split += _batches(events, sorted(items), kernel_of, candidates, found)
    return Coalesced(found, split)


def _has_direction(args: Mapping[str, Any]) -> bool:
    """Whether these arguments are of one send or one receive."""
    return names.collective(str(args.get("collective") or "")) in ("send", "recv")


def _candidates(
    events: Events, work: Work, linked: Mapping[int, Mapping[str, Any]]
) -> frozenset[int]:
    """Communication kernels that may carry transfers and are not told to be anything else."""
    strings, name = events.strings, events.columns.name[work.row]
    found = []
    for index in np.flatnonzero(work.kind == KernelKind.COMMUNICATION).tolist():
        told = str(linked.get(index, {}).get("collective") or strings[name[index]])
        op = names.collective(told)
        # RCCL's kernels are all called Generic.
        if op == "send_recv" or (op == "other" and "ccl" in told.lower()):
            found.append(index)
    return frozenset(found)


def _launches(events: Events) -> list[int]:
    """Rows of the runtime's calls that launch kernels."""
    rows = events.rows(names.LAUNCH_CATEGORIES)
    launches = np.array([bool(_LAUNCH.search(text)) for text in events.strings], dtype=np.bool_)
    found: list[int] = rows[launches[events.columns.name[rows]]].tolist() if len(rows) else []
    return found


def _single_launches(events: Events, work: Work) -> dict[int, int]:
    """Index of the kernel of each correlation that launched just one."""
    correlation = events.columns.correlation[work.row].tolist()
    counts = Counter(correlation)
    return {
        number: index
        for index, number in enumerate(correlation)
        if number != MISSING and counts[number] == 1
    }


def _batches(
    events: Events,
    items: list[tuple[int, int]],
    kernel_of: Mapping[int, int],
    candidates: frozenset[int],
    found: dict[int, list[Mapping[str, Any]]],
) -> int:
    """Enter the transfers of each kernel launched on one thread; how many batches were split.

    Args:
        events: the file.
        items: start and row of the thread's records and launches, in order of time.
        kernel_of: index of the kernel of each correlation.
        candidates: kernels that may carry transfers.
        found: what is entered, by kernel.
    """
    batch: list[Mapping[str, Any]] = []
    latest = MISSING  # the kernel that has the batch before, until anything else comes
    split = 0
    for _, row in items:
        args = events.args.get(row)
        if args is not None and _has_direction(args):
            batch.append(args)
            latest = MISSING
            continue
        index = kernel_of.get(int(events.columns.correlation[row]), MISSING)
        if index not in candidates:
            latest = MISSING
        elif batch:
            found[index] = batch
            latest = index
        elif latest in found:
            del found[latest]
            split += 1
        # Records that any other launch follows were its own, or have lost their kernel.
        batch = []
    return split
