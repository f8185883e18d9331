"""Whether two measurements were made under equal conditions, field by field.

Conditions are nested mappings as in ``run.json``; here each leaf is a field with
a dotted name. What must be equal for two runs to be compared is *held*; the rest
is *noted*. A value that one run does not know is neither equal nor different.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tracekit.core.run import Run

# Names of fields, or of groups of fields, that must be equal. `software.tracekit` only reads.
HELD = (
    "workload", "batch", "precision", "cache", "parallel", "mesh", "device_type",
    "profiler.options", "profiler.warmup",
    "hardware.device", "hardware.count", "hardware.memory_bytes", "hardware.cpu",
    "hardware.network", "software.torch", "software.cuda", "software.nccl", "software.driver",
    "software.python", "software.os",
)  # fmt: skip
# Different in any two runs, so no news.
ALWAYS_DIFFERENT = ("when", "command", "load", "probe_errors")


class Status(str, Enum):
    """What a difference means for a comparison."""

    DIFFERS = "differs"  # in a field that must be held
    UNKNOWN = "unknown"  # one of the runs does not know a field that must be held
    ALLOWED = "allowed"  # differs in a held field, on purpose
    NOTED = "noted"  # differs in a field that need not be held


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two runs differ; values in words, None when not known."""

    field: str
    base: str | None
    new: str | None
    status: Status


def differences(base: Run, new: Run, allowed: Sequence[str] = ()) -> tuple[Difference, ...]:
    """Fields that are not known to be equal, those that forbid a comparison first.

    Args:
        base: the run that is compared with.
        new: the run that is compared.
        allowed: fields or groups, ``software`` or ``software.torch``, that may differ.
    """
    left, right = facts(base), facts(new)
    found = [
        Difference(field, left.get(field), right.get(field), _status(field, left, right, allowed))
        for field in dict.fromkeys((*left, *right))
        if left.get(field) != right.get(field) and not _among(field, ALWAYS_DIFFERENT)
    ]
    order = list(Status)
    return tuple(sorted(found, key=lambda item: (order.index(item.status), item.field)))


def facts(run: Run) -> dict[str, str | None]:
    """Every field of a run's conditions, and what its traces tell, in words."""
    found = dict(_leaves(run.conditions, ""))
    kinds = sorted({trace.device_type for trace in run.traces})
    found["device_type"] = ", ".join(kinds) or None
    axes = {axis: size for axis, size in run.topology.axes.items() if size > 1}
    found["mesh"] = " × ".join(f"{axis} {size}" for axis, size in axes.items()) or None
    if found.get("parallel.world_size") is None:
        size = run.topology.world_size
        found["parallel.world_size"] = None if size is None else str(size)
    return found


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str | None]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif value is None or isinstance(value, str):
            yield prefix + str(key), value
        else:
            yield prefix + str(key), json.dumps(value, default=str)


def _status(
    field: str,
    left: Mapping[str, str | None],
    right: Mapping[str, str | None],
    allowed: Sequence[str],
) -> Status:
    if not _among(field, HELD):
        return Status.NOTED
    if _among(field, allowed):
        return Status.ALLOWED
    unknown = left.get(field) is None or right.get(field) is None
    return Status.UNKNOWN if unknown else Status.DIFFERS


def _among(field: str, names: Sequence[str]) -> bool:
    """Whether the field is one of these, or belongs to one of these groups."""
    return any(field == name or field.startswith(f"{name}.") for name in names)
