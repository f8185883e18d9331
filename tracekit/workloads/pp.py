"""Pipeline parallelism: consecutive layers are stages on the axis ``pp``; microbatches flow.

A rank holds one stage or several chunks of the model, as the schedule asks. A
stage may itself be split over ``tp`` or ``fsdp`` or hold experts over ``ep``,
and the whole pipeline may be replicated over ``dp``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _Action,
    _ComputationType,
)
from torch.distributed.tensor.parallel import loss_parallel

from tracekit.workloads import model, parts, sleep
from tracekit.workloads.data import Batches
from tracekit.workloads.spec import Compute, Mode, Spec, Workload

# Torch's own names; a version that lacks one says which it has.
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
V_SHAPED = ("zbv", "dualpipev")  # the second half of the stages runs back over the ranks


@dataclass(frozen=True, slots=True)
class Pipeline:
    """This rank's stages and the schedule that runs them."""

    schedule: Any  # torch's schedules share their methods, not a public base class
    stages: list[PipelineStage]
    parts: list[nn.Module]
    group: dist.ProcessGroup

    @property
    def layers(self) -> list[nn.Module]:
        """The layers of all stages, in order of the model."""
        return [layer for part in self.parts for layer in part.get_submodule("blocks").children()]

    @property
    def has_first(self) -> bool:
        """Whether the model's input enters here."""
        return any(stage.is_first for stage in self.stages)

    @property
    def has_last(self) -> bool:
        """Whether the model's output leaves here."""
        return any(stage.is_last for stage in self.stages)


def stage_numbers(spec: Spec, rank: int, ranks: int) -> list[int]:
    """The stages that a rank of the pipeline holds."""
    if spec.schedule in V_SHAPED:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + chunk * ranks for chunk in range(spec.chunks)]


def pipeline(spec: Spec, mesh: DeviceMesh, device: torch.device) -> Pipeline:
    """This rank's part of the pipeline."""
    group = mesh.get_group("pp")
    total = group.size() * spec.chunks
    numbers = stage_numbers(spec, group.rank(), group.size())
    held = [_part(spec, mesh, device, number, total) for number in numbers]
    stages = [
        PipelineStage(part, number, total, device, group=group, dw_builder=_weight_work(spec, part))
        for number, part in zip(numbers, held, strict=True)
    ]
    kind = schedules.get_schedule_class(SCHEDULES[spec.schedule])
    given = stages[0] if issubclass(kind, PipelineScheduleSingle) else stages
    schedule = kind(given, spec.microbatches, loss_fn=_loss(spec))
    if spec.mode is not Mode.TRAIN and isinstance(schedule, PipelineScheduleMulti):
        _run_forward_only(schedule)
    return Pipeline(schedule, stages, held, group)


def _part(spec: Spec, mesh: DeviceMesh, device: torch.device, stage: int, stages: int) -> nn.Module:
    if spec.compute is Compute.SLEEP:
        return sleep.SleepPart(spec, stage, stages).to(device)
    return parts.transformer(spec, mesh, device, stage, stages)


def _weight_work(spec: Spec, part: nn.Module) -> Callable[[], Callable[..., None]] | None:
    if spec.compute is Compute.SLEEP:
        return sleep.weight_pause(list(part.get_submodule("blocks").children()))
    return None


def _run_forward_only(schedule: PipelineScheduleMulti) -> None:
    """Leave the backward out of a schedule that was made for training.

    Torch's own way, running the backward actions without effect, fails where a
    rank holds neighbouring stages.
    """
    runtime: Any = schedule
    forwards = {
        rank: schedules._add_unshard_reshard(forward_actions(actions))
        for rank, actions in schedule.pipeline_order.items()
    }
    runtime.pipeline_order_with_comms = schedules._add_send_recv(
        forwards,
        stage_to_rank=lambda stage: schedule.stage_index_to_group_rank[stage],
        num_stages=schedule._num_stages,
    )


def forward_actions(actions: Iterable[_Action | None]) -> list[_Action | None]:
    """The forward actions of one rank, in the schedule's order."""
    # An older torch has no actions that are made of others.
    single = [
        part
        for action in actions
        if action
        for part in getattr(action, "sub_actions", None) or (action,)
    ]
    return [action for action in single if action.computation_type is _ComputationType.FORWARD]


def _loss(spec: Spec) -> Callable[[Tensor, Tensor], Tensor] | None:
    if spec.mode is not Mode.TRAIN:
        return None
    if spec.compute is Compute.SLEEP:
        return functools.partial(sleep.loss, vocab=spec.vocab)
    return model.loss


def build(spec: Spec, mesh: DeviceMesh, device: torch.device) -> Workload:
    """Training through the pipeline."""
    pipe = pipeline(spec, mesh, device)
    optimizer = model.optimizer(p for part in pipe.parts for p in part.parameters())
    batches = Batches(spec, parts.replica(mesh), device, spec.batch)

    def step(number: int) -> Tensor | None:
        tokens, targets = next(batches)
        losses: list[Tensor] = []
        inputs = (tokens,) if pipe.has_first else ()
        ends: dict[str, Any] = {"target": targets, "losses": losses} if pipe.has_last else {}
        with loss_parallel() if spec.loss_parallel else contextlib.nullcontext():
            pipe.schedule.step(*inputs, **ends, return_outputs=False)
        parts.average_gradients(pipe.parts, mesh)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack([parts.value(loss) for loss in losses]).mean() if losses else None

    return Workload(
        step=step,
        first_exchange=pipe.parts[0],
        layers=pipe.layers,
        batches=batches,
        experts=parts.expert_layers(pipe.parts),
    )
