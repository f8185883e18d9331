"""Which collective each communication kernel carries out, in which group, over how many bytes.

By the kernel's own arguments, else by the ``record_param_comms`` operator that
its external id names, else by the one that encloses its launch, else by the
kernel's name alone. A coalesced kernel has a call for each transfer the host recorded for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tracekit.core.run import Diagnostic, Severity
from tracekit.core.topology import Group
from tracekit.core.trace import Calls, KernelKind, Splits
from tracekit.io import coalesced, names
from tracekit.io.cpu import Work
from tracekit.io.events import MISSING, Events, StringTable
from tracekit.io.groups import GroupTable
from tracekit.io.roots import roots_of
from tracekit.io.splits import splits_of


class Found(NamedTuple):
    """The calls, the groups their ``group`` column indexes, the splits of uneven ones, notes."""

    columns: Calls
    groups: tuple[Group, ...]
    splits: Splits
    notes: tuple[Diagnostic, ...]


def calls(events: Events, work: Work, table: StringTable, groups: tuple[Group, ...]) -> Found:
    """The communication calls of one file.

    Args:
        events: the file.
        work: its device work; ``Calls.kernel`` indexes its rows.
        table: strings of the file; grows by op and dtype names.
        groups: known from the header.
    """
    known = GroupTable(groups)
    linked = _linked_arguments(events, work, table)
    batches = coalesced.transfers_of(events, work, table, linked)
    rows: list[tuple[int, ...]] = []
    every: list[Mapping[str, Any]] = []
    for index in _candidates(work, linked):
        name = events.strings[events.columns.name[work.row[index]]]
        for args in batches.transfers.get(index) or [linked.get(index, {})]:
            every.append(args)
            rows.append((index, *_call(args, name, table, known)))
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 8).T
    texts = tuple(table)
    ops = [texts[code] for code in columns[1].tolist()]
    roots = roots_of(events, work, columns[0].tolist(), ops, every)
    found = Calls(
        kernel=columns[0].astype(np.int32),
        op_id=columns[1].astype(np.int32),
        group=columns[2].astype(np.int32),
        seq=columns[3].copy(),
        in_bytes=columns[4].copy(),
        out_bytes=columns[5].copy(),
        dtype_id=columns[6].astype(np.int32),
        peer=columns[7].astype(np.int32),
        root=roots.root,
    )
    notes = _notes(found, batches, roots.odd)
    return Found(found, tuple(known.groups), splits_of(events, work, found, every), notes)


def _notes(calls: Calls, batches: coalesced.Coalesced, odd_roots: int) -> tuple[Diagnostic, ...]:
    shared = len(np.unique(calls.kernel[calls.carried() > 1]))
    told = (
        ("coalesced-transfers", Severity.INFO, shared,
         "kernels carry several transfers each; they end with the last of those"),
        ("split-batches", Severity.INFO, batches.split,
         "batches of transfers went on in several kernels; what is in which is not known"),
        ("odd-root", Severity.WARNING, odd_roots,
         "the root of a broadcast or reduce is no place in a group; it is not used"),
    )  # fmt: skip
    return tuple(
        Diagnostic(code, severity, None, count, text)
        for code, severity, count, text in told
        if count
    )


def _candidates(work: Work, linked: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Work that is communication by kind or has communication arguments, in order."""
    by_kind = np.flatnonzero(work.kind == KernelKind.COMMUNICATION).tolist()
    return sorted({*by_kind, *linked})


def _linked_arguments(
    events: Events, work: Work, table: StringTable
) -> dict[int, Mapping[str, Any]]:
    """Arguments per piece of work (by index into ``work``) that has any, memory excepted."""
    if not events.args:
        return {}
    columns = events.columns
    own = np.fromiter(events.args, dtype=np.int64, count=len(events.args))
    is_operator = columns.name[own] == table[names.COMMUNICATION_RECORD]
    operators = own[is_operator].tolist()
    by_id = {int(columns.external_id[row]): events.args[row] for row in operators}
    by_id.pop(MISSING, None)
    external = columns.external_id[work.row]
    linked = np.isin(work.row, own) | np.isin(external, np.array(list(by_id), dtype=np.int64))
    found: dict[int, Mapping[str, Any]] = {}
    for index in np.flatnonzero(linked & (work.kind != KernelKind.MEMORY)).tolist():
        mine = events.args.get(int(work.row[index]))
        operator = by_id.get(int(external[index]))
        if args := _together(mine, operator):
            found[index] = args
    missing = [
        index
        for index in np.flatnonzero(work.kind == KernelKind.COMMUNICATION).tolist()
        if index not in found
    ]
    if missing and operators:
        found.update(_by_enclosing_operator(events, work, missing, operators))
    return found


