"""Replay of a graph of operations: when would each have ended, had some been faster?

Definition: the time of a node is the latest time of its predecessors plus its own
work; a node without predecessors begins at a given time. Nodes are replayed level by
level, for many scenarios at once: linear in nodes, edges and scenarios.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating[Any]]
Index = npt.NDArray[np.intp]

# Scenarios are replayed in portions of about this many times in memory.
_MOST_CELLS = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in an order in which every edge points forward.

    Attributes:
        order: (nodes,) given number of each node, in the order of replay.
        level: (levels + 1,) where each level begins in ``order``.
        first: (nodes + 1,) where the edges into each node begin, in the order of replay.
        source: (edges,) place in ``order`` that each edge comes from.
    """

    order: Index
    level: Index
    first: Index
    source: Index


def graph(nodes: int, source: npt.ArrayLike, target: npt.ArrayLike) -> Graph | None:
    """Order the nodes of a graph into levels; None when its edges form a circle."""
    start = np.asarray(source, dtype=np.intp)
    end = np.asarray(target, dtype=np.intp)
    into = np.bincount(end, minlength=nodes)
    by_source = np.argsort(start, kind="stable")
    out_first = np.searchsorted(start[by_source], np.arange(nodes + 1))
    out_target = end[by_source]
    ready = np.flatnonzero(into == 0)
    levels = [ready]
    done = len(ready)
    while len(ready):
        counts = out_first[ready + 1] - out_first[ready]
        place = np.repeat(out_first[ready] - (np.cumsum(counts) - counts), counts)
        reached = out_target[place + np.arange(len(place))]
        np.subtract.at(into, reached, 1)
        ready = np.sort(reached[into[reached] == 0])
        if len(ready):  # an edge for each predecessor; np.unique is slow on small arrays
            ready = ready[np.concatenate(([True], ready[1:] != ready[:-1]))]
        done += len(ready)
        if len(ready):
            levels.append(ready)
    if done < nodes:
        return None
    order = np.concatenate(levels) if nodes else np.empty(0, dtype=np.intp)
    place_of = np.empty(nodes, dtype=np.intp)
    place_of[order] = np.arange(nodes)
    target_place = place_of[end]
    by_target = np.argsort(target_place, kind="stable")
    return Graph(
        order=order,
        level=np.concatenate(([0], np.cumsum([len(item) for item in levels]))).astype(np.intp),
        first=np.searchsorted(target_place[by_target], np.arange(nodes + 1)).astype(np.intp),
        source=place_of[start][by_target],
    )


def replay(plan: Graph, begin: Float, work: Float) -> Float:
    """Times of all nodes.

    Args:
        plan: the graph.
        begin: (nodes,) ns, when a node without predecessors begins.
        work: (nodes, scenarios) ns.

    Returns:
        (nodes, scenarios) ns, in the order in which the nodes were given.
    """
    nodes, scenarios = work.shape
    portion = max(1, _MOST_CELLS // max(nodes, 1))
    if scenarios > portion:
        parts = [
            replay(plan, begin, work[:, low : low + portion])
            for low in range(0, scenarios, portion)
        ]
        return np.concatenate(parts, axis=1)
    times = work[plan.order]
    roots = slice(0, int(plan.level[1]) if len(plan.level) > 1 else 0)
    times[roots] += begin[plan.order[roots]][:, None]
    bounds = plan.level.tolist()
    for low, high in itertools.pairwise(bounds[1:]):
        edge = int(plan.first[low])
        sources = plan.source[edge : plan.first[high]]
        before = times[sources]
        if len(sources) > high - low:
            before = np.maximum.reduceat(before, plan.first[low:high] - edge, axis=0)
        times[low:high] += before
    out = np.empty_like(times)
    out[plan.order] = times
    return out
