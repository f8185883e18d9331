"""Clocks: how far each rank's clock is off, and how sure that is.

Model: the end of member r of instance c is ``T_c + offset_r + drift_r (t - t0)`` plus
noise of ``σ_c = hypot(3 µs, 3 % of the transfer)``, since all members of a synchronising
collective leave it together. Weighted least squares with Huber weights, iterated, on the
graph of ranks; a send and its recv are soft constraints (σ 20 µs), unless they share their
kernels with others and may end apart (:mod:`tracekit.core.onesided`). Where only such tie a
rank to its reference, it is no surer than 3 µs. Ranks that no chain of instances connects lie in
different *components* and cannot be compared. Drift is fitted where it is both possible
(window × 50 ppm > 3 standard errors, two clocks less than 100 ppm apart) and seen.

On a CPU, trace times are the host's wall clock: ranks of one host share one unknown, unless
members of one collective leave before others have arrived, which no right clock allows.

Limits: a rank that always ends late cannot be told from its clock. Offsets are data; no
trace is ever edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.core import conjugate
from tracekit.core.coalesced import carried_of, end_with_others
from tracekit.core.collective import Matching
from tracekit.core.trace import Int64, RankTrace

Float = npt.NDArray[np.floating[Any]]

END_SIGMA_NS = 3_000.0
END_SIGMA_RATIO = 0.03
P2P_SIGMA_NS = 20_000.0
CPU_SIGMA_NS = 300_000.0  # spread of wake-ups on busy cores
POSSIBLE_DRIFT = 50e-6
FLOOR_NS = 500.0  # profilers convert device times no better than this
P2P_FLOOR_NS = 3_000.0  # of ends that only transfers tie: they may lie apart in all of them alike
SHARED_CLOCK_NS = 500.0
_HUBER = 1.345
_ROUNDS = 12
_CAUSALITY_NS = 1_000_000
_MOST_EQUATIONS = 512  # that are solved at once: the time grows with the cube of their number
_MOST_NODES = 2_048  # above this, standard errors come from each rank's own instances


@dataclass(frozen=True, slots=True)
class ClockFit:
    """One rank's clock against the lowest rank of its component.

    Attributes:
        rank: global rank.
        offset_ns: what its times are ahead, at ``at_ns``.
        uncertainty_ns: one standard error of it; 0 for the component's own reference.
        component: ranks of different components cannot be compared.
        drift_ppb: change of the offset, ns per second.
        at_ns: where on the rank's own clock ``offset_ns`` holds.
    """

    rank: int
    offset_ns: float
    uncertainty_ns: float
    component: int
    drift_ppb: float = 0.0
    at_ns: int = 0

    def aligned(self, times_ns: Int64) -> Int64:
        """Times of this rank on the clock of its component."""
        shift = np.full(len(times_ns), self.offset_ns)
        if self.drift_ppb:
            shift = shift + self.drift_ppb * 1e-9 * (times_ns - self.at_ns)
        out: Int64 = times_ns - np.rint(shift).astype(np.int64)
        return out


_Blocks = list[npt.NDArray[np.intp]]  # (instances, members) rows each


@dataclass(frozen=True, slots=True, eq=False)
class _Observations:
    """Ends of the usable instances.

    ``end`` is relative to the instance's first end, so that microseconds survive in float64.
    """

    instance: Int64  # renumbered from 0
    node: Int64
    end: Float  # ns
    sigma: Float  # ns, per row
    time: Float  # seconds from the middle of the capture, per instance


def fit(traces: Sequence[RankTrace], matching: Matching) -> tuple[ClockFit, ...]:
    """The clock of every rank, in the order of ``traces``."""
    nodes, shared = _nodes(traces, matching)
    seen = _observations(traces, matching, nodes)
    count = int(nodes.max(initial=-1)) + 1
    component = _components(count, seen.node, seen.instance)
    firm = seen.sigma < P2P_SIGMA_NS
    firmly = _components(count, seen.node[firm], seen.instance[firm])
    reference = np.array(
        [int(np.flatnonzero(component == c)[0]) for c in component], dtype=np.int64
    )
    offset, drift, error = _solve(count, seen, reference)
    at = _middle(matching)
    first_of: dict[int, int] = {}
    fits = []
    for place, trace in enumerate(traces):
        node = int(nodes[place])
        label = first_of.setdefault(int(component[node]), len(first_of))
        is_reference = node == int(reference[node])
        floor = FLOOR_NS if firmly[node] == firmly[reference[node]] else P2P_FLOOR_NS
        same_clock = (
            SHARED_CLOCK_NS if shared and place != int(np.flatnonzero(nodes == node)[0]) else 0.0
        )
        fits.append(
            ClockFit(
                rank=trace.rank,
                offset_ns=float(offset[node]),
                uncertainty_ns=float(same_clock if is_reference else np.hypot(error[node], floor)),
                component=label,
                drift_ppb=float(drift[node]),
                at_ns=at,
            )
        )
    return tuple(fits)


def _middle(matching: Matching) -> int:
    ends = matching.rows.end_ns
    return int(ends.min() // 2 + ends.max() // 2) if len(ends) else 0


# -- what the fit sees ---------------------------------------------------------------


def _nodes(traces: Sequence[RankTrace], matching: Matching) -> tuple[Int64, bool]:
    """(traces,) number of each rank's clock; ranks of one host share it on a CPU."""
    own = np.arange(len(traces), dtype=np.int64)
    if not traces or any(t.device_type != "cpu" or t.host is None for t in traces):
        return own, False
    hosts: dict[str, int] = {}
    shared = np.array([hosts.setdefault(t.host or "", len(hosts)) for t in traces], dtype=np.int64)
    if _impossible(matching, shared):
        return own, False
    return shared, True


