"""Whose data a broadcast spreads, and who gets the sum of a reduce: the root of each call.

NCCL jobs record it as the rank of ``record_param_comms``: a place in the group. On a CPU it is
an input of the operator that hands the job to the backend; the k-th such operator made the k-th
transfer of its kind, where their numbers and sizes agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracekit.core.collective import FROM_ROOT, TO_ROOT
from tracekit.core.trace import Int32
from tracekit.io import names
from tracekit.io.cpu import CPU_DEVICE, Work
from tracekit.io.events import MISSING, Events
from tracekit.io.splits import input_shape

_ROOTED = FROM_ROOT | TO_ROOT
_LARGEST = np.iinfo(np.int32).max


class Roots(NamedTuple):
    """The root of each call as its place in the group, -1 where it is none or not told."""

    root: Int32
    odd: int  # calls whose root is no number that could be one


def roots_of(
    events: Events, work: Work, kernel: Sequence[int], ops: Sequence[str],
    args: Sequence[Mapping[str, Any]],
) -> Roots:  # fmt: skip
    """The roots of all calls of a file.

    Args:
        events: the file.
        work: its device work.
        kernel: index into the work, of each call.
        ops: operation of each call.
        args: of each call, as far as they are known.
    """
    if len(work.device) and (work.device == CPU_DEVICE).all():
        told = _of_operators(events, work, kernel, ops, args)
    else:
        told = [one.get("rank") for one in args]
    root = np.full(len(ops), MISSING, dtype=np.int32)
    odd = 0
    for call, (op, value) in enumerate(zip(ops, told, strict=True)):
        if op not in _ROOTED or value is None:
            continue
        found = _place(value)
        if found is None:
            odd += 1
        else:
            root[call] = found
    return Roots(root, odd)


def _place(value: object) -> int | None:
    """A place in a group; None for what cannot be one."""
    try:
        number = int(value) if isinstance(value, (int, str)) else MISSING
    except ValueError:
        return None
    return number if 0 <= number <= _LARGEST else None


def _of_operators(
    events: Events, work: Work, kernel: Sequence[int], ops: Sequence[str],
    args: Sequence[Mapping[str, Any]],
) -> list[object]:  # fmt: skip
    """The root's text per call of a CPU job, from the operators in order."""
    columns = events.columns
    out: list[object] = [None] * len(ops)
    cpu_rows = events.rows(names.OPERATOR_CATEGORIES)
    order = np.argsort(work.start_ns[np.array(kernel, dtype=np.intp)], kind="stable").tolist()
    for name, (op, place) in names.ROOT_OPERATORS.items():
        rows = cpu_rows[np.isin(columns.name[cpu_rows], list(events.codes({name})))]
        rows = rows[np.argsort(columns.start_ns[rows], kind="stable")]
        calls = [call for call in order if ops[call] == op]
        told = [events.args.get(row, {}) for row in rows.tolist()]
        if len(calls) != len(told) or any(
            _shape(one) != input_shape(args[call], 0) for call, one in zip(calls, told, strict=True)
        ):
            continue
        for call, one in zip(calls, told, strict=True):
            concrete = one.get("concrete")
            if isinstance(concrete, list) and len(concrete) > place:
                out[call] = concrete[place]
    return out


def _shape(args: Mapping[str, Any]) -> object:
    """Shape of the one tensor in the list that is the operator's first input."""
    found = input_shape(args, 0)
    return found[0] if isinstance(found, list) and len(found) == 1 else MISSING
