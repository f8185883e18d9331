"""Markers in the trace for what torch does not name: stages, microbatches, waits, GC.

They are set only while a recording is open, by wrapping the pipelining classes
that every schedule goes through; so a user's own pipeline gets them too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch._C._profiler import _RecordFunctionFast

from tracekit.core.trace import Phase
from tracekit.io import markers

# Values must be integers or text: a float with an integral value makes the trace invalid JSON.
Arguments = Mapping[str, int | str]


def mark(phase: Phase, number: int = -1, microbatch: int = -1) -> _RecordFunctionFast:
    """A context manager that leaves a span in the trace; half a microsecond when none is open."""
    arguments = {"stage": number, "microbatch": microbatch} if number >= 0 else {}
    return _RecordFunctionFast(markers.name(phase, number, microbatch), [], arguments)


@contextlib.contextmanager
def pipeline() -> Iterator[None]:
    """Mark every stage's work while open."""
    stages, schedules = loaded("stage"), loaded("schedules")
    if stages is None or schedules is None:
        yield
        return
    base, runner = stages._PipelineStageBase, schedules._PipelineSchedule
    with contextlib.ExitStack() as wrapped:
        for owner, name, wrapper in (
            (base, "forward_one_chunk", _forward),
            (base, "backward_one_chunk", _backward),
            (base, "backward_weight_one_chunk", _weight),
            (base, "perform_reduce_grad", _reduce),
            (runner, "_maybe_compute_loss", _loss),
        ):
            wrapped.enter_context(replaced(owner, name, wrapper))
        yield


def loaded(name: str) -> Any:
    """A module of torch's pipelining, None as long as nothing here has imported it."""
    return sys.modules.get(f"torch.distributed.pipelining.{name}")


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> Iterator[None]:
    """``owner.name`` wrapped while open; where this torch has no such thing, nothing happens."""
    original = getattr(owner, name, None)
    if original is None:
        yield
        return
    setattr(owner, name, wrapper(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward_one_chunk(self: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with mark(Phase.FORWARD, self.stage_index, fwd_chunk_id):
            return original(self, fwd_chunk_id, *args, **kwargs)

    return forward_one_chunk


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward_one_chunk(
        self: Any, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, **kwargs: Any
    ) -> Any:
        if not self.has_backward:
            return original(self, bwd_chunk_id, loss, full_backward, **kwargs)
        phase = Phase.BACKWARD if full_backward else Phase.INPUT
        with mark(phase, self.stage_index, bwd_chunk_id):
            return original(self, bwd_chunk_id, loss, full_backward, **kwargs)

    return backward_one_chunk


def _weight(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward_weight_one_chunk(self: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if not self.has_backward:
            return original(self, bwd_chunk_id, *args, **kwargs)
        with mark(Phase.WEIGHT, self.stage_index, bwd_chunk_id):
            return original(self, bwd_chunk_id, *args, **kwargs)

    return backward_weight_one_chunk


def _reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def perform_reduce_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.has_backward:
            return original(self, *args, **kwargs)
        with mark(Phase.REDUCE, self.stage_index):
            return original(self, *args, **kwargs)

    return perform_reduce_grad


def _loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute_loss(
        self: Any, its_stage: Any, output: Any, targets: Any, microbatch: int, *args: Any
    ) -> Any:
        if not its_stage.is_last or self._loss_fn is None:
            return original(self, its_stage, output, targets, microbatch, *args)
        with mark(Phase.LOSS, its_stage.stage_index, microbatch):
            return original(self, its_stage, output, targets, microbatch, *args)

    return compute_loss


@contextlib.contextmanager
def garbage_collection() -> Iterator[None]:
    """Mark every collection of Python's garbage collector while open."""
    running: list[_RecordFunctionFast] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            running.append(mark(Phase.GC))
            running[-1].__enter__()
        elif running:
            running.pop().__exit__(None, None, None)

    gc.callbacks.append(note)
    try:
        yield
    finally:
        gc.callbacks.remove(note)


def preload() -> None:
    """Import what the first profiler start would import: it alone takes a second."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._inductor.config")
