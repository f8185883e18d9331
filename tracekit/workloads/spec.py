"""What a workload is asked to be, and what it is once built. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn


# Each rank of these axes computes on sequences of its own.
BATCH_AXES = ("dp", "fsdp", "ep")


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


class Mode(str, Enum):
    """What one step of the workload is."""

    TRAIN = "train"  # forward, backward and optimizer on a batch
    PREFILL = "prefill"  # forward over whole prompts, filling the KV cache
    DECODE = "decode"  # forward over one new token of every sequence in flight


class Compute(str, Enum):
    """What a layer does with its time."""

    REAL = "real"
    SLEEP = "sleep"  # pauses of a given length: ranks run truly in parallel on any machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The model and the batch, the same on every rank.

    Attributes:
        batch: sequences of one replica in one training step; in inference, of one forward pass.
        concurrency: sequences of one replica that are in flight in inference, all of which a
            step runs; a multiple of ``batch``.
        context: tokens already in the KV cache when decoding.
        microbatches: parts of a pipeline's batch.
        chunks: stages per pipeline rank.
        sequence_parallel: split activations between tensor-parallel parts by sequence.
        loss_parallel: keep the vocabulary split over tensor-parallel ranks in the loss.
        layer_ms: with sleeping compute, the pause for each of a layer's forward, input-gradient
            and weight-gradient computations.
    """

    layers: int
    hidden: int
    heads: int
    seq: int
    batch: int
    vocab: int
    dtype: str  # "float32" or "bfloat16"
    seed: int
    experts: int = 0
    top_k: int = 0
    routing: Routing = Routing()
    schedule: str = "1f1b"
    microbatches: int = 1
    chunks: int = 1
    mode: Mode = Mode.TRAIN
    context: int = 0
    concurrency: int = 0
    sequence_parallel: bool = False
    loss_parallel: bool = False
    compute: Compute = Compute.REAL
    layer_ms: float = 0.0


class Batches(Protocol):
    """Where a rank's batches come from, in order of steps."""

    delay_s: float  # how much longer than needed reading each batch takes

    def __next__(self) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One rank's program, ready to run.

    Attributes:
        step: runs the step of this number, to be called for 0, 1, 2, ...; returns the loss
            where there is one and this rank knows it, else None.
        first_exchange: the module whose forward is followed by the first communication of a step.
        layers: the modules that compute, in order of use.
        batches: where the step's data comes from.
        experts: the layers that spread tokens over experts.
    """

    step: Callable[[int], Tensor | None]
    first_exchange: nn.Module
    layers: Sequence[nn.Module]
    batches: Batches
    experts: Sequence[Any] = ()
