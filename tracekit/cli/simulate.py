"""``tracekit simulate``: write the traces of a described job, with the truth about it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from tracekit.cli._shared import status
from tracekit.core.errors import UsageError
from tracekit.core.fault import FORMS
from tracekit.core.schedule import SCHEDULES


def simulate(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="SPEC", help="A JSON or TOML file of fields; options change it."),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The run folder.")] = Path(
        "tracekit-simulated"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace the run folder.")] = False,
    tp: Annotated[int | None, typer.Option(help="Degree of tensor parallelism.")] = None,
    pp: Annotated[int | None, typer.Option(help="Degree of pipeline parallelism.")] = None,
    ep: Annotated[int | None, typer.Option(help="Degree of expert parallelism.")] = None,
    dp: Annotated[int | None, typer.Option(help="Degree of data parallelism.")] = None,
    fsdp: Annotated[int | None, typer.Option(help="Degree of sharded data parallelism.")] = None,
    layers: Annotated[
        int | None, typer.Option(help="Layers.", show_default="two for each stage")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help=f"Pipeline schedule: {', '.join(SCHEDULES)}.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(help="Parts of a batch.", show_default="two for each stage")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to record.", show_default="4")] = None,
    experts: Annotated[int | None, typer.Option(help="Experts per layer.")] = None,
    routing: Annotated[
        str | None, typer.Option(help="Tokens over experts: balanced, zipf:A or hot:E.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help=f"Plant a fault; may be repeated. One of {', '.join(FORMS.values())}."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all noise.", show_default="0")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other field, as NAME=JSON; docs/simulate.md lists them."),
    ] = None,
) -> None:
    """Simulate a job of 1 to thousands of ranks and write its traces as a run folder.

    Faults, wrong clocks, missing ranks and cut windows are planted as described;
    truth.json in the run folder says exactly what an analysis should find.

    Example: tracekit simulate --tp 4 --dp 2 --fault slow-rank:5:1.25 --set offset_ms=50 -o my-run
    """
    from tracekit import simulate as simulation

    given = {
        "tp": tp, "pp": pp, "ep": ep, "dp": dp, "fsdp": fsdp, "layers": layers,
        "schedule": schedule, "microbatches": microbatches, "steps": steps, "experts": experts,
        "routing": routing, "faults": fault, "seed": seed,
    }  # fmt: skip
    changes = {name: value for name, value in given.items() if value is not None}
    changes.update(_setting(text) for text in setting or ())
    if spec is not None:
        job = simulation.from_file(spec, **changes)
    else:
        job = simulation.made({"name": out.name, **changes})
    with status("simulating") as show:
        simulation.simulate(job, out, force=force, progress=show)
    typer.echo(f"wrote {out}: {job.world_size} ranks, {job.steps} steps")
    typer.echo(f"next: tracekit analyze {shlex.quote(str(out))}")


def _setting(text: str) -> tuple[str, Any]:
    """A field and its value; what is no JSON is taken as a word.

    Raises:
        UsageError: there is no "=".
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: write NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
