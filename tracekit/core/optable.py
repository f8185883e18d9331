"""Tables of operations, as the OSDI 2025 study of stragglers published them, replayed.

An operation is a row: what it is, on which rank (replica and stage) and step, when it began and
how long it took. Each rank has a stream for computing, one for its data-parallel
collectives and one for each direction of transfers. An operation begins when the one
before it on its stream and those it depends on have ended: a compute after its
receive, a send after its compute, computing after the gather of parameters, the sums of
gradients after computing. Members of a collective or transfer move data once all have begun,
so its ``transfer`` is its end minus the latest begin. Launch delays are zero in a replay.

Source: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
OSDI 2025; tables at github.com/ByteDance-Seed/StragglerAnalysis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.core.errors import InputError
from tracekit.core.replay import Float, graph, replay
from tracekit.core.trace import Columns, Float64, Int32, Int64, column

COMPUTE = ("forward-compute", "backward-compute")
GATHER = "params-all-gather"
SUMS = ("grads-reduce-scatter", "embedding-grads-all-reduce")
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
KINDS = (*COMPUTE, GATHER, *SUMS, *TRANSFERS)


@dataclass(frozen=True, slots=True, eq=False)
class OpTable(Columns):
    """Operations of a job, in any order; kinds are indices into ``KINDS``, others left out."""

    kind: Int32 = column(np.int32)
    step: Int64 = column(np.int64)
    replica: Int32 = column(np.int32)
    stage: Int32 = column(np.int32)
    number: Int32 = column(np.int32)  # the how-maniest of its kind in the step, from 0
    begin_s: Float64 = column(np.float64)  # within the step
    length_s: Float64 = column(np.float64)


@dataclass(frozen=True, slots=True)
class TableResult:
    """Time of all steps, replayed as it was and with every operation at its kind's ideal."""

    observed_s: float
    ideal_s: float

    @property
    def slowdown(self) -> float:
        """S of the study."""
        return self.observed_s / self.ideal_s


def what_if(table: OpTable) -> TableResult:
    """Replay with each compute at the mean of its kind, each transfer at its kind's median.

    Raises:
        InputError: the operations contradict each other.
    """
    size = len(table)
    groups = _groups(table)
    source, target = _edges(table, groups)
    plan = graph(2 * size + len(groups), source, target)
    if plan is None:
        raise InputError("the operations wait for each other in a circle; the table is damaged")
    took = _transfers(table, groups)
    ideal = np.zeros(size)
    for kind, name in enumerate(KINDS):
        mine = table.kind == kind
        if mine.any():
            ideal[mine] = took[mine].mean() if name in COMPUTE else np.median(took[mine])
    work = np.zeros((2 * size + len(groups), 2))
    work[size : 2 * size, 0] = np.maximum(took, 0)
    work[size : 2 * size, 1] = ideal
    ends = replay(plan, np.zeros(len(work)), work)[size : 2 * size]
    _, step = np.unique(table.step, return_inverse=True)
    total = np.zeros((int(step.max(initial=-1)) + 1, 2))
    np.maximum.at(total, step.reshape(-1), ends)
    return TableResult(*total.sum(axis=0).tolist())


def _groups(table: OpTable) -> list[list[int]]:
    """Rows that move data together."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    rows = zip(
        table.kind.tolist(), table.step.tolist(), table.replica.tolist(), table.stage.tolist(),
        table.number.tolist(), strict=True,
    )  # fmt: skip
    for row, (kind, step, replica, stage, number) in enumerate(rows):
        name = KINDS[kind]
        if name in TRANSFERS:
            to = stage + {"forward-send": 1, "backward-send": -1}.get(name, 0)
            found[(name[:7], step, replica, to, number)].append(row)
        elif name == "embedding-grads-all-reduce":
            found[(name, step, replica, number)].append(row)
        elif name not in COMPUTE:
            found[(name, step, stage, number)].append(row)
    return list(found.values())


def _transfers(table: OpTable, groups: list[list[int]]) -> Float:
    """(rows,) seconds: of a compute its length, of others from the latest begin to their end."""
    took: Float = table.length_s.copy()
    for members in groups:
        last = table.begin_s[members].max()
        took[members] = table.begin_s[members] + table.length_s[members] - last
    return took


def _edges(
    table: OpTable, groups: list[list[int]]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Begins are nodes 0 to n, ends n to 2n, then one node per group."""
    size = len(table)
    pairs: list[tuple[int, int]] = []
    compute = np.flatnonzero(np.isin(table.kind, [KINDS.index(name) for name in COMPUTE]))
    pairs += [(row, size + row) for row in compute.tolist()]
    for place, members in enumerate(groups, 2 * size):
        for row in members:
            pairs += [(row, place), (place, size + row)]
    for rows in _ranks(table):
        pairs += [(size + before, after) for before, after in _waits(table, rows)]
    edges = np.array(pairs, dtype=np.intp).reshape(len(pairs), 2)
    return edges[:, 0], edges[:, 1]


def _ranks(table: OpTable) -> Iterator[list[int]]:
    """Rows of each rank and step in order of their begin."""
    order = np.lexsort((table.begin_s, table.stage, table.replica, table.step))
    key = np.stack((table.step[order], table.replica[order], table.stage[order]), axis=1)
    cuts = np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1
    yield from (part.tolist() for part in np.split(order, cuts))


def _waits(table: OpTable, rows: list[int]) -> Iterator[tuple[int, int]]:
    """Which operation of a rank begins after which has ended."""
    last: dict[str, int] = {}
    by_name: dict[tuple[str, int], int] = {}
    for row in rows:
        name = KINDS[table.kind[row]]
        by_name[(name, int(table.number[row]))] = row
        stream = _stream(name)
        if stream in last:
            yield last[stream], row
        last[stream] = row
    computes = [row for row in rows if KINDS[table.kind[row]] in COMPUTE]
    for (name, number), row in by_name.items():
        if name in COMPUTE and (name.replace("compute", "recv"), number) in by_name:
            yield by_name[(name.replace("compute", "recv"), number)], row
        elif name.endswith("send") and (name.replace("send", "compute"), number) in by_name:
            yield by_name[(name.replace("send", "compute"), number)], row
        elif name == GATHER and computes:
            yield row, computes[0]
        elif name in SUMS and computes:
            yield computes[-1], row


def _stream(name: str) -> str:
    if name in COMPUTE:
        return "compute"
    return "collectives" if name == GATHER or name in SUMS else name