def _impossible(matching: Matching, nodes: Int64) -> bool:
    """Whether members of one clock leave a collective before others have arrived, often."""
    use = matching.synchronising() & matching.complete()
    rows = matching.rows
    chosen = use[rows.instance]
    if not chosen.any():
        return False
    instance, node = rows.instance[chosen].astype(np.int64), nodes[rows.trace[chosen]]
    key = instance * (int(nodes.max()) + 1) + node
    _, place = np.unique(key, return_inverse=True)
    place = place.reshape(-1)
    size = int(place.max()) + 1
    last = np.full(size, np.iinfo(np.int64).min)
    first_end = np.full(size, np.iinfo(np.int64).max)
    np.maximum.at(last, place, rows.start_ns[chosen])
    np.minimum.at(first_end, place, rows.end_ns[chosen])
    return bool(np.mean(last - first_end > _CAUSALITY_NS) > 0.2)


def _observations(traces: Sequence[RankTrace], matching: Matching, nodes: Int64) -> _Observations:
    """Rows of instances whose members end together, between at least two clocks."""
    rows, instances = matching.rows, matching.instances
    p2p = matching.p2p()
    cpu = np.array([trace.device_type == "cpu" for trace in traces] or [False], dtype=np.bool_)
    # What a CPU backend records of a transfer ends when its rank waits for it.
    on_cpu = np.zeros(len(instances), dtype=np.bool_)
    np.logical_or.at(on_cpu, rows.instance, cpu[rows.trace])
    usable = matching.synchronising() | (p2p & ~on_cpu & ~end_with_others(traces, matching))
    usable &= ~(p2p & ~on_cpu) | _met(traces, matching)
    chosen = usable[rows.instance]
    instance = rows.instance[chosen].astype(np.int64)
    node = nodes[rows.trace[chosen]]
    duration = (rows.end_ns - rows.start_ns)[chosen].astype(np.float64)
    size = len(instances)
    shortest = np.full(size, np.inf)
    np.minimum.at(shortest, instance, duration)
    first = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(first, instance, rows.end_ns[chosen])
    sigma = np.hypot(END_SIGMA_NS, END_SIGMA_RATIO * np.where(np.isfinite(shortest), shortest, 0))
    sigma = np.where(p2p, np.hypot(P2P_SIGMA_NS, sigma), sigma)
    uneven = ~matching.even() & ~p2p
    sigma = np.where(uneven, np.hypot(P2P_SIGMA_NS, 0.3 * np.where(uneven, shortest, 0)), sigma)
    sigma = np.where(on_cpu, np.hypot(CPU_SIGMA_NS, sigma), sigma)
    _, renumbered = np.unique(instance, return_inverse=True)
    middle = _middle(matching)
    kept = np.unique(instance)
    return _Observations(
        instance=renumbered.reshape(-1).astype(np.int64),
        node=node,
        end=(rows.end_ns[chosen] - first[instance]).astype(np.float64),
        sigma=sigma[instance],
        time=(first[kept] - middle) * 1e-9,
    )


