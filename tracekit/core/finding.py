"""A finding: time that is lost, where, how sure that is, and what to try."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Confidence(str, Enum):
    """How far a finding may be trusted."""

    EXACT = "exact"  # follows from the trace by arithmetic
    HIGH = "high"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to fix first.

    Attributes:
        title: a sentence with its numbers.
        lost_ns_per_step: mean over ranks and statistic steps, in ns.
        lost_ratio: the same as a share of the step, in [0, 1].
        ranks: whom it concerns; empty means all.
        evidence: what the claim rests on, with n.
        advice: one thing to try.
    """

    analysis: str
    title: str
    lost_ns_per_step: int
    lost_ratio: float
    ranks: tuple[int, ...]
    evidence: str
    confidence: Confidence
    advice: str

    @property
    def severity(self) -> str:
        """ "high" from 10 % of the step, "medium" from 2 %, else "low"."""
        if self.lost_ratio >= 0.10:
            return "high"
        return "medium" if self.lost_ratio >= 0.02 else "low"


def percent(ratio: float) -> str:
    """A share in words: 0.2264 is "22.6 %"."""
    return f"{ratio * 100:.3g} %"


def rank_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Most expensive first; findings may overlap, so their losses do not add up."""
    return tuple(sorted(findings, key=lambda f: (-f.lost_ns_per_step, f.analysis, f.title)))
