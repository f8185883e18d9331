"""Tensor parallelism: each layer's matrices are split over the axis ``tp``.

Columns first, rows second (Megatron's scheme): one all-reduce after the
attention and one after the feed-forward part, forward and backward. With
sequence parallelism the activations between those parts are split by sequence:
an all-gather before and a reduce-scatter after take the all-reduce's place.
With loss parallelism the logits stay split by vocabulary up to the loss.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tracekit.workloads import model
from tracekit.workloads.spec import Spec


def shard(transformer: model.Transformer, spec: Spec, mesh: DeviceMesh) -> None:
    """Split the layers of a model, or of a pipeline stage, over the mesh's only axis."""
    between: Placement = Shard(1) if spec.sequence_parallel else Replicate()
    for block in transformer.blocks:
        parallelize_module(block, mesh, _layer(spec, between))
    ends: dict[str, ParallelStyle] = {}
    if spec.sequence_parallel and isinstance(transformer.embed, nn.Embedding):
        ends["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if isinstance(transformer.head, nn.Linear):
        if spec.sequence_parallel:
            ends["norm"] = SequenceParallel()
        ends["head"] = ColwiseParallel(
            input_layouts=between,
            output_layouts=Shard(-1) if spec.loss_parallel else Replicate(),
            use_local_output=not spec.loss_parallel,
        )
    parallelize_module(transformer, mesh, ends)


def _layer(spec: Spec, between: Placement) -> dict[str, ParallelStyle]:
    styles: dict[str, ParallelStyle] = {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=between),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=between),
    }
    if spec.sequence_parallel:
        for part in ("attention", "feed_forward"):
            styles[f"{part}_norm"] = SequenceParallel()
            # Once per part, not once for each of its matrices.
            styles[part] = PrepareModuleInput(
                input_layouts=(between,), desired_input_layouts=(Replicate(),)
            )
    return styles
