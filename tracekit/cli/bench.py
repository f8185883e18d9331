"""``tracekit bench``: how long collectives take here when nothing else runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tracekit.cli import _shared
from tracekit.profile import benchplan, place

if TYPE_CHECKING:
    from tracekit.io.baseline import Latency


def bench(
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")] = Path(
        "tracekit-bench.json"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the page of it to this file.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Ranks to start here.", show_default="2")
    ] = None,
    group: Annotated[
        list[int] | None,
        typer.Option(help="Group size; may be repeated.", show_default="powers of two"),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(benchplan.OPS)}; may be repeated.", show_default="all"),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="Message size, such as 64KiB; may be repeated.", show_default="1KiB to 16MiB"
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    backend: Annotated[str, typer.Option(help="auto, gloo or nccl.")] = "auto",
    timeout: Annotated[
        float, typer.Option(help="Seconds that a rank waits for another before the job fails.")
    ] = 60.0,
) -> None:
    """Measure each collective alone, by message and group size: the baseline of the link.

    Of each iteration the slowest rank counts. Percentiles need enough iterations:
    p95 20, p99 100. The machine should have nothing else to do. Pass the file to
    `tracekit profile --baseline` to keep it with a run.

    Example: tracekit bench --ranks 4 --op all_reduce --size 1MiB -o bench.json

    Its page: tracekit report bench.json

    On a cluster: torchrun --nproc-per-node 8 --no-python tracekit bench -o bench.json
    """
    here = place.from_environment(os.environ)
    plan = benchplan.make(
        ranks=ranks,
        groups=tuple(group or ()),
        world_size=here.world_size if here else None,
        ops=tuple(op or benchplan.OPS),
        sizes=tuple(benchplan.parse_size(text) for text in size) if size else benchplan.SIZES,
        dtype=dtype,
        device=device,
        backend=backend,
        timeout_s=timeout,
    )
    if here is not None and here.rank > 0:  # one voice per job
        benchplan.run(plan, out, force=force, on_progress=lambda line: None)
        return
    with _shared.status("measuring") as show:
        benchplan.run(plan, out, force=force, on_progress=show)
    _show(out)
    if html is not None:
        _page(out, html)


def _show(out: Path) -> None:
    from tracekit.io import baseline

    found = baseline.read(out)
    table = Table("operation", "ranks", "bytes", "n", "p50", "p95", "p99", "busbw")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for row in found.rows:
        table.add_row(*_cells(row))
    Console().print(table)
    if any(row.crowded for row in found.rows):
        typer.echo("more ranks than cores: these times hold the system's scheduling")
    typer.echo(f"wrote {out}")


def _page(measured: Path, output: Path) -> None:
    from tracekit.io.output import write_text
    from tracekit.report.html import render

    write_text(output, render((), sheets=(_shared.bench_sheet(measured),)))
    typer.echo(f"page: {output}")


def _cells(row: Latency) -> tuple[str, ...]:
    from tracekit.report.format import quantity

    times = (quantity(value, "ns") for value in (row.p50_ns, row.p95_ns, row.p99_ns))
    size = quantity(row.bytes, "bytes")
    return (row.op, str(row.group_size), size, str(row.n), *times, quantity(row.busbw_gbps, "gbps"))
