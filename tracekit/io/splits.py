"""How many rows an all_to_all moves to and from each member of its group.

NCCL jobs record the splits with the call. On a CPU they are inputs of the operator that
hands the job to the backend; the k-th such operator made the k-th transfer, where their
numbers and sizes agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.core.trace import NO_SPLITS, Calls, Splits
from tracekit.io import names
from tracekit.io.cpu import CPU_DEVICE, Work
from tracekit.io.events import MISSING, Events
from tracekit.io.groups import rank_list

Rows = tuple[Sequence[int], Sequence[int]]  # sent to and received from each member


def splits_of(
    events: Events, work: Work, calls: Calls, args: Sequence[Mapping[str, Any]]
) -> Splits:
    """The splits of all calls that record them.

    Args:
        events: the file.
        work: its device work.
        calls: its communication calls.
        args: of each call, as far as they are known.
    """
    if len(work.device) and (work.device == CPU_DEVICE).all():
        found = _of_operators(events, work, calls, args)
    else:
        found = {
            call: rows for call, one in enumerate(args) if (rows := _of_arguments(one)) is not None
        }
    if not found:
        return NO_SPLITS
    sizes = [len(sent) for sent, _ in found.values()]
    return Splits(
        call=np.repeat(np.array(list(found), dtype=np.int32), sizes),
        member=np.concatenate([np.arange(size, dtype=np.int32) for size in sizes]),
        sent=np.concatenate([np.array(sent, dtype=np.int64) for sent, _ in found.values()]),
        received=np.concatenate([np.array(got, dtype=np.int64) for _, got in found.values()]),
    )


def _of_arguments(args: Mapping[str, Any]) -> Rows | None:
    """Splits from a call's own arguments; None when they are absent, even or cut short."""
    if "in_split" not in args or "out_split" not in args:
        return None
    return _rows(rank_list(args["in_split"]), rank_list(args["out_split"]))


def _rows(sent: Sequence[int], received: Sequence[int]) -> Rows | None:
    if not sent or len(sent) != len(received):
        return None
    if max(*sent, *received) >= 1 << 62:
        return None
    return sent, received


def _of_operators(
    events: Events, work: Work, calls: Calls, args: Sequence[Mapping[str, Any]]
) -> dict[int, Rows]:
    """Splits of a CPU job: from the operators, in order, one for each transfer."""
    columns = events.columns
    rows = events.rows(names.OPERATOR_CATEGORIES)
    codes = {code: names.SPLIT_OPERATORS[events.strings[code]]
             for code in events.codes(names.SPLIT_OPERATORS)}  # fmt: skip
    operators = rows[np.isin(columns.name[rows], list(codes))]
    operators = operators[np.argsort(columns.start_ns[operators], kind="stable")]
    wanted = [
        call
        for call in np.argsort(work.start_ns[calls.kernel], kind="stable").tolist()
        if "all_to_all" in events.strings[columns.name[work.row[calls.kernel[call]]]]
    ]
    if len(wanted) != len(operators):
        return {}
    found: dict[int, Rows] = {}
    for call, row in zip(wanted, operators.tolist(), strict=True):
        told = events.args.get(row, {})
        if input_shape(told, 1) != input_shape(args[call], 0):
            return {}
        concrete = told.get("concrete")
        out, into = codes[int(columns.name[row])]
        if isinstance(concrete, list) and len(concrete) > max(out, into):
            pair = _rows(rank_list(concrete[into]), rank_list(concrete[out]))
            if pair is not None:
                found[call] = pair
    return dict(sorted(found.items()))


def input_shape(args: Mapping[str, Any], place: int) -> object:
    """Shape of one input, if recorded."""
    dims = args.get("input_dims")
    return dims[place] if isinstance(dims, list) and place < len(dims) else MISSING
