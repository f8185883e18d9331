"""The shared model: a small decoder-only transformer with a KV cache, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody knows)
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from tracekit.workloads.spec import Spec

FeedForward = Callable[[int], nn.Module]  # layer number -> the layer's feed-forward part


class KvCache:
    """Keys and values of earlier tokens, for every sequence in flight on this rank.

    Attributes:
        length: tokens that are already there; set by whoever runs the model, alike for all.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self.rows, self.capacity, self.length = rows, capacity, 0
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # by layer

    def extend(self, layer: int, slots: slice, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the newest tokens of some sequences; returns all of theirs: (rows, heads, seq, d)."""
        if layer not in self._kept:
            _, heads, _, size = key.shape
            shape = (self.rows, heads, self.capacity, size)
            # Zeros and not garbage: contexts that were never computed are read as well.
            self._kept[layer] = (key.new_zeros(shape), key.new_zeros(shape))
        end = self.length + key.shape[2]
        for kept, new in zip(self._kept[layer], (key, value), strict=True):
            kept[slots, :, self.length : end] = new
        keys, values = self._kept[layer]
        return keys[slots, :, :end], values[slots, :, :end]

    def bytes(self) -> int:
        """What the cache holds on this rank."""
        return sum(one.nbytes + other.nbytes for one, other in self._kept.values())


class Attention(nn.Module):
    """Causal self-attention; works on however many heads its projections hold here."""

    def __init__(self, hidden: int, heads: int, layer: int) -> None:
        super().__init__()
        self.head_size, self.layer = hidden // heads, layer
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.cache: KvCache | None = None

    def forward(self, x: Tensor, slots: slice | None = None) -> Tensor:
        """(batch, seq, hidden) -> the same shape; ``slots`` are the sequences' cache rows."""
        batch, seq, _ = x.shape
        # -1 and not the number of heads: a tensor-parallel rank holds only some of them.
        query, key, value = (
            project(x).view(batch, seq, -1, self.head_size).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        if self.cache is not None and slots is not None:
            key, value = self.cache.extend(self.layer, slots, key, value)
        # A single new token sees everything before it.
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=seq > 1)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, seq, -1))
        return result


class Mlp(nn.Module):
    """The dense feed-forward part."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> the same shape."""
        result: Tensor = self.down(F.gelu(self.up(x)))
        return result


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, spec: Spec, layer: int, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(spec.hidden)
        self.attention = Attention(spec.hidden, spec.heads, layer)
        self.feed_forward_norm = nn.LayerNorm(spec.hidden)
        self.feed_forward = feed_forward

    def forward(self, x: Tensor, slots: slice | None = None) -> Tensor:
        """(batch, seq, hidden) -> the same shape."""
        x = x + self.attention(self.attention_norm(x), slots=slots)
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class Transformer(nn.Module):
    """All layers, or one pipeline stage: the first stage embeds, the last one predicts."""

    def __init__(
        self, spec: Spec, feed_forward: FeedForward, stage: int = 0, stages: int = 1
    ) -> None:
        super().__init__()
        per_stage = spec.layers // stages
        self.embed = _seeded(spec, -1, lambda: nn.Embedding(spec.vocab, spec.hidden))
        self.blocks = nn.ModuleList(
            _seeded(spec, layer, partial(_block, spec, feed_forward, layer))
            for layer in range(stage * per_stage, (stage + 1) * per_stage)
        )
        self.norm: nn.Module = nn.LayerNorm(spec.hidden)
        self.head = _seeded(
            spec, spec.layers, lambda: nn.Linear(spec.hidden, spec.vocab, bias=False)
        )
        if stage > 0:
            self.embed = nn.Identity()
        if stage < stages - 1:
            self.norm, self.head = nn.Identity(), nn.Identity()
        self.to(getattr(torch, spec.dtype))

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """(batch, seq) int64 tokens, or (batch, seq, hidden) inside a pipeline -> logits.

        ``rows``, int64 on the CPU, are the sequences' consecutive places in the KV cache.
        """
        slots = None if rows is None else slice(int(rows[0]), int(rows[-1]) + 1)
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, slots)
        result: Tensor = self.head(self.norm(x))
        return result


def _block(spec: Spec, feed_forward: FeedForward, layer: int) -> nn.Module:
    return Block(spec, layer, feed_forward(layer))


def _seeded(spec: Spec, layer: int, make: Callable[[], nn.Module]) -> nn.Module:
    """A part whose weights depend on the seed and the layer only, not on who else holds what."""
    torch.manual_seed(spec.seed * 1009 + layer + 1)
    return make()


def dense(spec: Spec) -> FeedForward:
    """The feed-forward part of a model without experts."""
    return lambda layer: Mlp(spec.hidden)


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of (batch, seq, vocab) logits against (batch, seq) tokens."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW in one operator per kind of parameter."""
    # The fused operator takes tensors that are split alike, or plain ones, not both in one call.
    kinds: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        kinds.setdefault(mesh, []).append(parameter)
    return torch.optim.AdamW([{"params": kind} for kind in kinds.values()], lr=1e-3, fused=True)


def parameters(spec: Spec) -> int:
    """Parameters of the whole model, each counted once however often it is held."""
    hidden = spec.hidden
    feed_forward = 8 * hidden**2 * max(spec.experts, 1) + hidden * spec.experts
    block = 4 * hidden**2 + feed_forward + 4 * hidden
    return spec.layers * block + 2 * spec.vocab * hidden + 2 * hidden


def coordinate(mesh: DeviceMesh, axis: str) -> int:
    """This rank's place on an axis, 0 when the mesh has no such axis."""
    return mesh.get_local_rank(axis) if axis in (mesh.mesh_dim_names or ()) else 0