def _met(traces: Sequence[RankTrace], matching: Matching) -> npt.NDArray[np.bool_]:
    """(instances,) transfers whose two ends may have met.

    A small send is over before its receiver has come, and the receive ends when it has. So of
    one direction of a pair only those count that end least apart, receive less send.
    """
    rows = matching.rows
    size = len(matching.instances)
    out = np.ones(size, dtype=np.bool_)
    source, target = np.full(size, -1, dtype=np.int64), np.full(size, -1, dtype=np.int64)
    later = np.zeros(size, dtype=np.int64)
    base = int(rows.end_ns.min()) if len(rows) else 0
    for name, ends, sign in (("send", source, -1), ("recv", target, 1)):
        chosen = matching.per_row([trace.calls_of({name}) for trace in traces])
        ends[rows.instance[chosen]] = rows.trace[chosen]
        np.add.at(later, rows.instance[chosen], sign * (rows.end_ns[chosen] - base))
    pairs = (source >= 0) & (target >= 0)
    # Kernels that carry the same several transfers end together; which came last says nothing.
    pairs[rows.instance[carried_of(traces, matching) > 1]] = False
    span = int(rows.end_ns.max()) - base if len(rows) else 0
    width = 2 * P2P_SIGMA_NS + POSSIBLE_DRIFT * span
    key = (source << 32) + target
    for number in np.unique(key[pairs]).tolist():
        mine = np.flatnonzero(pairs & (key == number))
        out[mine] = later[mine] <= later[mine].min() + width
    return out


def _components(count: int, member: Int64, instance: Int64) -> Int64:
    """(nodes,) number of each node's component, by union-find over the instances.

    Args:
        count: of nodes.
        member, instance: (rows,) a node and the instance it was part of.
    """
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    if len(instance):
        first = np.full(int(instance.max()) + 1, -1, dtype=np.int64)
        first[instance[::-1]] = member[::-1]
        for a, b in np.unique(np.stack((first[instance], member), 1), axis=0).tolist():
            one, other = root(a), root(b)
            # The lowest node stays the root: components are numbered by their first rank.
            parent[max(one, other)] = min(one, other)
    return np.array([root(node) for node in range(count)], dtype=np.int64)


# -- least squares -------------------------------------------------------------------


def _solve(count: int, seen: _Observations, reference: Int64) -> tuple[Float, Float, Float]:
    """Offset (ns), drift (ppb) and standard error (ns) of each node against its reference."""
    zero = np.zeros(count)
    free = np.flatnonzero(reference != np.arange(count))
    if len(free) == 0 or len(seen.instance) == 0:
        return zero, zero.copy(), zero.copy()
    offset, error, scale = _iterated(count, seen, free, 1)
    drift = zero.copy()
    window = float(np.ptp(seen.time)) if len(seen.time) else 0.0
    if window * POSSIBLE_DRIFT * 1e9 > 3 * float(np.median(error[:count][free])):
        both, both_error, both_scale = _iterated(count, seen, free, 2)
        slope, slope_error = both[count:], both_error[count:]
        seen_drift = np.abs(slope[free]) > 4 * slope_error[free]
        matters = np.abs(slope[free]) * window > 3 * both_error[:count][free]
        matters &= np.abs(slope[free]) < 2e9 * POSSIBLE_DRIFT
        if (seen_drift & matters).any() and both_scale < scale:
            return both[:count], slope, both_error[:count]
    return offset[:count], drift, error[:count]


