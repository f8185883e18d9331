"""Options that fit become a plan; the others one line that names what to change."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.core.errors import UsageError
from tracekit.core.fault import Delay
from tracekit.profile import plan
from tracekit.profile.plan import Options
from tracekit.workloads import RoutingKind


@pytest.mark.parametrize("workload", ["tp", "pp", "ep", "dp", "fsdp"])
def test_two_ranks_by_default(workload: str) -> None:
    made = plan.make(Options(workload=workload))
    assert made.degrees == {workload: 2}
    assert made.name == f"{workload}2"


def test_axes_are_ordered_outermost_first() -> None:
    made = plan.make(Options(workload="tp", degrees={"tp": 2, "dp": 2, "pp": 2}, layers=2))
    assert list(made.degrees) == ["pp", "dp", "tp"]
    assert made.world_size == 8


def test_a_degree_of_one_is_no_axis() -> None:
    assert plan.make(Options(workload="tp", degrees={"dp": 1})).degrees == {"tp": 2}


def test_ranks_stand_for_the_open_degree() -> None:
    assert plan.make(Options(workload="tp", ranks=4)).degrees == {"tp": 4}
    assert plan.make(Options(workload="dp", ranks=4, degrees={"tp": 2})).degrees == {
        "dp": 2,
        "tp": 2,
    }
    assert plan.make(Options(workload="pp"), world_size=4).degrees == {"pp": 4}


def test_a_pipeline_gets_a_layer_per_stage_and_two_microbatches() -> None:
    spec = plan.make(Options(workload="pp", degrees={"pp": 4})).spec
    assert (spec.layers, spec.microbatches) == (4, 8)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workload": "xx"}, "workload 'xx' is not known"),
        ({"ranks": 4, "degrees": {"tp": 2}}, "4 ranks are more than the degrees allow (tp 2 = 2)"),
        ({"ranks": 2, "degrees": {"tp": 4}}, "2 ranks are fewer than the degrees allow"),
        ({"ranks": 3, "degrees": {"dp": 2}}, "3 ranks are more than the degrees allow"),
        ({"ranks": 0}, "0 ranks"),
        ({"degrees": {"tp": 0}}, "--tp 0: a degree is at least 1"),
        ({"degrees": {"tp": -2}}, "--tp -2"),
        ({"degrees": {"tp": 2, "ep": 2}}, "--tp with --ep is not supported"),
        ({"heads": 3, "hidden": 96}, "--heads 3 cannot be divided by --tp 2"),
        ({"heads": 3}, "--hidden 256 cannot be divided by --heads 3"),
        ({"vocab": 511}, "--vocab 511 cannot be divided by --tp 2"),
        ({"workload": "pp", "layers": 3}, "--layers 3 cannot be divided by --pp 2"),
        ({"workload": "pp", "microbatches": 3}, "--batch 8 cannot be divided by --microbatches 3"),
        ({"workload": "pp", "microbatches": 1}, "schedule 1f1b needs at least one per stage"),
        ({"workload": "pp", "microbatches": 0}, "--microbatches 0"),
        ({"workload": "pp", "schedule": "zb"}, "choose from gpipe, 1f1b, interleaved_1f1b"),
        ({"workload": "pp", "chunks": 2}, "schedule 1f1b has one stage per rank"),
        ({"workload": "pp", "schedule": "zbv", "chunks": 3}, "zbv has two stages per rank"),
        (
            {"workload": "pp", "schedule": "interleaved_1f1b", "layers": 6},
            "--layers 6 cannot be divided by --pp 2 x --chunks 2",
        ),
        (
            {"workload": "pp", "schedule": "dualpipev", "microbatches": 2},
            "schedule dualpipev needs at least one per stage (--pp 2 with 2 chunks: 4)",
        ),
        (
            {"workload": "pp", "schedule": "zero_bubble", "microbatches": 5, "batch": 5},
            "runs them in 2 equal rounds; use 4 or a multiple of --pp 2",
        ),
        ({"workload": "fsdp", "degrees": {"ep": 2}}, "--fsdp with --ep is not supported"),
        ({"mode": "serve"}, "--mode 'serve' is not known; choose from train, prefill, decode"),
        ({"mode": "decode", "sequence_parallel": True}, "one token per sequence"),
        ({"mode": "prefill", "loss_parallel": True}, "has no loss"),
        ({"mode": "prefill", "concurrency": 9}, "--concurrency 9 cannot be divided by --batch 8"),
        ({"workload": "dp", "sequence_parallel": True}, "--sequence-parallel needs tensor"),
        ({"workload": "dp", "loss_parallel": True}, "--loss-parallel needs tensor parallelism"),
        ({"sequence_parallel": True, "seq": 63}, "--seq 63 cannot be divided by --tp 2"),
        ({"compute": "sleep"}, "--compute sleep is for pipelines"),
        ({"compute": "nap"}, "--compute 'nap' is not known; choose from real, sleep"),
        ({"preset": "huge"}, "--preset 'huge' is not known; choose from tiny"),
        ({"layer_ms": 0.0}, "--layer-ms 0: must be"),
        ({"backend": "mpi"}, "--backend 'mpi' is not known"),
        ({"faults": ("slow-rank:0:1",)}, "a factor of 1 does not slow down"),
        ({"faults": ("slow-stage:0:2",)}, "stage 0 does not exist; the job has 0 pipeline ranks"),
        ({"workload": "pp", "faults": ("slow-stage:2:2",)}, "stage 2 does not exist"),
        ({"faults": ("slow-link:0-1:5",)}, "no transfer runs between these two ranks alone"),
        ({"faults": ("gc:5:20:every=2",)}, "--fault gc: rank 5 does not exist"),
        ({"faults": ("dataloader:0:70000",)}, "--fault dataloader: 70000 ms is longer"),
        ({"workload": "ep", "experts": 3}, "--experts 3 cannot be divided by --ep 2"),
        ({"workload": "ep", "top_k": 9}, "--top-k 9 is more than --experts 8"),
        ({"workload": "ep", "routing": "hot:8"}, "hot expert 8: --experts is only 8"),
        ({"workload": "ep", "routing": "hot:x"}, "--routing 'hot:x' is not known"),
        ({"workload": "ep", "routing": "zipf"}, "--routing 'zipf' is not known"),
        ({"workload": "ep", "routing": "zipf:nan"}, "--routing 'zipf:nan' is not known"),
        ({"workload": "ep", "faults": ("hot-expert:1:0.6",)}, "use --top-k 1"),
        ({"faults": ("hot-expert:1:0.5",)}, "this workload has no experts"),
        ({"faults": ("delay:2:40",)}, "rank 2 does not exist; the job has ranks 0 to 1"),
        ({"faults": ("delay:1:90000",)}, "longer than ranks wait"),
        ({"steps": 0}, "--steps 0: must be at least 1"),
        ({"warmup": 0}, "--warmup 0: must be at least 1"),
        ({"batch": -1}, "--batch -1"),
        ({"timeout_s": 0.0}, "--timeout 0: must be"),
        ({"timeout_s": float("nan")}, "--timeout nan: must be"),
        ({"seed": -1}, "--seed -1"),
        ({"dtype": "int8"}, "--dtype 'int8' is not known; choose from float32, bfloat16"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan.make(Options(**{"workload": "tp", **options}))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_launcher_decides_the_number_of_ranks() -> None:
    with pytest.raises(UsageError, match="--ranks 2, but the launcher started 4"):
        plan.make(Options(workload="tp", ranks=2), world_size=4)
    with pytest.raises(UsageError, match="4 ranks are more than the degrees allow"):
        plan.make(Options(workload="tp", degrees={"tp": 2}), world_size=4)


def test_routing() -> None:
    spec = plan.make(Options(workload="ep", routing="zipf:1.5")).spec
    assert (spec.routing.kind, spec.routing.exponent) == (RoutingKind.ZIPF, 1.5)
    spec = plan.make(Options(workload="ep", routing="hot:2", top_k=4)).spec
    assert (spec.routing.expert, spec.routing.share) == (2, 0.25)


def test_truth_names_all_ranks_that_hold_the_hot_expert() -> None:
    made = plan.make(
        Options(
            workload="ep",
            degrees={"pp": 2, "dp": 2, "ep": 4},
            faults=("hot-expert:6:0.5", "delay:1:40:every=2"),
        )
    )
    assert plan.truth(made) == [
        {"kind": "hot-expert", "expert": 6, "share": 0.5, "ranks": [3, 7, 11, 15]},
        {"kind": "delay", "rank": 1, "ms": 40.0, "every": 2},
    ]
    assert made.faults[1] == Delay(1, 40.0, 2)


def test_a_preset_gives_what_is_not_asked_for() -> None:
    spec = plan.make(Options(workload="tp", preset="gpt2", hidden=384)).spec
    assert (spec.layers, spec.hidden, spec.heads, spec.vocab) == (12, 384, 12, 50304)
    assert plan.make(Options(workload="tp")).spec.hidden == 256


@pytest.mark.parametrize(
    ("schedule", "chunks", "layers", "microbatches"),
    [("gpipe", 1, 2, 4), ("interleaved_1f1b", 2, 4, 8), ("zbv", 2, 4, 8), ("dualpipev", 2, 4, 8)],
)
def test_what_a_schedule_gets(schedule: str, chunks: int, layers: int, microbatches: int) -> None:
    spec = plan.make(Options(workload="pp", schedule=schedule)).spec
    assert (spec.chunks, spec.layers, spec.microbatches) == (chunks, layers, microbatches)


def test_sequences_in_flight() -> None:
    spec = plan.make(Options(workload="tp", mode="decode", batch=4, concurrency=12)).spec
    assert (spec.concurrency, spec.context) == (12, 64)
    spec = plan.make(Options(workload="pp", mode="decode", batch=4, concurrency=12)).spec
    assert (spec.concurrency, spec.microbatches) == (12, 3)
    spec = plan.make(Options(workload="pp", mode="prefill", batch=4)).spec
    assert (spec.concurrency, spec.microbatches, spec.context) == (16, 4, 0)


def test_neighbours_of_a_pipeline() -> None:
    linear = {"workload": "pp", "degrees": {"pp": 4, "tp": 2}, "layers": 8}
    plan.make(Options(**linear, faults=("slow-link:1-3:5",)))
    for pair in ("0-1", "0-3", "0-4", "0-6"):
        with pytest.raises(UsageError, match="no transfer runs between"):
            plan.make(Options(**linear, faults=(f"slow-link:{pair}:5",)))
    plan.make(Options(**linear, schedule="interleaved_1f1b", faults=("slow-link:0-6:5",)))


def test_one_rank_may_stand_alone() -> None:
    assert plan.make(Options(workload="pp", degrees={"pp": 1})).degrees == {"pp": 1}
