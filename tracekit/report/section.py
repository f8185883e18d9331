"""A section of a report: one run with the outcomes of its analyses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from tracekit.analysis._contract import Outcome
from tracekit.core.finding import Finding, rank_findings
from tracekit.core.run import Run
from tracekit.core.trace import StepFlag

R = TypeVar("R")

# More names than this in one cell stop being a name and become a list.
NAMED_RANKS = 4
# More sets than this are no help in choosing one.
MOST_SETS = 200


@dataclass(frozen=True, eq=False)
class Section:
    """What one report, or one part of a report over several runs, is made from.

    What pages ask again and again, for every rank, is worked out once.
    """

    run: Run
    outcomes: Sequence[Outcome]

    def outcome(self, name: str) -> Outcome | None:
        """The outcome of the analyzer of this name, if it was asked for."""
        return next((item for item in self.outcomes if item.analyzer.name == name), None)

    def result(self, kind: type[R]) -> R | None:
        """The result of this type, or None when its analysis was unavailable or not asked."""
        return next((item.result for item in self.outcomes if isinstance(item.result, kind)), None)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all analyses, most expensive first."""
        return rank_findings(finding for item in self.outcomes for finding in item.findings)

    @cached_property
    def on_cpu(self) -> bool:
        """Whether no rank recorded device work, so that time off compute is not idleness."""
        traces = self.run.traces
        return bool(traces) and all(trace.device_type == "cpu" for trace in traces)

    @cached_property
    def hosts(self) -> dict[int, str]:
        """Host of each rank that has one recorded."""
        return {trace.rank: trace.host for trace in self.run.traces if trace.host}

    @cached_property
    def rank_order(self) -> tuple[int, ...]:
        """Loaded ranks host by host, hosts by their first rank."""
        hosts = self.hosts
        first: dict[str, int] = {}
        for rank in self.run.ranks:
            first.setdefault(hosts.get(rank, ""), rank)
        return tuple(sorted(self.run.ranks, key=lambda r: (first[hosts.get(r, "")], r)))

    @cached_property
    def step_numbers(self) -> tuple[int, ...]:
        """Step numbers that any rank captured, sorted."""
        numbers = {int(n) for trace in self.run.traces for n in trace.steps.number}
        return tuple(sorted(numbers))

    @cached_property
    def flagged_steps(self) -> dict[int, str]:
        """Step number -> why it is not typical, for steps flagged on any rank."""
        words = {StepFlag.FIRST: "first of the capture", StepFlag.CUT: "cut by the capture"}
        found: dict[int, str] = {}
        for trace in self.run.traces:
            for number, flag in zip(trace.steps.number, trace.steps.flag, strict=True):
                if flag != StepFlag.OK:
                    found.setdefault(int(number), words[StepFlag(int(flag))])
        return dict(sorted(found.items()))

    @cached_property
    def rank_sets(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Sets of ranks a reader may want to see: hosts, pipeline stages, process groups."""
        here = set(self.run.ranks)
        found: dict[str, tuple[int, ...]] = {}
        hosts = self.hosts
        for host in dict.fromkeys(hosts.values()):
            found[host] = tuple(rank for rank, where in hosts.items() if where == host)
        for stage, ranks in self.stages.items():
            found[f"stage {stage}"] = ranks
        for group in self.run.topology.groups:
            if group.axis:
                found[f"{group.axis} group {_span(group.ranks)}"] = group.ranks
        sets = ((name, tuple(r for r in ranks if r in here)) for name, ranks in found.items())
        kept = [(name, ranks) for name, ranks in sets if 0 < len(ranks) < len(here)]
        return tuple(kept[:MOST_SETS])

    @cached_property
    def stages(self) -> dict[int, tuple[int, ...]]:
        """Ranks of each place along the pipeline axis; empty without one."""
        found: dict[int, list[int]] = {}
        for group in self.run.topology.groups:
            if group.axis == "pp":
                for place, rank in enumerate(group.ranks):
                    found.setdefault(place, []).append(rank)
        return {stage: tuple(sorted(set(ranks))) for stage, ranks in sorted(found.items())}

    def rank_name(self, rank: int) -> str:
        """ "rank 5", with its host where the run has more than one."""
        if self._several_hosts and rank in self.hosts:
            return f"rank {rank} on {self.hosts[rank]}"
        return f"rank {rank}"

    @cached_property
    def _several_hosts(self) -> bool:
        return len(set(self.hosts.values())) > 1

    def who(self, ranks: Iterable[int]) -> str:
        """Words for a set of ranks; the empty set stands for all."""
        members = sorted(ranks)
        if not members or (tuple(members) == tuple(sorted(self.run.ranks)) and len(members) > 1):
            return "all ranks"
        if len(members) == 1:
            return self.rank_name(members[0])
        if len(members) <= NAMED_RANKS:
            return "ranks " + ", ".join(map(str, members[:-1])) + f" and {members[-1]}"
        shown = ", ".join(map(str, members[: NAMED_RANKS - 1]))
        return f"ranks {shown} and {len(members) - NAMED_RANKS + 1} more"

    @property
    def headline(self) -> tuple[str, ...]:
        """Short facts that identify the run: devices, hosts, parallelism, steps, ranks."""
        run = self.run
        facts = [_devices(self), _precision(run), _parallel(run)]
        facts.append(plural(len(self.step_numbers), "step"))
        loaded = len(run.traces)
        world = run.topology.world_size
        facts.append(f"{loaded} of {plural(world, 'rank')}" if world else plural(loaded, "rank"))
        return tuple(fact for fact in facts if fact)


def _span(ranks: Sequence[int]) -> str:
    """ "0-3" for ranks in a row, else "0, 4, 8"."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    shown = ", ".join(map(str, ranks[:NAMED_RANKS]))
    return shown if len(ranks) <= NAMED_RANKS else f"{shown}, …"


def plural(count: int, word: str) -> str:
    """ "1 step", "6 steps"."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _condition(run: Run, group: str, field: str) -> Any:
    values = run.conditions.get(group)
    return values.get(field) if isinstance(values, dict) else None


def _devices(section: Section) -> str:
    """ "16 × H100, 2 hosts"; a CPU by its model where that is known."""
    run = section.run
    model = _condition(run, "hardware", "cpu" if section.on_cpu else "device")
    kind = "CPU" if section.on_cpu else str(model or "GPU")
    if section.on_cpu and model:
        kind += f" ({model})"
    count = _condition(run, "hardware", "count")
    if isinstance(count, int) and count > 1 and not section.on_cpu:
        kind = f"{count} × {kind}"
    hosts = len(set(section.hosts.values()))
    return f"{kind}, {plural(hosts, 'host')}" if hosts else kind


def _precision(run: Run) -> str:
    value = run.conditions.get("precision")
    return value if isinstance(value, str) else ""


def _parallel(run: Run) -> str:
    """The mesh, "tp 2 · pp 4" without its trivial axes, and the schedule."""
    axes = [f"{axis} {size}" for axis, size in run.topology.axes.items() if size > 1]
    schedule = _condition(run, "parallel", "schedule")
    if schedule and "pp" in dict(run.topology.axes):
        axes.append(str(schedule))
    microbatches = _condition(run, "batch", "microbatches")
    if isinstance(microbatches, int) and microbatches > 1:
        axes.append(plural(microbatches, "microbatch").replace("batchs", "batches"))
    return ", ".join(axes)
