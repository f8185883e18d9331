"""What a job is described by: its shape, its costs, its disturbances, and how its traces look."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from tracekit.core import fault
from tracekit.core import schedule as schedules
from tracekit.core.errors import InputError, UsageError
from tracekit.simulate.model import CLASSES
from tracekit.simulate.shares import Floats, shares

AXES = ("pp", "dp", "fsdp", "ep", "tp")  # outermost first, as in core.topology
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A job and its traces. Times are nominal: of a rank without noise or fault.

    The shape:
        tp, pp, dp, fsdp, ep: degrees of the mesh; their product is the number of ranks.
        ranks_per_host: consecutive ranks that share a host.
        layers: of the whole model; divided evenly over the stages.
        schedule, chunks, microbatches: of the pipeline; without one, microbatches are
            accumulated one after the other.
        steps: recorded steps; the first one is flagged by the reader, so 2 at least are useful.
        sequence_parallel: tensor parallelism by all_gather and reduce_scatter.

    Work per layer and microbatch on one rank:
        forward_us: the forward; input_ratio and weight_ratio give the gradients' share of it.
        optimizer_us: per layer and step.
        stage_factors: of each pipeline stage, for unequal stages; empty means all 1.
        fused: one kernel per layer and direction, instead of one per operation.
        batch, seq, hidden: of a microbatch and of the model; they give the message sizes.
        experts, top_k, routing: of a layer with experts (when ep > 1).
        norm: a small all_reduce over all ranks in every step, as for a gradient norm.

    The machine:
        intra_*, inter_*: latency and bandwidth of links inside and between hosts.
        launch_us: host time per kernel; launch_latency_us: until the device may begin it.
        data_us: host time for the next batch.
        noise_ratio, jitter_ratio: spread (lognormal) of compute and of transfers.
        end_noise_us: spread of the ends of one collective over its ranks.
        tail_ratio, tail_factor: this share of kernels takes so many times as long.
        trend_ratio: kernels at the end of a step take so much longer than at its begin.
        contention: kernel class to slowdown while communication runs on the rank; "*" is any.
        transfer_contention: slowdown of transfers that are meant to run under compute.

    The disturbances:
        faults: as in ``--fault``.
        offset_ms, drift_ppm: each rank's clock is off by up to so much, either way.
        offsets_ns: the clocks' exact errors instead, by rank.
        host_clocks: the ranks of a host share one clock.
        missing: ranks without a trace.
        cut_steps: each rank's window misses up to so many steps at either end.

    How the traces look:
        backend: "nccl", or "gloo" for a job on CPUs.
        seq_numbers: whether calls carry a sequence number.
        comm_args: on kernels and operators ("full"), on operators only ("operator"), or "none".
        groups: descriptions like "mesh_tp", like Megatron's, or all "undefined".
        group_names: "global", each group its own; or "local", each rank counting its own groups,
            so that sibling groups share a name.
        bases: whether all headers have one base time, or every other rank an earlier one.
        pg_config: whether the header lists the groups.
        alias: a second name for each tensor-parallel group, used every other time.
        tp_kernels: "nccl", or kernels of an engine's own: "custom" (vLLM), "symmetric" (torch).
        coalesced: one p2p kernel without arguments for all transfers that follow each other in
            the program, as of ``batch_isend_irecv``; only their operators tell them.
        untraced: operations that leave no trace at all: "send", "recv", "all_reduce", ...
        graph: kernels of a stage's work replayed from a graph: one launch, no operators.
        markers: ProfilerStep annotations.
        stage_markers: annotations of the stages' work: "tracekit", "torch" or "none".
        manifest: whether run.json names the topology.
    """

    name: str = "simulated"
    seed: int = 0
    tp: int = 1
    pp: int = 1
    dp: int = 1
    fsdp: int = 1
    ep: int = 1
    ranks_per_host: int = 8
    layers: int | None = None
    schedule: str = "1f1b"
    chunks: int | None = None
    microbatches: int | None = None
    steps: int = 4
    sequence_parallel: bool = False

    forward_us: float = 400.0
    input_ratio: float = 1.0
    weight_ratio: float = 1.0
    optimizer_us: float = 50.0
    stage_factors: tuple[float, ...] = ()
    fused: bool = False
    batch: int = 1
    seq: int = 1024
    hidden: int = 1024
    experts: int = 8
    top_k: int = 2
    routing: str = "balanced"
    norm: bool = False

    intra_latency_us: float = 8.0
    intra_gbps: float = 200.0
    inter_latency_us: float = 20.0
    inter_gbps: float = 40.0
    launch_us: float = 5.0
    launch_latency_us: float = 2.0
    data_us: float = 30.0
    noise_ratio: float = 0.02
    jitter_ratio: float = 0.02
    end_noise_us: float = 1.0
    tail_ratio: float = 0.0
    tail_factor: float = 3.0
    trend_ratio: float = 0.0
    contention: dict[str, float] = dataclasses.field(default_factory=dict)
    transfer_contention: float = 1.0

    faults: tuple[str, ...] = ()
    offset_ms: float = 0.0
    drift_ppm: float = 0.0
    offsets_ns: tuple[int, ...] = ()
    host_clocks: bool = False
    missing: tuple[int, ...] = ()
    cut_steps: float = 0.0

    backend: Literal["nccl", "gloo"] = "nccl"
    seq_numbers: bool = True
    comm_args: Literal["full", "operator", "none"] = "full"
    groups: Literal["mesh", "megatron", "undefined"] = "mesh"
    group_names: Literal["global", "local"] = "global"
    bases: Literal["same", "mixed"] = "same"
    pg_config: bool = True
    alias: bool = False
    tp_kernels: Literal["nccl", "custom", "symmetric"] = "nccl"
    coalesced: bool = False
    untraced: tuple[str, ...] = ()
    graph: bool = False
    markers: bool = True
    stage_markers: Literal["tracekit", "torch", "none"] = "tracekit"
    manifest: bool = True

    @property
    def world_size(self) -> int:
        """Number of ranks: the product of the degrees."""
        return math.prod(self.degree(axis) for axis in AXES)

    def degree(self, axis: str) -> int:
        """Ranks along one mesh axis."""
        return {"pp": self.pp, "dp": self.dp, "fsdp": self.fsdp, "ep": self.ep, "tp": self.tp}[axis]

    def planted(self) -> tuple[fault.Fault, ...]:
        """The faults, parsed."""
        return tuple(fault.parse(text) for text in self.faults)

    def expert_shares(self) -> Floats:
        """(experts,) share of all assignments that each expert should get."""
        hot = [item for item in self.planted() if isinstance(item, fault.HotExpert)]
        return shares(self.routing, self.experts, hot)

    def pipeline(self) -> schedules.Pipeline:
        """The schedule; of one rank that accumulates microbatches where there is no pipeline."""
        if self.pp == 1:
            rows = tuple(
                schedules.Action(kind, 0, number)
                for number in range(self.microbatch_count)
                for kind in (schedules.Kind.FORWARD, schedules.Kind.BACKWARD)
            )
            return schedules.Pipeline(
                "none", schedules.Placement(1, 1), self.microbatch_count, (rows,)
            )
        return schedules.pipeline(self.schedule, self.pp, self.microbatch_count, self.chunks)

    @property
    def microbatch_count(self) -> int:
        """Microbatches per step; by default two for each stage of a pipeline."""
        if self.microbatches is not None:
            return self.microbatches
        return 1 if self.pp == 1 else 2 * self.pp * (2 if self.schedule == "dualpipev" else 1)

    @property
    def layer_count(self) -> int:
        """Layers of the model; by default two for each stage."""
        return 2 * self.pipeline().placement.stages if self.layers is None else self.layers


