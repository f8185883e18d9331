# ruff: noqa: T201 - run by hand
"""Fuzz both paths of the reader for as long as wanted; by hand, not in CI.

    python -m tests.fuzz.long_run --minutes 10

Mutates the broken samples, small generated traces, and mutants that were interesting. Each
input runs on both paths, which must agree; one that takes over two seconds counts as a hang.
A failing input is kept in the current folder. Ends with the number of inputs run.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import generate
from tests.fuzz.mutations import mutate
from tests.fuzz.test_reader import SEEDS
from tests.io.same import PATHS, both
from tracekit.io import blocks
from tracekit.io.events import Events

SLOW_S = 2.0
MOST_SEEDS = 3000


def seeds() -> list[bytes]:
    """The broken samples and three generated traces of some 100 events."""
    found = list(SEEDS)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(3):
            path = Path(folder) / "trace.json"
            generate.write(path, 0.03, seed)
            found.append(path.read_bytes())
    return found


def run(minutes: float, seed: int) -> int:
    """Fuzz for so long; the number of inputs."""
    rng = random.Random(seed)
    pool = seeds()
    kinds: Counter[str] = Counter()
    count, end = 0, time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        # Small blocks now and then, so that cuts between blocks are met in small inputs.
        blocks.BLOCK_BYTES = rng.choice((1 << 20, 1 << 20, 997, 61))
        data = mutate(rng.choice(pool), rng)
        began = time.monotonic()
        try:
            found = both(data)
        except BaseException:
            keep(data, "crash", blocks.BLOCK_BYTES)
            raise
        if time.monotonic() - began > SLOW_S:
            keep(data, "slow", blocks.BLOCK_BYTES)
        count += 1
        codes = [item.code for item in found.diagnostics] if isinstance(found, Events) else ["-"]
        key = " ".join(codes)
        kinds[key] += 1
        if kinds[key] < 20 and len(pool) < MOST_SEEDS and len(data) < 100_000:
            pool.append(data)
    print(f"{count} inputs on {len(PATHS)} paths, {len(kinds)} different sets of diagnostics")
    return count


def keep(data: bytes, what: str, block_bytes: int) -> None:
    """Save an input that misbehaves."""
    path = Path(f"{what}-{time.time_ns()}.bin")
    path.write_bytes(data)
    print(f"kept {path} (blocks of {block_bytes} bytes)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    run(given.minutes, time.time_ns() if given.seed is None else given.seed)


if __name__ == "__main__":
    main()
