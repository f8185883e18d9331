"""``tracekit profile``: run a built-in workload under the profiler and write a run folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tracekit.profile import launch, place
from tracekit.profile.plan import Options

DEFAULTS = Options(workload="tp")


def profile(
    workload: Annotated[str, typer.Argument(metavar="tp|pp|ep|dp", help="What to run.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The run folder.", show_default="./tracekit-DEGREES"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run folder.")] = False,
    tp: Annotated[int | None, typer.Option(help="Degree of tensor parallelism.")] = None,
    pp: Annotated[int | None, typer.Option(help="Degree of pipeline parallelism.")] = None,
    ep: Annotated[int | None, typer.Option(help="Degree of expert parallelism.")] = None,
    dp: Annotated[int | None, typer.Option(help="Degree of data parallelism.")] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Ranks in all; stands for the workload's own degree.")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(help="Layers.", show_default="2, or one for each stage"),
    ] = DEFAULTS.layers,
    hidden: Annotated[int, typer.Option(help="Width of the model.")] = DEFAULTS.hidden,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = DEFAULTS.heads,
    seq: Annotated[int, typer.Option(help="Tokens per sequence.")] = DEFAULTS.seq,
    batch: Annotated[int, typer.Option(help="Sequences per step of one replica.")] = DEFAULTS.batch,
    vocab: Annotated[int, typer.Option(help="Size of the vocabulary.")] = DEFAULTS.vocab,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = DEFAULTS.dtype,
    schedule: Annotated[
        str, typer.Option(help="Pipeline schedule: gpipe or 1f1b.")
    ] = DEFAULTS.schedule,
    microbatches: Annotated[
        int | None,
        typer.Option(help="Parts of a pipeline's batch.", show_default="two for each stage"),
    ] = DEFAULTS.microbatches,
    experts: Annotated[int, typer.Option(help="Experts per layer.")] = DEFAULTS.experts,
    top_k: Annotated[int, typer.Option(help="Experts per token.")] = DEFAULTS.top_k,
    routing: Annotated[
        str,
        typer.Option(help="Tokens over experts: balanced, zipf:A (weights 1/e^A) or hot:E."),
    ] = DEFAULTS.routing,
    steps: Annotated[int, typer.Option(help="Steps to record.")] = DEFAULTS.steps,
    warmup: Annotated[int, typer.Option(help="Steps to run before.")] = DEFAULTS.warmup,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="Plant a fault, to be found again: delay:RANK:MS[:every=N] or "
            "hot-expert:E:SHARE; may be repeated."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = DEFAULTS.seed,
    device: Annotated[
        str, typer.Option(help="auto (GPUs if there is one for each rank), cpu or cuda.")
    ] = DEFAULTS.device,
    timeout: Annotated[
        float, typer.Option(help="Seconds that a rank waits for another before the job fails.")
    ] = DEFAULTS.timeout_s,
) -> None:
    """Run a small model on several ranks under torch.profiler and write a run folder.

    The workload names the first axis, 2 ranks by default; further degrees combine with it:
    dp with tp or ep, pp with dp, tp or ep. Without a launcher the ranks are started here.
    Under torchrun, srun or mpirun each process becomes one of them.

    Example: tracekit profile dp --dp 2 --tp 2 --fault delay:2:40 -o my-run

    On a cluster: torchrun --nproc-per-node 4 --no-python tracekit profile pp -o my-run
    """
    degrees = {"tp": tp, "pp": pp, "ep": ep, "dp": dp}
    options = Options(
        workload=workload,
        degrees={axis: degree for axis, degree in degrees.items() if degree is not None},
        ranks=ranks,
        layers=layers,
        hidden=hidden,
        heads=heads,
        seq=seq,
        batch=batch,
        vocab=vocab,
        dtype=dtype,
        experts=experts,
        top_k=top_k,
        routing=routing,
        schedule=schedule,
        microbatches=microbatches,
        steps=steps,
        warmup=warmup,
        faults=tuple(fault or ()),
        seed=seed,
        device=device,
        timeout_s=timeout,
    )
    here = place.from_environment(os.environ)
    if here is not None and here.rank > 0:  # one voice per job
        launch.run(options, out, force=force, on_progress=lambda line: None)
        return
    # Redrawn only when a line comes: a thread that draws could hold a lock while ranks are forked.
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def show(line: str) -> None:
            live.update(Text(f"profiling {workload}: {line}"), refresh=True)

        folder = launch.run(options, out, force=force, on_progress=show)
    typer.echo(f"wrote {folder}")
    typer.echo(f"next: tracekit analyze {shlex.quote(str(folder))}")
