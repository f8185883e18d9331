"""Planted faults: disturbances whose place and size are known, to test what finds them.

The grammar is shared by everything that plants them; who plants which is up to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tracekit.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class SlowRank:
    """All computation of rank ``rank`` takes ``factor`` times as long."""

    rank: int
    factor: float

    def truth(self) -> dict[str, Any]:
        """The fault as it stands in the manifest."""
        return {"kind": "slow-rank", "rank": self.rank, "factor": self.factor}


@dataclass(frozen=True, slots=True)
class Delay:
    """Rank ``rank`` pauses before a step's first communication, in every ``every``-th step."""

    rank: int
    ms: float
    every: int = 1

    def truth(self) -> dict[str, Any]:
        """The fault as it stands in the manifest."""
        return {"kind": "delay", "rank": self.rank, "ms": self.ms, "every": self.every}

    def hits(self, step: int) -> bool:
        """Whether the pause happens in the step of this number."""
        return step % self.every == 0


@dataclass(frozen=True, slots=True)
class Gc:
    """The interpreter of rank ``rank`` collects garbage for so long, in every ``every``-th step."""

    rank: int
    ms: float
    every: int = 1

    def truth(self) -> dict[str, Any]:
        """The fault as it stands in the manifest."""
        return {"kind": "gc", "rank": self.rank, "ms": self.ms, "every": self.every}

    def hits(self, step: int) -> bool:
        """Whether the collection happens in the step of this number."""
        return step % self.every == 0


@dataclass(frozen=True, slots=True)
class SlowStage:
    """All computation of pipeline rank ``stage`` takes ``factor`` times as long."""

    stage: int
    factor: float

    def truth(self) -> dict[str, Any]:
        """The fault as it stands in the manifest."""
        return {"kind": "slow-stage", "stage": self.stage, "factor": self.factor}


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Every transfer over the link between two ranks takes so much longer."""

    ranks: tuple[int, int]
    ms: float

    def truth(self) -> dict[str, Any]:
        """The fault as it stands in the manifest."""
        return {"kind": "slow-link", "ranks": list(self.ranks), "ms": self.ms}


@dataclass(frozen=True, slots=True)
class HotExpert:
    """Expert ``expert`` gets ``share`` of all token assignments."""

    expert: int
    share: float

    def truth(self) -> dict[str, Any]:
        """The fault as it stands in the manifest."""
        return {"kind": "hot-expert", "expert": self.expert, "share": self.share}


@dataclass(frozen=True, slots=True)
class Dataloader:
    """Rank ``rank`` waits so long for its next batch, in every step."""

    rank: int
    ms: float

    def truth(self) -> dict[str, Any]:
        """The fault as it stands in the manifest."""
        return {"kind": "dataloader", "rank": self.rank, "ms": self.ms}


Fault = SlowRank | Delay | Gc | SlowStage | SlowLink | HotExpert | Dataloader

FORMS = {
    "slow-rank": "slow-rank:RANK:FACTOR",
    "delay": "delay:RANK:MS[:every=N]",
    "gc": "gc:RANK:MS:every=N",
    "slow-stage": "slow-stage:STAGE:FACTOR",
    "slow-link": "slow-link:RANK-RANK:MS",
    "hot-expert": "hot-expert:E:SHARE",
    "dataloader": "dataloader:RANK:MS",
}


def parse(text: str, kinds: tuple[str, ...] = tuple(FORMS)) -> Fault:
    """A fault from its form on the command line.

    Args:
        text: for example "delay:2:40".
        kinds: the kinds that can be planted here.

    Raises:
        UsageError: the kind is not among them or its values make no sense.
    """
    kind, *values = text.split(":")
    known = ", ".join(FORMS[name] for name in kinds)
    if kind not in kinds:
        raise UsageError(f"--fault {text}: {kind!r} is not known; known faults: {known}")
    try:
        return _made(kind, values)
    except ValueError:
        raise UsageError(f"--fault {text}: values do not fit; known faults: {known}") from None


def _made(kind: str, values: list[str]) -> Fault:
    """The fault of this kind; ValueError where the values do not fit."""
    if kind in ("delay", "gc"):
        where, size, *rest = values
        rank, ms, every = _id(where), _positive(size), _every(rest)
        return Delay(rank, ms, every) if kind == "delay" else Gc(rank, ms, every)
    where, size = values
    if kind == "slow-link":
        one, other = (_id(rank) for rank in where.split("-"))
        if one == other:
            raise ValueError(where)
        return SlowLink((min(one, other), max(one, other)), _positive(size))
    if kind == "hot-expert":
        if not 0 < float(size) <= 1:
            raise ValueError(size)
        return HotExpert(_id(where), float(size))
    if kind == "dataloader":
        return Dataloader(_id(where), _positive(size))
    factor = SlowRank if kind == "slow-rank" else SlowStage
    return factor(_id(where), _positive(size))


def _id(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(text)
    return value


def _every(rest: list[str]) -> int:
    if not rest:
        return 1
    (option,) = rest
    key, _, count = option.partition("=")
    if key != "every" or int(count) < 1:
        raise ValueError(option)
    return int(count)