def _together(
    mine: Mapping[str, Any] | None, operator: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """A kernel's own arguments, with the root that only its operator tells."""
    if not mine or not operator:
        return mine or operator
    if "rank" not in operator or mine.get("collective") != operator.get("collective"):
        return mine
    return {**mine, "rank": operator["rank"]}


def _by_enclosing_operator(
    events: Events, work: Work, missing: list[int], operators: list[int]
) -> dict[int, Mapping[str, Any]]:
    """Through correlation and launch to the operator that was open on that thread."""
    columns = events.columns
    launches = events.rows(names.LAUNCH_CATEGORIES)
    launch_of = dict(zip(columns.correlation[launches].tolist(), launches.tolist(), strict=True))
    # A launch without correlation proves nothing.
    launch_of.pop(MISSING, None)
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row in operators:
        spans[_thread(events, row)].append((int(columns.start_ns[row]), row))
    for items in spans.values():
        items.sort()
    found: dict[int, Mapping[str, Any]] = {}
    for index in missing:
        launch = launch_of.get(int(columns.correlation[work.row[index]]))
        if launch is None:
            continue
        opened = spans.get(_thread(events, launch), [])
        at = int(columns.start_ns[launch])
        place = bisect_right(opened, at, key=lambda item: item[0]) - 1
        if place >= 0:
            start, row = opened[place]
            if at <= start + int(columns.duration_ns[row]):
                found[index] = events.args[row]
    return found


def _thread(events: Events, row: int) -> tuple[int, int]:
    return int(events.columns.pid[row]), int(events.columns.tid[row])


def _call(
    args: Mapping[str, Any], name: str, table: StringTable, known: GroupTable
) -> tuple[int, int, int, int, int, int, int]:
    """op_id, group, seq, in_bytes, out_bytes, dtype_id, peer of one call."""
    recorded = args.get("collective")
    op = names.collective(recorded or name)
    if "input_dims" in args:
        dtype, size = _cpu_bytes(args)
        in_bytes = out_bytes = size
    else:
        dtype = str(args.get("dtype") or "")
        width = names.element_bytes(dtype)
        in_bytes = _bytes(args.get("in_elements"), width)
        out_bytes = _bytes(args.get("out_elements"), width)
    peer = args.get("destination_rank") if op == "send" else args.get("source_rank")
    return (
        table[op],
        _group(args, known),
        _integer(args.get("seq")),
        in_bytes,
        out_bytes,
        table[dtype] if dtype else MISSING,
        _rank(peer),
    )


def _rank(value: object) -> int:
    """A rank, which must not wrap around into another's, else -1."""
    number = _integer(value)
    return number if number <= np.iinfo(np.int32).max else MISSING


def _group(args: Mapping[str, Any], known: GroupTable) -> int:
    name = args.get("group_name", args.get("group_id"))
    if name is None and "group_ranks" not in args:
        return MISSING
    return known.index(
        "" if name is None else str(name),
        str(args.get("group_description") or ""),
        args.get("group_ranks"),
    )


def _bytes(elements: object, width: int | None) -> int:
    count = _integer(elements)
    return MISSING if count < 0 or width is None else count * width


def _cpu_bytes(args: Mapping[str, Any]) -> tuple[str, int]:
    """dtype and bytes of the tensors a CPU backend lists as its inputs."""
    dims = args["input_dims"]
    types = args.get("input_type") or []
    dtype, total = "", 0
    for shape, kind in zip(_flat(dims), types * len(_flat(dims)), strict=False):
        width = names.element_bytes(str(kind))
        if width is None:
            return dtype, MISSING
        dtype = str(kind)
        total += int(np.prod(shape, dtype=np.int64)) * width
    return dtype, total if dtype else MISSING


def _flat(dims: object) -> list[list[int]]:
    """Shapes in a possibly nested ``Input Dims``."""
    if not isinstance(dims, list):
        return []
    if dims and all(isinstance(item, int) for item in dims):
        return [dims]
    return [shape for item in dims for shape in _flat(item)]


def _integer(value: object) -> int:
    """A non-negative id or count as int64, else -1."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) else MISSING
    except (ValueError, OverflowError):
        return MISSING
    return number if 0 <= number < 1 << 62 else MISSING
