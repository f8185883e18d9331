"""What each rank's clock shows, and which part of the run its profiler saw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.core.trace import Int64
from tracekit.simulate.spec import Spec

# The job starts this long after the base time of the traces, on the true clock.
START_NS = 1_000_000_000
BASE_NS = 1_751_410_836_000_000_000
BASE_GRID_NS = 7_889_238 * 1_000_000_000  # Kineto floors base times to this


@dataclass(frozen=True, slots=True)
class Clock:
    """A rank's clock against the true one: shown = true + offset + drift * (true - start)."""

    offset_ns: int
    drift_ppm: float

    def shown(self, true_ns: Int64) -> Int64:
        """What the clock shows at these times since the job's start, since the base time."""
        drift = np.rint(true_ns * (self.drift_ppm * 1e-6)).astype(np.int64)
        shown: Int64 = true_ns + drift + (START_NS + self.offset_ns)
        return shown


def clocks(spec: Spec) -> tuple[Clock, ...]:
    """Every rank's clock."""
    random = np.random.default_rng([spec.seed, 2])
    offset = np.rint(random.uniform(-1, 1, spec.world_size) * spec.offset_ms * 1e6)
    drift = random.uniform(-1, 1, spec.world_size) * spec.drift_ppm
    if spec.host_clocks:
        first = np.arange(spec.world_size) // spec.ranks_per_host * spec.ranks_per_host
        offset, drift = offset[first], drift[first]
    given = spec.offsets_ns or offset.astype(np.int64).tolist()
    return tuple(
        Clock(int(off), round(float(ppm), 6)) for off, ppm in zip(given, drift, strict=True)
    )


def windows(spec: Spec, starts: Int64, ends: Int64) -> Int64:
    """(ranks, 2) int64 ns, true time: where each rank's profiler started and stopped.

    Args:
        spec: the job.
        starts, ends: (steps,) of the steps.
    """
    margin = 1_000_000
    whole = np.array([starts[0] - margin, ends[-1] + margin])
    if spec.cut_steps == 0:
        return np.tile(whole, (spec.world_size, 1))
    random = np.random.default_rng([spec.seed, 3])
    mean = (ends[-1] - starts[0]) / spec.steps
    cut = np.rint(random.uniform(0, spec.cut_steps, (spec.world_size, 2)) * mean)
    inside: Int64 = np.array([starts[0], ends[-1]]) + (cut * np.array([1, -1])).astype(np.int64)
    return inside
