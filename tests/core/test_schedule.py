"""Schedules: equal to torch's own tables, complete, and free of deadlock."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from tracekit.core import schedule as schedules
from tracekit.core.errors import UsageError
from tracekit.core.schedule import Action, Kind, Pipeline

SHAPES = [
    (name, ranks, microbatches, chunks)
    for ranks in (2, 3, 4, 8)
    for microbatches in (ranks, 2 * ranks, 4 * ranks)
    for name, chunks in (
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved_1f1b", 2),
        ("interleaved_1f1b", 3),
        ("zero_bubble", 1),
        ("zero_bubble", 2),
        ("zbv", 2),
        ("dualpipev", 2),
    )
    if name != "dualpipev" or microbatches >= 2 * ranks
]


@pytest.fixture(params=SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def plan(request: pytest.FixtureRequest) -> Pipeline:
    name, ranks, microbatches, chunks = request.param
    return schedules.pipeline(name, ranks, microbatches, chunks)


def test_one_forward_one_backward_by_hand() -> None:
    table = schedules.pipeline("1f1b", 2, 3).table
    assert " ".join(map(str, table[0])) == "0F0 0F1 0B0 0F2 0B1 0B2"
    assert " ".join(map(str, table[1])) == "1F0 1B0 1F1 1B1 1F2 1B2"


def test_stages_go_round_or_there_and_back() -> None:
    assert schedules.Placement(3, 2).stages_of(1) == (1, 4)
    assert schedules.Placement(3, 2, vee=True).stages_of(1) == (1, 4)
    assert schedules.Placement(3, 2, vee=True).stages_of(0) == (0, 5)


def test_every_stage_works_once_on_every_microbatch(plan: Pipeline) -> None:
    done = Counter((a.kind, a.stage, a.microbatch) for row in plan.table for a in row)
    assert set(done.values()) == {1}
    for stage in range(plan.placement.stages):
        for microbatch in range(plan.microbatches):
            assert (Kind.FORWARD, stage, microbatch) in done
            whole = (Kind.BACKWARD, stage, microbatch) in done
            split = {(kind, stage, microbatch) in done for kind in (Kind.INPUT, Kind.WEIGHT)}
            assert split == {not whole}


def test_both_ends_of_a_link_post_in_the_same_order(plan: Pipeline) -> None:
    place = plan.placement
    sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
    received: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, row in enumerate(schedules.with_transfers(plan)):
        for action in row:
            step = 1 if action.kind in (Kind.SEND_F, Kind.RECV_B) else -1
            other = place.rank_of(action.stage + step) if "_" in action.kind.value else rank
            if action.kind in (Kind.SEND_F, Kind.SEND_B):
                to = (action.stage + step, action.microbatch)
                sent.setdefault((rank, other), []).append(to)
            elif action.kind in (Kind.RECV_F, Kind.RECV_B):
                to = (action.stage, action.microbatch)
                received.setdefault((other, rank), []).append(to)
    assert sent == received


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("1f1b", 4, 2), "fewer than 4 stages"),
        (("zbv", 2, 4, 1), "needs 2"),
        (("interleaved_1f1b", 2, 5), "rounds"),
        (("dualpipev", 4, 7), "fewer than 8 stages"),
        (("2f2b", 4, 8), "choose from"),
    ],
)
def test_what_does_not_fit_is_named(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        schedules.pipeline(*arguments)


# -- against torch ---------------------------------------------------------------------


class _Stage:
    """As much of a torch stage as a schedule looks at."""

    has_backward = True
    _runtime_fns = None

    def __init__(self, place: schedules.Placement, rank: int, index: int) -> None:
        self.stage_index, self.num_stages = index, place.stages
        self.group_rank, self.group_size = rank, place.ranks
        self.is_first, self.is_last = index == 0, index == place.stages - 1
        self.stage_index_to_group_rank = {s: place.rank_of(s) for s in range(place.stages)}
        self.device, self.group, self.submod = "cpu", None, None
        self.dw_builder = None


_TORCH = {
    "interleaved_1f1b": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


def _flat(actions: list[Any]) -> list[str]:
    """torch's compute actions as text, pairs in order, waiting slots left out."""
    out = []
    for action in actions:
        for part in action.sub_actions or (action,) if action is not None else ():
            if part.computation_type.value in ("F", "B", "I", "W"):
                kind = part.computation_type.value
                out.append(f"{part.stage_index}{kind}{part.microbatch_index}")
    return out


def _torch_schedule(plan: Pipeline) -> Any:
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    place = plan.placement
    stages = [_Stage(place, 0, index) for index in place.stages_of(0)]
    kind = torch_schedules.get_schedule_class(_TORCH[plan.schedule])
    return kind(stages, plan.microbatches)


# torch's tables of GPipe and 1F1B are for printing only, and 1F1B's misses an action.
with_torch = pytest.mark.parametrize(
    "plan",
    [shape for shape in SHAPES if shape[0] in _TORCH],
    ids=lambda shape: "-".join(map(str, shape)),
    indirect=True,
)


@with_torch
def test_compute_order_equals_torch(plan: Pipeline) -> None:
    theirs = _torch_schedule(plan).pipeline_order
    ours = {rank: [str(a) for a in row] for rank, row in enumerate(plan.table)}
    assert ours == {rank: _flat(actions) for rank, actions in theirs.items()}


@with_torch
def test_transfers_equal_torch(plan: Pipeline) -> None:
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    order = _torch_schedule(plan).pipeline_order
    compute = {rank: [a for a in row if a is not None] for rank, row in order.items()}
    place = plan.placement
    theirs = torch_schedules._add_send_recv(compute, place.rank_of, place.stages)
    for rank, row in enumerate(schedules.with_transfers(plan)):
        assert [str(a) for a in row] == [
            f"{part.stage_index}{part.computation_type.value}{part.microbatch_index}"
            for action in theirs[rank]
            for part in action.sub_actions or (action,)
        ]


def test_a_pair_is_a_forward_with_the_backward_after_it() -> None:
    plan = schedules.pipeline("dualpipev", 2, 8)
    for row in plan.table:
        for one, other in itertools.pairwise(row):
            if one.paired:
                assert (one.kind, other.kind) == (Kind.FORWARD, Kind.BACKWARD)
    assert Action(Kind.FORWARD, 0, 3, paired=True) in plan.table[0]
