"""``tracekit profile``: record a built-in workload, a user's script or a serving engine."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tracekit.cli import _shared
from tracekit.core.errors import UsageError
from tracekit.core.fault import FORMS
from tracekit.profile import checks, launch, place, script
from tracekit.profile import server as engine
from tracekit.profile.plan import Options
from tracekit.profile.presets import PRESETS

DEFAULTS = Options(workload="tp")
TINY = PRESETS[DEFAULTS.preset]


def profile(
    context_: typer.Context,
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD | -- SCRIPT ARGS...",
            help=f"What to run: {', '.join(checks.WORKLOADS)}, or after -- a script of yours.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The run folder.", show_default="./tracekit-DEGREES"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run folder.")] = False,
    mode: Annotated[str, typer.Option(help="train, prefill or decode.")] = DEFAULTS.mode,
    tp: Annotated[int | None, typer.Option(help="Degree of tensor parallelism.")] = None,
    pp: Annotated[int | None, typer.Option(help="Degree of pipeline parallelism.")] = None,
    ep: Annotated[int | None, typer.Option(help="Degree of expert parallelism.")] = None,
    dp: Annotated[
        int | None, typer.Option(help="Replicas; with --fsdp replicas of shards (HSDP).")
    ] = None,
    fsdp: Annotated[int | None, typer.Option(help="Ranks that shard all state (FSDP2).")] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Ranks in all; stands for the workload's own degree.")
    ] = None,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Split activations by sequence over tp.")
    ] = False,
    loss_parallel: Annotated[
        bool, typer.Option("--loss-parallel", help="Split the loss by vocabulary over tp.")
    ] = False,
    schedule: Annotated[
        str, typer.Option(help=f"Pipeline schedule: {', '.join(checks.SCHEDULES)}.")
    ] = DEFAULTS.schedule,
    microbatches: Annotated[
        int | None,
        typer.Option(help="Parts of a pipeline's batch.", show_default="two for each stage"),
    ] = DEFAULTS.microbatches,
    chunks: Annotated[
        int | None, typer.Option(help="Stages per pipeline rank.", show_default="by schedule")
    ] = DEFAULTS.chunks,
    preset: Annotated[
        str, typer.Option(help=f"Size of the model: {', '.join(PRESETS)}.")
    ] = DEFAULTS.preset,
    layers: Annotated[
        int | None, typer.Option(help="Layers.", show_default="2, or one for each stage")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Width of the model.", show_default=str(TINY.hidden))
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Attention heads.", show_default=str(TINY.heads))
    ] = None,
    seq: Annotated[
        int | None, typer.Option(help="Tokens per sequence.", show_default=str(TINY.seq))
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(help="Size of the vocabulary.", show_default=str(TINY.vocab))
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Sequences per step of one replica; in inference, per forward pass.")
    ] = DEFAULTS.batch,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens in the KV cache when decoding.", show_default="--seq"),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Sequences in flight in inference.", show_default="--batch"),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = DEFAULTS.dtype,
    experts: Annotated[
        int | None, typer.Option(help="Experts per layer.", show_default=str(TINY.experts))
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Experts per token.", show_default=str(TINY.top_k))
    ] = None,
    routing: Annotated[
        str,
        typer.Option(help="Tokens over experts: balanced, zipf:A (weights 1/e^A) or hot:E."),
    ] = DEFAULTS.routing,
    compute: Annotated[
        str, typer.Option(help="real, or sleep: layers pause, so that ranks need no cores.")
    ] = DEFAULTS.compute,
    layer_ms: Annotated[
        float,
        typer.Option(help="With sleep: a layer's forward, as its input and weight gradients."),
    ] = DEFAULTS.layer_ms,
    steps: Annotated[
        int, typer.Option("--steps", "--active", help="Steps to record.")
    ] = DEFAULTS.steps,
    warmup: Annotated[int, typer.Option(help="Steps to run before.")] = DEFAULTS.warmup,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Plant a fault, to be found again; may be repeated: {', '.join(FORMS.values())}."
        ),
    ] = None,
    measure_overhead: Annotated[
        bool,
        typer.Option("--measure-overhead", help="Afterwards, compare steps with and without."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = DEFAULTS.seed,
    device: Annotated[
        str, typer.Option(help="auto (GPUs if there is one for each rank), cpu or cuda.")
    ] = DEFAULTS.device,
    backend: Annotated[
        str, typer.Option(help="auto, gloo or nccl.", show_default="nccl on GPUs, else gloo")
    ] = DEFAULTS.backend,
    repeat: Annotated[int, typer.Option(help="For a script: recordings, one after the other.")] = 1,
    step_of: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION|CLASS",
            help="For a script: each call of this function, or of this class of model, is a step.",
            show_default="the first optimizer's steps",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="START:SECONDS",
            help="For a script: record this stretch of time, on all ranks, instead of steps.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="What tracekit bench measured of this machine, to keep with the run."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Record a running vLLM or SGLang server instead."),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="For a server: seconds to record; or give --steps.")
    ] = None,
    trace_dir: Annotated[
        Path | None,
        typer.Option(help="For a server: the folder it writes to; needed for vLLM."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds that a rank waits for another before the job fails.")
    ] = DEFAULTS.timeout_s,
) -> None:
    """Run a small model on several ranks under torch.profiler and write a run folder.

    The workload names the first axis, 2 ranks by default; further degrees combine with it:
    dp with tp, ep or fsdp, fsdp with tp, and pp with each of these.
    Without a launcher the ranks are started here.
    Under torchrun, srun or mpirun each process becomes one of them.

    A script of your own comes after --, unchanged: its steps are those of its first
    optimizer, or what --step-of or --window say. Its exit code is kept.

    Example: tracekit profile dp --dp 2 --tp 2 --fault delay:2:40 -o my-run

    A script: tracekit profile --ranks 2 -o my-run -- train.py --lr 0.1

    A server: tracekit profile --server http://127.0.0.1:30000 --steps 20 -o my-run

    On a cluster: torchrun --nproc-per-node 4 --no-python tracekit profile pp -o my-run
    """
    given = target or []
    if server is not None:
        source = context_.get_parameter_source("steps")
        counted = None if source is None or source.name == "DEFAULT" else steps
        wanted = engine.Request(url=server, duration_s=duration, steps=counted, trace_dir=trace_dir)
        _engine(wanted, out or Path("tracekit-server"), force)
        return
    if _is_script(given):
        window_s = _window(window)
        request = script.Request(
            command=tuple(given), ranks=ranks, warmup=warmup, active=steps, repeat=repeat,
            step_of=step_of, window=window_s,
        )  # fmt: skip
        raise typer.Exit(_script(request, out, force))
    degrees = {"tp": tp, "pp": pp, "ep": ep, "dp": dp, "fsdp": fsdp}
    options = Options(
        workload=_workload(given),
        degrees={axis: degree for axis, degree in degrees.items() if degree is not None},
        ranks=ranks,
        mode=mode,
        preset=preset,
        layers=layers,
        hidden=hidden,
        heads=heads,
        seq=seq,
        batch=batch,
        vocab=vocab,
        context=context,
        concurrency=concurrency,
        dtype=dtype,
        experts=experts,
        top_k=top_k,
        routing=routing,
        schedule=schedule,
        microbatches=microbatches,
        chunks=chunks,
        sequence_parallel=sequence_parallel,
        loss_parallel=loss_parallel,
        compute=compute,
        layer_ms=layer_ms,
        steps=steps,
        warmup=warmup,
        faults=tuple(fault or ()),
        seed=seed,
        device=device,
        backend=backend,
        timeout_s=timeout,
        measure_overhead=measure_overhead,
    )
    _built_in(options, out, force, baseline)


def _is_script(target: Sequence[str]) -> bool:
    """Whether this is something to start, and no built-in workload or a misspelt one."""
    if not target or target[0] in checks.WORKLOADS:
        return False
    first = target[0]
    return len(target) > 1 or first.endswith(".py") or "/" in first or bool(shutil.which(first))


def _window(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        start, length = map(float, text.split(":"))
    except ValueError:
        raise UsageError(f"--window {text!r}: give START:SECONDS, such as 30:5") from None
    return start, length


def _script(request: script.Request, out: Path | None, force: bool) -> int:
    """Run a script, say what became of it, and return its own exit code."""
    name = Path(request.command[-1 if request.command[0] == "-m" else 0]).stem
    outcome = script.run(request, out or Path(f"tracekit-{name}"), force=force)
    for note in outcome.notes:
        typer.echo(f"tracekit: {note}", err=True)
    if outcome.folder is not None:
        _conclude(outcome.folder)
    return outcome.exit_code


def _engine(request: engine.Request, out: Path, force: bool) -> None:
    with _shared.status("profiling the server") as show:
        folder = engine.run(request, out, force=force, on_progress=show)
    _conclude(folder)


def _workload(target: Sequence[str]) -> str:
    if len(target) != 1:
        raise UsageError(
            f"{len(target) or 'no'} workloads given; name one of {', '.join(checks.WORKLOADS)}, "
            "or give a script after --; see tracekit profile --help"
        )
    return target[0]


def _built_in(options: Options, out: Path | None, force: bool, baseline: Path | None) -> None:
    here = place.from_environment(os.environ)
    if here is not None and here.rank > 0:  # one voice per job
        launch.run(options, out, force=force, baseline=baseline, on_progress=lambda line: None)
        return
    # Redrawn only when a line comes: a thread that draws could hold a lock while ranks are forked.
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(line: str) -> None:
            live.update(Text(f"profiling {options.workload}: {line}"), refresh=True)

        folder = launch.run(options, out, force=force, baseline=baseline, on_progress=show)
    _conclude(folder)


def _conclude(folder: Path) -> None:
    from tracekit.io import manifest

    typer.echo(f"wrote {folder}")
    found = manifest.read(folder)
    if found is not None and found.overhead is not None:
        typer.echo(_overhead(found.overhead))
    typer.echo(f"next: tracekit analyze {shlex.quote(str(folder))}")


def _overhead(found: dict[str, Any]) -> str:
    bare = found["step_p50_ns"]["bare"] / 1e6
    low, high = found["tracekit_ratio_interval"]
    return (
        f"overhead: a step takes {bare:.2f} ms; {found['torch_profiler_ratio']:+.1%} under "
        f"torch.profiler, {found['tracekit_ratio']:+.1%} more with tracekit's marks "
        f"(95 % interval {low:+.1%} to {high:+.1%}; medians of {found['n']})"
    )
