"""What does not go together, each as one clear line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tracekit.core import fault as faults
from tracekit.core.errors import UsageError
from tracekit.core.fault import Fault
from tracekit.workloads.spec import Compute, Mode, RoutingKind, Spec

WORKLOADS = ("tp", "pp", "ep", "dp", "fsdp")
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv", "dualpipev")
SINGLE_STAGE = ("gpipe", "1f1b")
TWO_STAGES = ("zbv", "dualpipev")
DTYPES = ("float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
BACKENDS = ("auto", "gloo", "nccl")


def choice(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a value that is not among the known ones.

    Raises:
        UsageError: it is not.
    """
    if value not in known:
        raise UsageError(f"{name} {value!r} is not known; choose from {', '.join(known)}")


def divides(whole: str, size: int, part: str, count: int) -> None:
    """Refuse what does not divide evenly.

    Raises:
        UsageError: it does not.
    """
    if size % count:
        raise UsageError(f"{whole} {size} cannot be divided by {part} {count}")


def axes(degrees: Mapping[str, int]) -> None:
    """Refuse axes that do not combine.

    Raises:
        UsageError: two of them do not.
    """
    for one, other, instead in (
        ("tp", "ep", "pp and dp combine with each of them"),
        ("fsdp", "ep", "use --dp with --ep"),
    ):
        if one in degrees and other in degrees:
            raise UsageError(f"--{one} with --{other} is not supported; {instead}")


def model(spec: Spec, degrees: Mapping[str, int]) -> None:
    """Refuse a model that cannot be split over these axes, or run in this mode.

    Raises:
        UsageError: what does not fit, and which option to change.
    """
    tp = degrees.get("tp", 1)
    divides("--hidden", spec.hidden, "--heads", spec.heads)
    divides("--heads", spec.heads, "--tp", tp)
    divides("--vocab", spec.vocab, "--tp", tp)
    if spec.experts:
        divides("--experts", spec.experts, "--ep", degrees.get("ep", 1))
        _experts(spec)
    if "pp" in degrees:
        _pipeline(spec, degrees["pp"])
    _mode(spec)
    _tensor_parallel(spec, degrees)
    if spec.compute is Compute.SLEEP and ("pp" not in degrees or set(degrees) - {"pp", "dp"}):
        raise UsageError("--compute sleep is for pipelines; use workload pp, alone or with --dp")


def _mode(spec: Spec) -> None:
    if spec.mode is Mode.TRAIN:
        if spec.concurrency:
            raise UsageError("--concurrency is for --mode prefill and decode")
        return
    divides("--concurrency", spec.concurrency, "--batch", spec.batch)
    if spec.loss_parallel:
        raise UsageError(f"--loss-parallel: --mode {spec.mode.value} has no loss; leave it out")
    if spec.sequence_parallel and spec.mode is Mode.DECODE:
        raise UsageError(
            "--sequence-parallel: --mode decode has one token per sequence, which cannot be split"
        )


def _tensor_parallel(spec: Spec, degrees: Mapping[str, int]) -> None:
    for name, wanted in (
        ("--sequence-parallel", spec.sequence_parallel),
        ("--loss-parallel", spec.loss_parallel),
    ):
        if wanted and "tp" not in degrees:
            raise UsageError(f"{name} needs tensor parallelism; add --tp 2")
    if spec.sequence_parallel:
        divides("--seq", spec.seq, "--tp", degrees["tp"])


def _pipeline(spec: Spec, ranks: int) -> None:
    stages = ranks * spec.chunks
    if spec.layers % stages:
        parts = f"--pp {ranks}" if spec.chunks == 1 else f"--pp {ranks} x --chunks {spec.chunks}"
        raise UsageError(f"--layers {spec.layers} cannot be divided by {parts}")
    if spec.mode is Mode.TRAIN:
        divides("--batch", spec.batch, "--microbatches", spec.microbatches)
    _microbatches(spec, ranks, stages)


def _microbatches(spec: Spec, ranks: int, stages: int) -> None:
    """The fewest, or the multiples, that a schedule can run."""
    count, schedule = spec.microbatches, spec.schedule
    least = {"1f1b": stages, "dualpipev": stages}.get(schedule, 1)
    if count < least:
        held = f"--pp {ranks}" if spec.chunks == 1 else f"--pp {ranks} with {spec.chunks} chunks"
        raise UsageError(
            f"--microbatches {count}: schedule {schedule} needs at least one per stage "
            f"({held}: {least})"
        )
    rounds = max(1, count // ranks)
    if schedule in ("interleaved_1f1b", "zero_bubble") and count % rounds:
        raise UsageError(
            f"--microbatches {count}: schedule {schedule} runs them in {rounds} equal rounds; "
            f"use {rounds * (count // rounds)} or a multiple of --pp {ranks}"
        )


def _experts(spec: Spec) -> None:
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


def fault(planted: Fault, spec: Spec, degrees: Mapping[str, int], timeout_s: float) -> None:
    """Refuse a fault that has no place in this job, or that would end it.

    Raises:
        UsageError: which, and why.
    """
    kind = planted.truth()["kind"]
    ranks = 1
    for degree in degrees.values():
        ranks *= degree
    for rank in _ranks_of(planted):
        if rank >= ranks:
            raise UsageError(
                f"--fault {kind}: rank {rank} does not exist; the job has ranks 0 to {ranks - 1}"
            )
    ms = getattr(planted, "ms", 0.0)
    if ms / 1000 >= timeout_s:
        raise UsageError(
            f"--fault {kind}: {ms:g} ms is longer than ranks wait for each other ({timeout_s:g} s)"
        )
    if isinstance(planted, (faults.SlowRank, faults.SlowStage)) and planted.factor <= 1:
        raise UsageError(f"--fault {kind}: a factor of {planted.factor:g} does not slow down")
    if isinstance(planted, faults.SlowStage) and planted.stage >= degrees.get("pp", 0):
        raise UsageError(
            f"--fault slow-stage: stage {planted.stage} does not exist; "
            f"the job has {degrees.get('pp', 0)} pipeline ranks (--pp)"
        )
    if isinstance(planted, faults.SlowLink):
        _link(planted, spec, degrees)


def _ranks_of(planted: Fault) -> tuple[int, ...]:
    if isinstance(planted, faults.SlowLink):
        return planted.ranks
    if isinstance(planted, (faults.SlowStage, faults.HotExpert)):
        return ()
    return (planted.rank,)


def _link(planted: faults.SlowLink, spec: Spec, degrees: Mapping[str, int]) -> None:
    """A link must carry transfers of its own: between neighbours of a pipeline."""
    one, other = planted.ranks
    inner = 1
    for axis, degree in degrees.items():
        if axis != "pp":
            inner *= degree
    steps = (other - one) // inner
    ring = degrees.get("pp", 1) - 1  # from the last rank back to the first, with several chunks
    near = steps == 1 or (spec.chunks > 1 and spec.schedule not in TWO_STAGES and steps == ring)
    if "pp" not in degrees or (other - one) % inner or not near:
        raise UsageError(
            f"--fault slow-link:{one}-{other}: no transfer runs between these two ranks alone; "
            "choose two neighbours of a pipeline (--pp)"
        )
