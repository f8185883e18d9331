"""What ``tracekit bench`` is to measure, checked. Imports no torch."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tracekit.core.errors import UsageError
from tracekit.profile import checks, launch
from tracekit.profile import place as places

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
SIZES = tuple(1024 * 4**power for power in range(8))  # 1 KiB to 16 MiB
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(i?B)?$", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """A checked benchmark."""

    world_size: int
    groups: tuple[int, ...]
    ops: tuple[str, ...] = OPS
    sizes: tuple[int, ...] = SIZES
    dtype: str = "float32"
    device: str = "auto"
    backend: str = "auto"
    timeout_s: float = 60.0


def make(
    *,
    ranks: int | None,
    groups: tuple[int, ...] = (),
    world_size: int | None = None,
    **options: object,
) -> BenchPlan:
    """Check a benchmark.

    Args:
        ranks: ranks to start; 2 by default.
        groups: group sizes; by default the powers of two up to all ranks.
        world_size: number of ranks when a launcher has already started them.
        options: further fields of :class:`BenchPlan`.

    Raises:
        UsageError: something is not known or does not fit.
    """
    if ranks is not None and world_size is not None and ranks != world_size:
        raise UsageError(f"--ranks {ranks}, but the launcher started {world_size}; leave it out")
    world = world_size or ranks or 2
    if world < 2:
        raise UsageError(f"--ranks {world}: a collective needs at least 2")
    if not groups:
        powers = [2**power for power in range(1, world.bit_length()) if 2**power <= world]
        groups = tuple(sorted({*powers, world}))
    plan = replace(BenchPlan(world_size=world, groups=groups), **options)  # type: ignore[arg-type]
    for size in plan.groups:
        if not 2 <= size <= world:
            raise UsageError(f"--group {size}: must be from 2 to the {world} ranks")
    for op in plan.ops:
        checks.choice("--op", op, OPS)
    checks.choice("--dtype", plan.dtype, checks.DTYPES)
    checks.choice("--device", plan.device, checks.DEVICES)
    checks.choice("--backend", plan.backend, checks.BACKENDS)
    return plan


def parse_size(text: str) -> int:
    """Bytes from "4096", "64KiB" or "16M".

    Raises:
        UsageError: it is no size.
    """
    match = _SIZE.match(text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"--size {text!r}: give bytes, or such as 64KiB or 16MiB")
    return int(match[1]) * _UNITS[match[2].upper()]


def run(
    plan: BenchPlan, out: Path, *, force: bool = False, on_progress: Callable[[str], None]
) -> Path:
    """Measure, and write the baseline.

    Raises:
        UsageError: the file exists, or the machine lacks what was asked for.
        RankFailedError: a rank crashed, hung or was killed; nothing is left behind.
    """
    if out.exists() and not force:
        raise UsageError(f"{out} exists; choose another file with -o, or replace it with --force")
    place = places.from_environment(os.environ)
    plan = launch.decided(plan)
    with launch.partial_folder(out) as folder:
        partial = folder / out.name
        work = functools.partial(_rank, plan, str(partial))
        if place is None:
            launch.start(plan, work, on_progress)
        else:
            with launch.failing_as(place):
                work(place, on_progress)
        if place is None or place.rank == 0:
            partial.replace(out)
    return out


def _rank(plan: BenchPlan, path: str, place: places.Place, report: Callable[[str], None]) -> None:
    from tracekit.profile import bench

    bench.run_rank(plan, path, place, report)