def from_file(path: Path, **changes: Any) -> Spec:
    """A spec from a JSON or TOML file, with some fields changed.

    Raises:
        InputError: the file cannot be read.
        UsageError: it says something that makes no sense.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        given = _decode(path, text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    except ImportError as error:
        raise InputError(
            f"{path}: reading TOML needs Python 3.11 or `pip install tomli`; or write it as JSON"
        ) from error
    if not isinstance(given, dict):
        raise InputError(f"{path}: a description is an object of fields")
    return made({**given, **changes}, str(path))


def _decode(path: Path, text: bytes) -> Any:
    if path.suffix == ".toml":
        return msgspec.toml.decode(text)
    return msgspec.json.decode(text)


def made(fields: Mapping[str, Any], source: str = "simulate") -> Spec:
    """A checked spec from its fields.

    Raises:
        UsageError: a field is not known, has the wrong type, or contradicts another.
    """
    known = {item.name for item in dataclasses.fields(Spec)}
    for name in fields:
        if name not in known:
            raise UsageError(f"{source}: field {name!r} is not known; see `tracekit simulate -h`")
    try:
        spec = msgspec.convert(dict(fields), Spec)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {error}") from error
    return checked(spec)


def checked(spec: Spec) -> Spec:
    """The spec itself.

    Raises:
        UsageError: its fields contradict each other.
    """
    for name in ("tp", "pp", "dp", "fsdp", "ep", "steps", "ranks_per_host", "batch", "seq",
                 "hidden", "microbatch_count"):  # fmt: skip
        if getattr(spec, name) < 1:
            raise UsageError(f"{name} {getattr(spec, name)}: must be at least 1")
    _check_times(spec)
    stages = spec.pipeline().placement.stages
    if spec.layer_count % stages or spec.layer_count < 1:
        raise UsageError(f"layers {spec.layer_count} cannot be divided by {stages} stages")
    if spec.stage_factors and len(spec.stage_factors) != stages:
        raise UsageError(f"stage_factors: {len(spec.stage_factors)} for {stages} stages")
    if spec.ep > 1 and spec.experts % spec.ep:
        raise UsageError(f"experts {spec.experts} cannot be divided by ep {spec.ep}")
    only_nccl = spec.fsdp > 1 or spec.sequence_parallel or spec.graph or spec.coalesced
    if spec.backend == "gloo" and only_nccl:
        raise UsageError("backend gloo has no fsdp, sequence_parallel, graph or coalesced here")
    if len(set(spec.missing)) >= spec.world_size:
        raise UsageError("missing: no rank is left")
    if spec.offsets_ns and len(spec.offsets_ns) != spec.world_size:
        raise UsageError(f"offsets_ns: {len(spec.offsets_ns)} for {spec.world_size} ranks")
    for planted in spec.planted():
        _check_fault(spec, planted)
    if spec.ep > 1:
        spec.expert_shares()
    return spec


def _check_times(spec: Spec) -> None:
    for item in dataclasses.fields(Spec):
        value = getattr(spec, item.name)
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{item.name} {value}: must be a number that is not negative")
    for name in ("intra_gbps", "inter_gbps", "forward_us"):
        if getattr(spec, name) == 0:
            raise UsageError(f"{name}: must be above 0")
    if any(value < 1 for value in (*spec.contention.values(), spec.transfer_contention)):
        raise UsageError("contention: a slowdown is at least 1")
    _check_names("contention", spec.contention, (*CLASSES, "*"))
    _check_names("untraced", spec.untraced, OPERATIONS)


def _check_names(field: str, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"{field}: {name!r} is not known; choose from {', '.join(known)}")


def _check_fault(spec: Spec, planted: fault.Fault) -> None:
    """Whether what a fault names exists."""
    named: tuple[int, ...]
    match planted:
        case fault.SlowStage(stage, _):
            named, known, what = (stage,), spec.pp, "stage"
        case fault.SlowLink(ranks, _):
            named, known, what = ranks, spec.world_size, "rank"
        case fault.HotExpert(expert, _):
            if spec.ep == 1:
                raise UsageError("fault hot-expert: this job has no experts; set ep")
            named, known, what = (expert,), spec.experts, "expert"
        case _:
            named, known, what = (planted.rank,), spec.world_size, "rank"
    for number in named:
        if number >= known:
            raise UsageError(
                f"fault: {what} {number} does not exist; the job has {what}s 0 to {known - 1}"
            )
