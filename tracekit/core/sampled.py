"""Clocks of several hosts, held against samples that the runner took between them.

Model: a sample is one exchange over the network, so the difference of two hosts' clocks is
known to half its round trip. Samples of one host before and after the capture are joined
by a straight line, read at the time for which the fit holds. Three cases:
they agree within three standard errors of both, and ranks of one host share a clock: the
two are averaged by their variances; nothing but samples connects two hosts: they do;
they disagree: the fit stays, its uncertainty grows to the difference, and that is told.

Limits: samples are of hosts' wall clocks. Times of devices are converted by the profiler,
so there samples only check; they neither move nor connect anything.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.core.clock import POSSIBLE_DRIFT, ClockFit
from tracekit.core.run import Diagnostic, Severity
from tracekit.core.trace import RankTrace

DEVICE_SIGMA_NS = 50_000.0  # of converting a device's times to its host's clock
_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class ClockSample:
    """``peer``'s clock less that of ``rank``, at a time of ``rank``'s own clock."""

    rank: int
    peer: int
    at_ns: int
    offset_ns: int
    round_trip_ns: int


def held_against(
    traces: Sequence[RankTrace], fits: Sequence[ClockFit], samples: Sequence[ClockSample]
) -> tuple[tuple[ClockFit, ...], tuple[Diagnostic, ...]]:
    """The fits with what samples add, and notes about hosts where the two disagree."""
    found = {fit.rank: fit for fit in fits}
    host = {trace.rank: trace.host for trace in traces}
    on_cpu = all(trace.device_type == "cpu" for trace in traces)
    by_pair: dict[tuple[int, int], list[ClockSample]] = defaultdict(list)
    for sample in samples:
        if {sample.rank, sample.peer} <= found.keys() and host[sample.rank] != host[sample.peer]:
            by_pair[sample.rank, sample.peer].append(sample)
    notes = []
    for (rank, peer), some in sorted(by_pair.items()):
        own, other = found[rank], found[peer]
        # How far the rank's clock is ahead of the peer's.
        ahead, sigma = _at(some, own.at_ns)
        if not on_cpu:
            sigma = math.hypot(sigma, DEVICE_SIGMA_NS)
        fitted = own.offset_ns - other.offset_ns
        if own.component != other.component:
            if on_cpu:
                _connect(found, own, other, ahead - fitted, sigma)
            continue
        error = math.hypot(own.uncertainty_ns, other.uncertainty_ns)
        mates = [
            mate
            for mate, where in host.items()
            if where == host[rank] and found[mate].component == own.component
        ]
        if abs(ahead - fitted) > _ERRORS * math.hypot(error, sigma):
            notes.append(_disagreeing(rank, fitted, error, ahead, sigma))
            for mate in mates:
                wider = math.hypot(found[mate].uncertainty_ns, ahead - fitted)
                found[mate] = dataclasses.replace(found[mate], uncertainty_ns=wider)
        elif on_cpu and own.uncertainty_ns > other.uncertainty_ns and _one_clock(found, mates):
            share = error**2 / (error**2 + sigma**2)
            for mate in mates:
                fit = found[mate]
                found[mate] = dataclasses.replace(
                    fit,
                    offset_ns=fit.offset_ns + share * (ahead - fitted),
                    uncertainty_ns=fit.uncertainty_ns * math.sqrt(1 - share),
                )
    return tuple(found[fit.rank] for fit in fits), tuple(notes)


def _at(samples: Sequence[ClockSample], at_ns: int) -> tuple[float, float]:
    """How far ahead the samples' clock is at that time, and one standard error."""
    first, last = (edge(samples, key=lambda s: s.at_ns) for edge in (min, max))
    span = last.at_ns - first.at_ns
    place = min(max((at_ns - first.at_ns) / span, 0.0), 1.0) if span else 0.0
    ahead = -((1 - place) * first.offset_ns + place * last.offset_ns)
    sigma = math.hypot((1 - place) * first.round_trip_ns / 2, place * last.round_trip_ns / 2)
    beyond = max(first.at_ns - at_ns, at_ns - last.at_ns, 0)
    return ahead, math.hypot(sigma, POSSIBLE_DRIFT * beyond)


def _one_clock(found: dict[int, ClockFit], ranks: Sequence[int]) -> bool:
    """Whether the fit gave all of them the same clock."""
    return len({(found[r].component, found[r].offset_ns, found[r].drift_ppb) for r in ranks}) == 1


def _connect(
    found: dict[int, ClockFit], own: ClockFit, other: ClockFit, shift: float, sigma: float
) -> None:
    """Put the component of one rank on the clock of another's; the lower number stays."""
    moved, label = own.component, other.component
    if moved < label:
        moved, label, shift = label, moved, -shift
    for rank, fit in found.items():
        if fit.component == moved:
            found[rank] = dataclasses.replace(
                fit,
                offset_ns=fit.offset_ns + shift,
                uncertainty_ns=math.hypot(fit.uncertainty_ns, sigma),
                component=label,
            )


def _disagreeing(
    rank: int, fitted: float, error: float, sampled: float, sigma: float
) -> Diagnostic:
    told = " and ".join(
        f"{value / 1e3:,.0f} µs (± {spread / 1e3:,.0f}) by {what}"
        for value, spread, what in (
            (fitted, error, "its collectives"),
            (sampled, sigma, "samples over the network"),
        )
    )
    message = (
        f"the clock of this rank's host is ahead by {told}; times across hosts are that unsure"
    )
    return Diagnostic("clock-samples-disagree", Severity.WARNING, rank, 1, message)
