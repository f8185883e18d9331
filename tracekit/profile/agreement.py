"""What ``tracekit profile`` and the process of a script agree on, through the environment."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

VARIABLE = "TRACEKIT_SCRIPT"


@dataclass(frozen=True, slots=True)
class Agreement:
    """When a step of the script ends, and which steps to record.

    Attributes:
        folder: the run folder in the making.
        step_of: ``module:function`` or the class of a module, each call of which is a step;
            None takes the first optimizer.
        window: start and length in seconds of wall time, instead of steps.
    """

    folder: str
    warmup: int
    active: int
    repeat: int
    step_of: str | None = None
    window: tuple[float, float] | None = None

    def encode(self) -> str:
        """The value of the environment variable."""
        return json.dumps(asdict(self))
