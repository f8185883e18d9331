"""Layers that pause instead of computing: what a pipeline does is then known exactly.

Ranks that sleep do not compete for cores, so many of them run truly in parallel
on few, and bubbles come out as in theory. Every layer pauses as long in its
forward as in its input-gradient and its weight-gradient computation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tracekit.workloads.spec import Spec


class _PauseInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: SleepLayer) -> Tensor:
        ctx.layer = layer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        time.sleep(ctx.layer.pause_s)
        return grads[0], None


class SleepLayer(nn.Module):
    """Scales its input by a learned number, and pauses."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        time.sleep(self.pause_s)
        result: Tensor = _PauseInBackward.apply(x * self.scale, self)  # type: ignore[no-untyped-call]
        return result


class SleepPart(nn.Module):
    """One pipeline stage of sleeping layers."""

    def __init__(self, spec: Spec, stage: int, stages: int) -> None:
        super().__init__()
        self.is_first, self.hidden, self.vocab = stage == 0, spec.hidden, spec.vocab
        self.blocks = nn.ModuleList(
            SleepLayer(spec.layer_ms / 1000) for _ in range(spec.layers // stages)
        )
        self.to(getattr(torch, spec.dtype))

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """(batch, seq) int64 tokens, or (batch, seq, hidden) inside a pipeline -> the latter."""
        if self.is_first:
            dtype = next(self.parameters()).dtype
            x = (x / self.vocab).to(dtype).unsqueeze(-1).expand(*x.shape, self.hidden)
        for block in self.blocks:
            x = block(x)
        return x


def loss(output: Tensor, targets: Tensor, vocab: int) -> Tensor:
    """Mean squared distance of (batch, seq, hidden) from (batch, seq) tokens, scaled to 1."""
    return (output.float().mean(dim=-1) - targets / vocab).square().mean()


def weight_pause(layers: Sequence[nn.Module]) -> Callable[[], Callable[..., None]]:
    """What a pipeline stage does for its weight gradients: pause once for each layer."""

    def pause() -> None:
        time.sleep(sum(layer.pause_s for layer in layers if isinstance(layer, SleepLayer)))

    return lambda: pause
