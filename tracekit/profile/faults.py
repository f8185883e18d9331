"""Planting faults in a live job.

A delay is a pause of the host: it is exact, whatever else runs on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracekit.core import fault
from tracekit.core.fault import Delay, HotExpert

if TYPE_CHECKING:
    from tracekit.workloads import Workload

__all__ = ["Delay", "Fault", "HotExpert", "Planter", "parse"]

Fault = Delay | HotExpert
KINDS = ("delay", "hot-expert")


def parse(text: str) -> Fault:
    """A fault that can be planted in a live job, from its form on the command line.

    Raises:
        UsageError: the kind is not known or its values make no sense.
    """
    planted = fault.parse(text, KINDS)
    assert isinstance(planted, (Delay, HotExpert))
    return planted


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
