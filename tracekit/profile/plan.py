"""From what was asked to what will run: a pure step that ends in a plan or one clear line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracekit.core import fault as faults
from tracekit.core.errors import UsageError
from tracekit.core.fault import Fault
from tracekit.core.topology import AXES
from tracekit.profile import checks
from tracekit.profile.presets import PRESETS
from tracekit.workloads.spec import Compute, Mode, Routing, RoutingKind, Spec

DEFAULT_DEGREE = 2
DEFAULT_CHUNKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller may ask for; None leaves the choice to the preset or the plan."""

    workload: str
    degrees: Mapping[str, int] = field(default_factory=dict)  # axis -> degree
    ranks: int | None = None
    mode: str = "train"
    preset: str = "tiny"
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    seq: int | None = None
    vocab: int | None = None
    batch: int = 8
    context: int | None = None
    concurrency: int | None = None
    dtype: str = "float32"
    experts: int | None = None
    top_k: int | None = None
    routing: str = "balanced"
    schedule: str = "1f1b"
    microbatches: int | None = None
    chunks: int | None = None
    sequence_parallel: bool = False
    loss_parallel: bool = False
    compute: str = "real"
    layer_ms: float = 10.0  # with sleeping compute
    steps: int = 6
    warmup: int = 3
    faults: tuple[str, ...] = ()
    seed: int = 0
    device: str = "auto"
    backend: str = "auto"
    timeout_s: float = 60.0  # longest wait of one rank for another
    measure_overhead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A checked job: every rank can derive its part from it."""

    workload: str
    spec: Spec
    degrees: dict[str, int]  # axes with more than one rank and the workload's own, outermost first
    steps: int
    warmup: int
    faults: tuple[Fault, ...]
    device: str
    backend: str  # "auto" until the device is decided
    timeout_s: float
    measure_overhead: bool = False

    @property
    def world_size(self) -> int:
        """Number of ranks: the product of the degrees."""
        return math.prod(self.degrees.values())

    @property
    def name(self) -> str:
        """The degrees in short, as in "pp2-tp2"; it names the default run folder."""
        return "-".join(f"{axis}{degree}" for axis, degree in self.degrees.items())

    def coordinate(self, rank: int, axis: str) -> int:
        """A rank's place on an axis, 0 where there is no such axis."""
        inner = 1
        for name, degree in reversed(self.degrees.items()):
            if name == axis:
                return rank // inner % degree
            inner *= degree
        return 0

    def ranks_at(self, axis: str, place: int) -> list[int]:
        """All ranks at one place of an axis."""
        return [rank for rank in range(self.world_size) if self.coordinate(rank, axis) == place]


def make(options: Options, world_size: int | None = None) -> Plan:
    """Check the options against each other.

    Args:
        options: what was asked for.
        world_size: number of ranks when a launcher has already started them.

    Raises:
        UsageError: they contradict each other; the message names the option.
    """
    _check_choices(options)
    degrees = _degrees(options, world_size)
    planted = tuple(faults.parse(text) for text in options.faults)
    plan = Plan(
        workload=options.workload,
        spec=_spec(options, degrees, planted),
        degrees=degrees,
        steps=options.steps,
        warmup=options.warmup,
        faults=planted,
        device=options.device,
        backend=options.backend,
        timeout_s=options.timeout_s,
        measure_overhead=options.measure_overhead,
    )
    checks.model(plan.spec, degrees)
    for fault in planted:
        checks.fault(fault, plan.spec, degrees, plan.timeout_s)
    return plan


def truth(plan: Plan) -> list[dict[str, Any]]:
    """The planted faults for the manifest; an expert or stage with the ranks that hold it."""
    entries = []
    for fault in plan.faults:
        entry = fault.truth()
        if isinstance(fault, faults.HotExpert):
            holder = fault.expert // (plan.spec.experts // plan.degrees["ep"])
            entry["ranks"] = plan.ranks_at("ep", holder)
        elif isinstance(fault, faults.SlowStage):
            entry["ranks"] = plan.ranks_at("pp", fault.stage)
        entries.append(entry)
    return entries


def _check_choices(options: Options) -> None:
    checks.choice("workload", options.workload, checks.WORKLOADS)
    checks.choice("--mode", options.mode, [mode.value for mode in Mode])
    checks.choice("--preset", options.preset, PRESETS)
    checks.choice("--schedule", options.schedule, checks.SCHEDULES)
    checks.choice("--compute", options.compute, [kind.value for kind in Compute])
    checks.choice("--dtype", options.dtype, checks.DTYPES)
    checks.choice("--device", options.device, checks.DEVICES)
    checks.choice("--backend", options.backend, checks.BACKENDS)
    for name in (
        "layers", "hidden", "heads", "seq", "batch", "vocab", "experts", "top_k",
        "microbatches", "chunks", "context", "concurrency", "steps",
    ):  # fmt: skip
        count = getattr(options, name)
        if count is not None and count < 1:
            raise UsageError(f"--{name.replace('_', '-')} {count}: must be at least 1")
    if options.warmup < 1:
        raise UsageError(
            f"--warmup {options.warmup}: must be at least 1; "
            "the first step sets up what later ones reuse"
        )
    for name, value in (("--timeout", options.timeout_s), ("--layer-ms", options.layer_ms)):
        if not 0 < value < math.inf:
            raise UsageError(f"{name} {value:g}: must be a number above 0")
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: must not be negative")


