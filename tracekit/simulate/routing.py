"""Which rank sends how many tokens to which: the routing of every layer with experts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.core.trace import Int64
from tracekit.simulate.job import INNER, Job


class Routing:
    """The token matrices of a job: rows that ep rank i sends to ep rank j.

    Every expert-parallel group draws its own, equal over tp.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.spec = job, job.spec
        self.shares = self.spec.expert_shares() if self.spec.ep > 1 else np.ones(1)
        self._drawn: dict[tuple[int, int, int], Int64] = {}

    def experts(self, pp: int, layer: int, microbatch: int) -> Int64:
        """(steps, replicas, ep, experts) assignments of each rank's tokens."""
        key = (pp, layer, microbatch)
        if key not in self._drawn:
            rows = self.spec.batch * self.spec.seq * self.spec.top_k
            replicas = self.spec.dp * self.spec.fsdp
            shape = (self.spec.steps, replicas, self.spec.ep)
            # Its own generator per layer: a layer draws the same whatever the others do.
            random = np.random.default_rng([self.spec.seed, 1, pp, layer, microbatch])
            self._drawn[key] = _drawn(random, rows, self.shares, shape, self.spec.routing)
        return self._drawn[key]

    def matrix(self, pp: int, layer: int, microbatch: int) -> Int64:
        """(steps, replicas, ep, ep) rows from rank to rank."""
        found = self.experts(pp, layer, microbatch)
        held = self.spec.experts // self.spec.ep
        rows: Int64 = found.reshape(*found.shape[:3], self.spec.ep, held).sum(axis=4)
        return rows

    def load(self, pp: int, layer: int, microbatch: int) -> Int64:
        """(steps, width) rows that each rank's experts get."""
        return self._spread(self.matrix(pp, layer, microbatch).sum(axis=2))

    def load_ratio(self, pp: int, layer: int, microbatch: int) -> npt.NDArray[np.float64]:
        """(steps, width) load over the mean load of an even routing."""
        return self.load(pp, layer, microbatch) / (
            self.spec.batch * self.spec.seq * self.spec.top_k
        )

    def largest_rows(self, pp: int, step: int, layer: int, microbatch: int) -> Int64:
        """(width,) rows of the busiest rank of each group: it decides when an exchange ends."""
        matrix = self.matrix(pp, layer, microbatch)[step]
        busiest = np.maximum(matrix.sum(axis=1), matrix.sum(axis=2)).max(axis=1, keepdims=True)
        spread: Int64 = self._spread(np.repeat(busiest, self.spec.ep, axis=1)[None])[0]
        return spread

    def splits(self, pp: int, step: int, layer: int, microbatch: int, place: int) -> Int64:
        """(2, ep) rows a rank sends to, and gets from, each rank of its group in a dispatch."""
        replica, own = self._at(place)
        matrix = self.matrix(pp, layer, microbatch)[step, replica]
        return np.stack((matrix[own], matrix[:, own]))

    def held(self, pp: int, step: int, layer: int, microbatch: int, place: int) -> Int64:
        """(experts here,) rows that each expert of a rank gets."""
        replica, own = self._at(place)
        count = self.spec.experts // self.spec.ep
        rows: Int64 = self.experts(pp, layer, microbatch)[step, replica].sum(axis=0)
        return rows[own * count : (own + 1) * count]

    def _at(self, place: int) -> tuple[int, int]:
        """Replica and place along ep of a rank of a stage."""
        at = dict(zip(INNER, np.unravel_index(place, self.job.inner), strict=True))
        return int(at["dp"] * self.spec.fsdp + at["fsdp"]), int(at["ep"])

    def _spread(self, values: Int64) -> Int64:
        """(steps, replicas, ep) to (steps, width): the ranks of a tp group are alike."""
        spread: Int64 = np.repeat(values.reshape(len(values), -1), self.spec.tp, axis=1)
        return spread


def _drawn(
    random: np.random.Generator,
    rows: int,
    shares: npt.NDArray[np.float64],
    shape: tuple[int, ...],
    routing: str,
) -> Int64:
    """Assignments of each rank: exact shares where they are even, else drawn."""
    if routing == "balanced":
        exact = np.floor(np.cumsum(shares) * rows + 0.5).astype(np.int64)
        return np.broadcast_to(np.diff(exact, prepend=0), (*shape, len(shares)))
    drawn: Int64 = random.multinomial(rows, shares, size=shape).astype(np.int64)
    return drawn
