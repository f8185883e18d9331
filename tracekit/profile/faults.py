"""Planted faults: disturbances whose place and size are known, to test what finds them.

A delay is a pause of the host: it is exact, whatever else runs on the machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.core.errors import UsageError

if TYPE_CHECKING:
    from tracekit.workloads import Workload

FORMS = "delay:RANK:MS[:every=N], hot-expert:E:SHARE"


@dataclass(frozen=True, slots=True)
class Delay:
    """Rank ``rank`` pauses before a step's first communication, in every ``every``-th step."""

    rank: int
    ms: float
    every: int = 1

    def truth(self) -> dict[str, Any]:
        """The fault as it stands in the manifest."""
        return {"kind": "delay", "rank": self.rank, "ms": self.ms, "every": self.every}

    def hits(self, step: int) -> bool:
        """Whether the pause happens in the step of this number."""
        return step % self.every == 0


@dataclass(frozen=True, slots=True)
class HotExpert:
    """Expert ``expert`` gets ``share`` of all token assignments."""

    expert: int
    share: float

    def truth(self) -> dict[str, Any]:
        """The fault as it stands in the manifest."""
        return {"kind": "hot-expert", "expert": self.expert, "share": self.share}


Fault = Delay | HotExpert


def parse(text: str) -> Fault:
    """A fault from its form on the command line.

    Raises:
        UsageError: the kind is not known or its values make no sense.
    """
    kind, *values = text.split(":")
    try:
        if kind == "delay":
            return _delay(values)
        if kind == "hot-expert":
            expert, share = values
            fault = HotExpert(int(expert), float(share))
            if fault.expert < 0 or not 0 < fault.share <= 1:
                raise ValueError
            return fault
    except ValueError:
        raise UsageError(f"--fault {text}: values do not fit; known faults: {FORMS}") from None
    raise UsageError(f"--fault {text}: {kind!r} is not known; known faults: {FORMS}")


def _delay(values: list[str]) -> Delay:
    rank, ms, *rest = values
    every = 1
    if rest:
        (option,) = rest
        key, _, count = option.partition("=")
        if key != "every":
            raise ValueError(option)
        every = int(count)
    fault = Delay(int(rank), float(ms), every)
    if fault.rank < 0 or every < 1 or not (math.isfinite(fault.ms) and fault.ms > 0):
        raise ValueError(values)
    return fault


class Planter:
    """Plants the delays of one rank into a built workload.

    The worker says which step begins; the pause then comes once, between the
    computation that leads to the step's first communication and that communication.
    """

    def __init__(self, faults: Iterable[Fault], rank: int, workload: Workload) -> None:
        self._delays = [f for f in faults if isinstance(f, Delay) and f.rank == rank]
        self._due_ms = 0.0
        if self._delays:
            # Prepended: the communication itself may be a forward hook of the same module.
            workload.first_exchange.register_forward_hook(self._pause, prepend=True)

    def begin(self, step: int) -> None:
        """Arm the delays that hit this step."""
        self._due_ms = sum(delay.ms for delay in self._delays if delay.hits(step))

    def _pause(self, *_: object) -> None:
        due_ms, self._due_ms = self._due_ms, 0.0
        if due_ms:
            time.sleep(due_ms / 1000)
