"""Inference: a step runs the prompts, or the next token, of all sequences in flight.

The KV cache holds the sequences' earlier tokens. When decoding, each step feeds
the most likely token of the step before it back in; a pipeline's last rank tells it to
the first. Replicas on the axis ``dp`` never talk to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from tracekit.workloads import model, parts, pp
from tracekit.workloads.data import Batches
from tracekit.workloads.spec import Mode, Spec, Workload

# Room for new tokens after the context; a decoding sequence starts over when it is used up.
ROOM = 64

Forward = Callable[[Tensor, Tensor], Tensor | None]  # tokens, rows -> logits where they are known


def build(spec: Spec, mesh: DeviceMesh, device: torch.device) -> Workload:
    """Prefill or decode, through a pipeline if there is one."""
    if "pp" in parts.axes(mesh):
        pipe = pp.pipeline(spec, mesh, device)
        forward, held, exchange = _through(pipe), pipe.parts, pipe.parts[0]
        tell = _teller(pipe)
    else:
        part = parts.transformer(spec, mesh, device)
        forward, held = _by_batch(spec, part), [part]
        exchange, tell = parts.first_exchange(part, spec, mesh), _keep
    decoding = spec.mode is Mode.DECODE
    cache = model.KvCache(spec.concurrency, spec.context + ROOM if decoding else spec.seq)
    attach(held, cache)
    batches = Batches(spec, parts.replica(mesh), device, spec.concurrency)
    rows = torch.arange(spec.concurrency)
    newest: list[Tensor] = []

    @torch.no_grad()
    def step(number: int) -> None:
        tokens, _ = next(batches)
        if decoding:
            cache.length = spec.context + number % ROOM
            tokens = newest.pop() if newest else tokens[:, :1]
        logits = forward(tokens, rows)
        if decoding:
            newest.append(tell(logits, tokens))

    layers = [layer for part in held for layer in part.get_submodule("blocks").children()]
    return Workload(
        step=step,
        first_exchange=exchange,
        layers=layers,
        batches=batches,
        experts=parts.expert_layers(held),
    )


def attach(held: Iterable[nn.Module], cache: model.KvCache) -> None:
    """Let every attention layer keep its keys and values."""
    for part in held:
        part.eval()
        for module in part.modules():
            if isinstance(module, model.Attention):
                module.cache = cache


def _by_batch(spec: Spec, part: nn.Module) -> Forward:
    """One forward pass for every ``batch`` sequences."""

    def forward(tokens: Tensor, rows: Tensor) -> Tensor:
        groups = zip(torch.split(tokens, spec.batch), torch.split(rows, spec.batch), strict=True)
        return torch.cat([_last(part(some, places)) for some, places in groups])

    return forward


def _through(pipe: pp.Pipeline) -> Forward:
    """All sequences through the pipeline, in microbatches."""

    def forward(tokens: Tensor, rows: Tensor) -> Tensor | None:
        inputs = (tokens,) if pipe.has_first else ()
        output = pipe.schedule.eval(*inputs, rows=rows)
        return _last(output) if pipe.has_last else None

    return forward


def _last(logits: Tensor) -> Tensor:
    """Logits of each sequence's last token: (rows, vocab)."""
    whole = logits.full_tensor() if isinstance(logits, DTensor) else logits
    return whole[:, -1]


def _keep(logits: Tensor | None, tokens: Tensor) -> Tensor:
    assert logits is not None
    return logits.argmax(dim=-1, keepdim=True)


def _teller(pipe: pp.Pipeline) -> Callable[[Tensor | None, Tensor], Tensor]:
    """The most likely tokens, from the rank with the last stage to all of the pipeline."""
    last = pipe.stages[0].stage_index_to_group_rank[pipe.stages[0].num_stages - 1]
    source = dist.get_global_rank(pipe.group, last)

    def tell(logits: Tensor | None, tokens: Tensor) -> Tensor:
        chosen = torch.empty_like(tokens) if logits is None else _keep(logits, tokens)
        dist.broadcast(chosen, src=source, group=pipe.group)
        return chosen

    return tell
