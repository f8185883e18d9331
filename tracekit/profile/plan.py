"""From what was asked to what will run: a pure check that ends in a plan or one clear line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tracekit.core.errors import UsageError
from tracekit.core.topology import AXES
from tracekit.profile import faults
from tracekit.workloads.spec import Routing, RoutingKind, Spec

WORKLOADS = ("tp", "pp", "ep", "dp")
SCHEDULES = ("gpipe", "1f1b")
DTYPES = ("float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
DEFAULT_DEGREE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller may ask for; None leaves the choice to the plan."""

    workload: str
    degrees: Mapping[str, int] = field(default_factory=dict)  # axis -> degree
    ranks: int | None = None
    layers: int | None = None
    hidden: int = 256
    heads: int = 8
    seq: int = 64
    batch: int = 8
    vocab: int = 512
    dtype: str = "float32"
    experts: int = 8
    top_k: int = 2
    routing: str = "balanced"
    schedule: str = "1f1b"
    microbatches: int | None = None
    steps: int = 6
    warmup: int = 3
    faults: tuple[str, ...] = ()
    seed: int = 0
    device: str = "auto"
    timeout_s: float = 60.0  # longest wait of one rank for another


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked job: every rank can derive its part from it."""

    workload: str
    spec: Spec
    degrees: dict[str, int]  # axes with more than one rank, outermost first
    steps: int
    warmup: int
    faults: tuple[faults.Fault, ...]
    device: str
    timeout_s: float

    @property
    def world_size(self) -> int:
        """Number of ranks: the product of the degrees."""
        return math.prod(self.degrees.values())

    @property
    def name(self) -> str:
        """The degrees in short, as in "pp2-tp2"; it names the default run folder."""
        return "-".join(f"{axis}{degree}" for axis, degree in self.degrees.items())


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
    spec = _spec(options, degrees, planted)
    plan = Plan(
        options.workload,
        spec,
        degrees,
        options.steps,
        options.warmup,
        planted,
        options.device,
        options.timeout_s,
    )
    _check_model(spec, degrees)
    _check_delays(plan)
    return plan


def truth(plan: Plan) -> list[dict[str, Any]]:
    """The planted faults for the manifest; a hot expert with the ranks that hold it."""
    entries = []
    for fault in plan.faults:
        entry = fault.truth()
        if isinstance(fault, faults.HotExpert):
            degree = plan.degrees["ep"]
            holder = fault.expert // (plan.spec.experts // degree)
            inner = plan.degrees.get("tp", 1)
            entry["ranks"] = [
                rank for rank in range(plan.world_size) if rank // inner % degree == holder
            ]
        entries.append(entry)
    return entries


def _check_choices(options: Options) -> None:
    for name, value, known in (
        ("workload", options.workload, WORKLOADS),
        ("--schedule", options.schedule, SCHEDULES),
        ("--dtype", options.dtype, DTYPES),
        ("--device", options.device, DEVICES),
    ):
        if value not in known:
            raise UsageError(f"{name} {value!r} is not known; choose from {', '.join(known)}")
    for name, count in (
        ("--layers", options.layers),
        ("--hidden", options.hidden),
        ("--heads", options.heads),
        ("--seq", options.seq),
        ("--batch", options.batch),
        ("--vocab", options.vocab),
        ("--experts", options.experts),
        ("--top-k", options.top_k),
        ("--microbatches", options.microbatches),
        ("--steps", options.steps),
    ):
        if count is not None and count < 1:
            raise UsageError(f"{name} {count}: must be at least 1")
    if options.warmup < 1:
        raise UsageError(
            f"--warmup {options.warmup}: must be at least 1; "
            "the first step sets up what later ones reuse"
        )
    if not 0 < options.timeout_s < math.inf:
        raise UsageError(f"--timeout {options.timeout_s:g}: must be a number of seconds above 0")
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: must not be negative")


def _degrees(options: Options, world_size: int | None) -> dict[str, int]:
    """Degree of each axis with more than one rank, outermost first."""
    asked = {axis: degree for axis, degree in options.degrees.items() if axis in WORKLOADS}
    for axis, degree in asked.items():
        if degree < 1:
            raise UsageError(f"--{axis} {degree}: a degree is at least 1")
    ranks = world_size if options.ranks is None else options.ranks
    if world_size is not None and ranks != world_size:
        raise UsageError(f"--ranks {ranks}, but the launcher started {world_size}; leave it out")
    if options.workload not in asked:
        others = math.prod(asked.values())
        fill = DEFAULT_DEGREE if ranks is None else max(ranks // others, 1)
        asked[options.workload] = fill
    product = math.prod(asked.values())
    text = " x ".join(f"{axis} {asked[axis]}" for axis in AXES if axis in asked)
    if ranks is not None and ranks != product:
        more = "more" if ranks > product else "fewer"
        raise UsageError(f"{ranks} ranks are {more} than the degrees allow ({text} = {product})")
    if asked[options.workload] < 2:
        raise UsageError(
            f"--{options.workload} {asked[options.workload]}: "
            f"workload {options.workload!r} needs at least 2 ranks on its axis"
        )
    if asked.get("tp", 1) > 1 and asked.get("ep", 1) > 1:
        raise UsageError("--tp with --ep is not supported; pp and dp combine with each of them")
    return {axis: asked[axis] for axis in AXES if asked.get(axis, 1) > 1}


def _spec(options: Options, degrees: Mapping[str, int], planted: tuple[faults.Fault, ...]) -> Spec:
    routing = _routing(options.routing, options.top_k)
    for fault in planted:
        if isinstance(fault, faults.HotExpert):
            if "ep" not in degrees:
                raise UsageError("--fault hot-expert: this workload has no experts; add --ep 2")
            routing = Routing(RoutingKind.HOT, expert=fault.expert, share=fault.share)
    stages = degrees.get("pp", 1)
    microbatches = options.microbatches
    if microbatches is None:
        microbatches = min(2 * stages, options.batch) if stages > 1 else 1
    return Spec(
        layers=max(2, stages) if options.layers is None else options.layers,
        hidden=options.hidden,
        heads=options.heads,
        seq=options.seq,
        batch=options.batch,
        vocab=options.vocab,
        dtype=options.dtype,
        seed=options.seed,
        experts=options.experts if "ep" in degrees else 0,
        top_k=options.top_k if "ep" in degrees else 0,
        routing=routing,
        schedule=options.schedule,
        microbatches=microbatches,
    )


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


def _check_model(spec: Spec, degrees: Mapping[str, int]) -> None:
    """Everything that is divided must divide evenly."""
    rules = [
        ("--hidden", spec.hidden, "--heads", spec.heads),
        ("--heads", spec.heads, "--tp", degrees.get("tp", 1)),
        ("--vocab", spec.vocab, "--tp", degrees.get("tp", 1)),
        ("--layers", spec.layers, "--pp", degrees.get("pp", 1)),
        ("--experts", spec.experts, "--ep", degrees.get("ep", 1)),
    ]
    if "pp" in degrees:
        rules.append(("--batch", spec.batch, "--microbatches", spec.microbatches))
        if spec.schedule == "1f1b" and spec.microbatches < degrees["pp"]:
            raise UsageError(
                f"--microbatches {spec.microbatches}: schedule 1f1b needs at least "
                f"one per stage (--pp {degrees['pp']})"
            )
    for whole, size, part, count in rules:
        if size % count:
            raise UsageError(f"{whole} {size} cannot be divided by {part} {count}")
    if "ep" in degrees:
        _check_experts(spec)


def _check_experts(spec: Spec) -> None:
    if spec.top_k > spec.experts:
        raise UsageError(f"--top-k {spec.top_k} is more than --experts {spec.experts}")
    routing = spec.routing
    if routing.kind is RoutingKind.HOT:
        if routing.expert >= spec.experts:
            raise UsageError(f"hot expert {routing.expert}: --experts is only {spec.experts}")
        if routing.share * spec.top_k > 1:
            raise UsageError(
                f"hot expert share {routing.share:g}: with --top-k {spec.top_k} no expert can get "
                f"more than {1 / spec.top_k:g}; use --top-k 1 or a smaller share"
            )
        if routing.share * spec.top_k < 1 and spec.top_k > spec.experts - 1:
            raise UsageError(f"--top-k {spec.top_k} leaves no choice beside a hot expert")


def _check_delays(plan: Plan) -> None:
    for fault in plan.faults:
        if isinstance(fault, faults.Delay) and fault.rank >= plan.world_size:
            raise UsageError(
                f"--fault delay: rank {fault.rank} does not exist; "
                f"the job has ranks 0 to {plan.world_size - 1}"
            )
        if isinstance(fault, faults.Delay) and fault.ms / 1000 >= plan.timeout_s:
            raise UsageError(
                f"--fault delay: {fault.ms:g} ms is longer than ranks wait for each other "
                f"({plan.timeout_s:g} s)"
            )


def with_device(plan: Plan, device: str) -> Plan:
    """The same plan on a decided device."""
    return replace(plan, device=device)
