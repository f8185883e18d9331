"""What a workload is asked to be, and what it is once built. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


class RoutingKind(str, Enum):
    """How tokens are spread over experts."""

    BALANCED = "balanced"  # every expert gets the same number
    ZIPF = "zipf"  # expert e is drawn with weight (e + 1) ** -exponent
    HOT = "hot"  # one expert gets a given share of all assignments


@dataclass(frozen=True, slots=True)
class Routing:
    """A target distribution of token assignments over experts."""

    kind: RoutingKind = RoutingKind.BALANCED
    exponent: float = 0.0  # ZIPF
    expert: int = 0  # HOT
    share: float = 0.0  # HOT, in (0, 1 / top_k]

    def __str__(self) -> str:
        if self.kind is RoutingKind.ZIPF:
            return f"zipf:{self.exponent:g}"
        if self.kind is RoutingKind.HOT:
            return f"hot:{self.expert} ({self.share:.0%})"
        return "balanced"


@dataclass(frozen=True, slots=True)
class Spec:
    """The model and the batch, the same on every rank.

    ``batch`` counts the sequences of one data-parallel replica (and of one
    expert-parallel rank) in one step.
    """

    layers: int
    hidden: int
    heads: int
    seq: int
    batch: int
    vocab: int
    dtype: str  # "float32" or "bfloat16"
    seed: int
    experts: int
    top_k: int
    routing: Routing
    schedule: str  # "gpipe" or "1f1b"
    microbatches: int


@dataclass(frozen=True, slots=True)
class Workload:
    """One rank's program, ready to run.

    Attributes:
        step: runs forward, backward and optimizer once, for the step of this number;
            returns the loss where this rank knows it, else None.
        first_exchange: the module whose forward is followed by the first communication of a step.
    """

    step: Callable[[int], Tensor | None]
    first_exchange: nn.Module