def _degrees(options: Options, world_size: int | None) -> dict[str, int]:
    """Degree of each axis with more than one rank and of the workload's own, outermost first."""
    asked = {axis: degree for axis, degree in options.degrees.items() if axis in checks.WORKLOADS}
    for axis, degree in asked.items():
        if degree < 1:
            raise UsageError(f"--{axis} {degree}: a degree is at least 1")
    ranks = world_size if options.ranks is None else options.ranks
    if world_size is not None and ranks != world_size:
        raise UsageError(f"--ranks {ranks}, but the launcher started {world_size}; leave it out")
    if options.workload not in asked:
        others = math.prod(asked.values())
        asked[options.workload] = DEFAULT_DEGREE if ranks is None else max(ranks // others, 1)
    product = math.prod(asked.values())
    text = " x ".join(f"{axis} {asked[axis]}" for axis in AXES if axis in asked)
    if ranks is not None and ranks != product:
        more = "more" if ranks > product else "fewer"
        raise UsageError(f"{ranks} ranks are {more} than the degrees allow ({text} = {product})")
    found = {
        axis: asked[axis] for axis in AXES if axis == options.workload or asked.get(axis, 1) > 1
    }
    checks.axes(found)
    return found


def _spec(options: Options, degrees: Mapping[str, int], planted: tuple[Fault, ...]) -> Spec:
    preset = PRESETS[options.preset]
    stages = degrees.get("pp", 1)
    chunks = _chunks(options, "pp" in degrees)
    mode = Mode(options.mode)
    has_experts = "ep" in degrees
    top_k = options.top_k or preset.top_k
    microbatches = options.microbatches
    if microbatches is None:
        microbatches = _microbatches(options, stages * chunks if "pp" in degrees else 0)
    seq = options.seq or preset.seq
    layers = options.layers or preset.layers or max(2, stages * chunks)
    concurrency = options.concurrency or options.batch * (microbatches if "pp" in degrees else 1)
    if mode is not Mode.TRAIN and "pp" in degrees and options.concurrency is not None:
        checks.divides("--concurrency", concurrency, "--batch", options.batch)
        microbatches = concurrency // options.batch
    return Spec(
        layers=layers,
        hidden=options.hidden or preset.hidden,
        heads=options.heads or preset.heads,
        seq=seq,
        batch=options.batch,
        vocab=options.vocab or preset.vocab,
        dtype=options.dtype,
        seed=options.seed,
        experts=(options.experts or preset.experts) if has_experts else 0,
        top_k=top_k if has_experts else 0,
        routing=_routed(options, has_experts, top_k, planted),
        schedule=options.schedule,
        microbatches=microbatches,
        chunks=chunks,
        mode=mode,
        context=(options.context or seq) if mode is Mode.DECODE else 0,
        concurrency=0 if mode is Mode.TRAIN else concurrency,
        sequence_parallel=options.sequence_parallel,
        loss_parallel=options.loss_parallel,
        compute=Compute(options.compute),
        layer_ms=options.layer_ms if options.compute == Compute.SLEEP.value else 0.0,
    )


def _chunks(options: Options, pipelined: bool) -> int:
    """Stages per pipeline rank, as the schedule needs or allows."""
    if not pipelined:
        return 1
    if options.schedule in checks.SINGLE_STAGE:
        if options.chunks not in (None, 1):
            raise UsageError(
                f"--chunks {options.chunks}: schedule {options.schedule} has one stage per rank; "
                "use interleaved_1f1b or zero_bubble"
            )
        return 1
    chunks = options.chunks or DEFAULT_CHUNKS
    if options.schedule in checks.TWO_STAGES and chunks != 2:
        raise UsageError(
            f"--chunks {chunks}: schedule {options.schedule} has two stages per rank; leave it out"
        )
    return chunks


def _microbatches(options: Options, stages: int) -> int:
    """Two for each stage of a pipeline, as far as a training batch has that many parts."""
    if stages == 0:
        return 1
    wanted = 2 * stages
    return min(wanted, options.batch) if options.mode == Mode.TRAIN.value else wanted


def _routed(options: Options, has_experts: bool, top_k: int, planted: tuple[Fault, ...]) -> Routing:
    routing = _routing(options.routing, top_k)
    for fault in planted:
        if isinstance(fault, faults.HotExpert):
            if not has_experts:
                raise UsageError("--fault hot-expert: this workload has no experts; add --ep 2")
            routing = Routing(RoutingKind.HOT, expert=fault.expert, share=fault.share)
    return routing


def _routing(text: str, top_k: int) -> Routing:
    kind, _, value = text.partition(":")
    try:
        if kind == "balanced" and not value:
            return Routing()
        if kind == "zipf" and math.isfinite(float(value)) and float(value) >= 0:
            return Routing(RoutingKind.ZIPF, exponent=float(value))
        if kind == "hot" and int(value) >= 0:
            # Each token visits distinct experts, so no expert can get more than 1 / top_k.
            return Routing(RoutingKind.HOT, expert=int(value), share=min(0.5, 1 / top_k))
    except ValueError:
        pass
    raise UsageError(f"--routing {text!r} is not known; choose balanced, zipf:A or hot:E")