def _iterated(
    count: int, seen: _Observations, free: Int64, terms: int
) -> tuple[Float, Float, float]:
    """Huber's weights, iterated: parameters, their standard errors, the scale of the noise."""
    unknowns = np.concatenate([free + count * k for k in range(terms)])
    solution = np.zeros(count * terms)
    base = 1 / seen.sigma**2
    weight = base.copy()
    scale = 1.0
    size = np.bincount(seen.instance)
    # The mean of an instance is fitted too, so residuals of small ones come out small.
    shrink = np.sqrt(size / np.maximum(size - 1, 1))[seen.instance]
    blocks = _blocks(seen)
    for _ in range(_ROUNDS):
        used = weight
        if len(unknowns) > _MOST_EQUATIONS:
            step = _approached(count, seen, weight, solution, unknowns, terms)
        else:
            normal, right = _normal(count, seen, blocks, weight, terms)
            step = _solved(normal[np.ix_(unknowns, unknowns)], right[unknowns])
        moved = float(np.abs(step - solution[unknowns]).max(initial=0.0))
        solution[unknowns] = step
        residual = _residuals(count, seen, weight, solution, terms) * shrink / seen.sigma
        scale = max(1e-6, 1.4826 * float(np.median(np.abs(residual[size[seen.instance] > 1]))))
        ratio = np.abs(residual) / (_HUBER * scale)
        weight = base / np.maximum(ratio, 1.0)
        if moved < 1.0:
            break
    error = np.zeros(count * terms)
    # Where residuals are smaller than the model's sigma, the data are better than it.
    if len(unknowns) <= _MOST_NODES:
        normal, _ = _normal(count, seen, blocks, used, terms)
        normal = normal[np.ix_(unknowns, unknowns)]
        spread = np.sqrt(np.maximum(np.diag(_inverse(normal)), 0.0))
    else:
        diagonal = _diagonal(count, seen, used, terms)[unknowns]
        spread = 2 / np.sqrt(np.maximum(diagonal, 1e-30))
    error[unknowns] = max(scale, 0.05) * spread * 1.1
    return solution, error, scale


def _normal(
    count: int, seen: _Observations, blocks: _Blocks, weight: Float, terms: int
) -> tuple[Float, Float]:
    """Normal equations with each instance's own time eliminated."""
    total: Float = np.bincount(seen.instance, weights=weight).astype(np.float64)
    mean = np.bincount(seen.instance, weights=weight * seen.end) / total
    time = seen.time[seen.instance]
    powers = [np.ones(len(weight)), time, time * time]
    right = _by_node(count, seen, weight * (seen.end - mean[seen.instance]), terms)
    matrices = [
        _laplacian(count, seen, blocks, weight, total, powers[k]) for k in range(2 * terms - 1)
    ]
    if terms == 1:
        return matrices[0], right
    return np.block([[matrices[0], matrices[1]], [matrices[1], matrices[2]]]), right


def _by_node(count: int, seen: _Observations, values: Float, terms: int) -> Float:
    """(count * terms,) sums of the rows' values, then of the values times time."""
    time = seen.time[seen.instance]
    parts = [
        np.bincount(seen.node, weights=values * time**k, minlength=count) for k in range(terms)
    ]
    return np.concatenate(parts)


def _diagonal(count: int, seen: _Observations, weight: Float, terms: int) -> Float:
    """Of the matrix of the normal equations, where no two members of an instance share a clock."""
    total = np.bincount(seen.instance, weights=weight)[seen.instance]
    own = weight * (1 - weight / total)
    twice = _by_node(count, seen, own, 2 * terms - 1).reshape(-1, count)
    return twice[::2].reshape(-1)


def _approached(
    count: int, seen: _Observations, weight: Float, start: Float, unknowns: Int64, terms: int
) -> Float:
    """Solution of the normal equations for very many nodes: each step is linear in rows."""
    same_end = replace(seen, end=np.zeros(len(seen.end)))

    def gradient(of: _Observations, solution: Float) -> Float:
        left = _residuals(count, of, weight, solution, terms)
        return _by_node(count, seen, weight * left, terms)[unknowns]

    def times(part: Float) -> Float:
        full = np.zeros(count * terms)
        full[unknowns] = part
        return -gradient(same_end, full)

    diagonal = _diagonal(count, seen, weight, terms)[unknowns]
    right = gradient(seen, np.zeros(count * terms))
    return conjugate.solved(times, diagonal, right, start[unknowns])


def _laplacian(
    count: int, seen: _Observations, blocks: _Blocks, weight: Float, total: Float, factor: Float
) -> Float:
    """Weights between nodes, each instance's rows times its factor.

    Instances of equal members are multiplied as one matrix: linear in rows for each group.
    """
    out = np.zeros((count, count))
    diagonal = np.bincount(seen.node, weights=weight * factor, minlength=count)
    for rows in blocks:
        nodes = seen.node[rows]
        block = weight[rows] * np.sqrt(np.abs(factor[rows])) / np.sqrt(total[seen.instance[rows]])
        signed = block * np.sign(factor[rows])
        product = -(signed.T @ block)
        members = nodes[0]
        if len(np.unique(members)) == len(members):
            out[np.ix_(members, members)] += product
        else:  # several ranks share one clock
            np.add.at(out, (members[:, None], members[None, :]), product)
    out[np.arange(count), np.arange(count)] += diagonal
    return out


def _blocks(seen: _Observations) -> _Blocks:
    """Rows of instances with the same members: (instances, members) each."""
    order = np.argsort(seen.instance, kind="stable")
    size = np.bincount(seen.instance)
    first = np.cumsum(size) - size
    key = _member_key(seen, order, size, first)
    blocks = []
    for _, index in _grouped(key):
        rows = first[index][:, None] + np.arange(size[index[0]])[None, :]
        blocks.append(order[rows])
    return blocks


def _member_key(
    seen: _Observations, order: npt.NDArray[np.intp], size: Int64, first: Int64
) -> Int64:
    """(instances,) equal numbers for equal lists of members."""
    rng = np.random.default_rng(0)
    code = rng.integers(1, 1 << 61, size=int(seen.node.max()) + 1, dtype=np.int64)
    place = np.arange(len(order)) - np.repeat(first, size)
    mixed = code[seen.node[order]] * (2 * place + 1)
    return np.add.reduceat(mixed, first) + size


def _grouped(key: Int64) -> list[tuple[int, npt.NDArray[np.intp]]]:
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    return [(int(key[part[0]]), part) for part in np.split(order, cuts)]


def _residuals(
    count: int, seen: _Observations, weight: Float, solution: Float, terms: int
) -> Float:
    left = seen.end - solution[seen.node]
    if terms == 2:
        left = left - solution[count + seen.node] * seen.time[seen.instance]
    total = np.bincount(seen.instance, weights=weight)
    mean = np.bincount(seen.instance, weights=weight * left) / total
    out: Float = left - mean[seen.instance]
    return out


def _solved(normal: Float, right: Float) -> Float:
    # A node whose rows all have no partner leaves a zero row; the ridge keeps it at zero.
    ridge = 1e-12 * max(float(np.diag(normal).max(initial=0.0)), 1e-30)
    out: Float = np.linalg.solve(normal + ridge * np.eye(len(normal)), right)
    return out


def _inverse(normal: Float) -> Float:
    ridge = 1e-12 * max(float(np.diag(normal).max(initial=0.0)), 1e-30)
    out: Float = np.linalg.inv(normal + ridge * np.eye(len(normal)))
    return out
