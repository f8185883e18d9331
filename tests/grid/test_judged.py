"""The judged grid: simulated jobs with planted faults, and their clean twins.

A case passes when the right ranks and kind are named wherever the planted loss is at least
2 % of the step, the slowdown is within 2 % of the truth, the clocks are within their
uncertainty, and nobody is named on a clean twin. A link that no other group uses cannot be
told from its group's ordinary speed: there nobody may be named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tracekit import simulate
from tracekit.analysis.stragglers import StragglersResult, analyze
from tracekit.core.errors import MissingDataError
from tracekit.core.run import Run

SHAPES: dict[str, dict[str, int]] = {
    "tp2": {"tp": 2},
    "dp3": {"dp": 3},
    "pp2": {"pp": 2},
    "ep4": {"ep": 4},
    "dp8": {"dp": 8},
    "pp4": {"pp": 4},
    "tp2 dp2": {"tp": 2, "dp": 2},
    "tp2 pp2": {"tp": 2, "pp": 2},
    "ep2 dp2": {"ep": 2, "dp": 2},
    "tp2 pp2 dp2": {"tp": 2, "pp": 2, "dp": 2},
    "tp2 ep2 dp4": {"tp": 2, "ep": 2, "dp": 4},
    "tp4 pp4": {"tp": 4, "pp": 4},
    "tp4 pp4 dp4": {"tp": 4, "pp": 4, "dp": 4},
}
QUICK = ("tp2", "dp3", "pp2", "ep4", "tp2 dp2", "tp2 pp2 dp2")
# offset in ms, sequence numbers, share of a step that windows miss at either end
VIEWS = ((0.0, True, 0.0), (2.0, False, 0.0), (50.0, True, 0.7), (50.0, False, 0.7))
# Links whose group has no sibling, or that are one of several inside their group.
UNTOLD = {"dp3", "ep4", "dp8", "tp4 pp4", "tp4 pp4 dp4"}


@dataclass(frozen=True)
class Case:
    shape: str
    fault: str
    view: tuple[float, bool, float]

    def spec(self, *, clean: bool = False) -> simulate.Spec:
        offset, numbers, cut = self.view
        return simulate.made(
            {
                "steps": 7,
                "offset_ms": offset,
                "seq_numbers": numbers,
                "cut_steps": cut,
                "noise_ratio": (0.01, 0.02, 0.03)[len(self.fault) % 3],
                "seed": len(self.shape) + 10 * len(self.fault),
                "faults": () if clean else tuple(self.fault.split()),
                **SHAPES[self.shape],
            }
        )

    def __str__(self) -> str:
        offset, numbers, cut = self.view
        seen = f"{offset:g}ms {'seq' if numbers else 'noseq'} {'cut' if cut else 'full'}"
        return f"{self.shape}: {self.fault or 'none'}: {seen}"


def faults(shape: str) -> list[str]:
    """Every kind of fault that this shape can have, on a rank in its middle."""
    degrees = SHAPES[shape]
    size = 1
    for degree in degrees.values():
        size *= degree
    rank = min(size - 1, 1 if size < 4 else size // 2 + 1)
    found = ["", *(f"slow-rank:{rank}:{factor}" for factor in (1.1, 1.25, 1.5))]
    found += [f"delay:{rank}:2", f"gc:{rank}:4:every=2", f"dataloader:{rank}:2"]
    if degrees.get("pp", 1) > 1:
        found.append(f"slow-stage:{degrees['pp'] - 1}:1.25")
    if degrees.get("ep", 1) > 1:
        found.append("hot-expert:1:0.4")
    if size > 2:
        found += ["slow-link:0-1:0.5", f"slow-rank:0:1.3 slow-rank:{rank}:1.3"]
    return found


def cases() -> list[Any]:
    made = []
    for shape in SHAPES:
        for fault in faults(shape):
            for view in VIEWS:
                case = Case(shape, fault, view)
                quick = shape in QUICK and view in VIEWS[1::2] and "1.1" not in fault
                if shape == "tp4 pp4 dp4" and view != VIEWS[3]:
                    continue  # a minute each
                marks = () if quick else (pytest.mark.slow,)
                made.append(pytest.param(case, id=str(case), marks=marks))
    return made


@pytest.mark.parametrize("case", cases())
def test_the_planted_fault_is_named_and_costed(case: Case) -> None:
    spec = case.spec()
    truth, run = simulate.truth(spec), simulate.load(spec)
    check_clocks(run, truth)
    result = analyze(run)
    slowdown = truth["loss"]["slowdown"]
    if case.fault.startswith("slow-link") and case.shape in UNTOLD:
        assert result.culprit_kind == "none" or result.status == "partial"
        return
    if not case.fault or 1 - 1 / slowdown < 0.02:
        named = tuple(truth["culprit"]["ranks"])
        assert result.culprit_ranks in ((), named)
        assert case.fault or result.culprit_kind == "none"
        assert result.slowdown == pytest.approx(slowdown, rel=0.02)
        return
    assert named_rightly(result, truth)
    assert result.slowdown == pytest.approx(slowdown, rel=0.02)


def named_rightly(result: StragglersResult, truth: dict[str, Any]) -> bool:
    culprit = truth["culprit"]
    kinds = {culprit["kind"], *(item["kind"] for item in culprit["sets"])}
    if kinds == {"ranks"}:  # members of no one set
        kinds = {"rank"}
    return sorted(result.culprit_ranks) == culprit["ranks"] and result.culprit_kind in kinds


def check_clocks(run: Run, truth: dict[str, Any]) -> None:
    """Offsets within three times their uncertainty, and 5 µs where all ranks are connected."""
    true = {item["rank"]: item["offset_ns"] for item in truth["clock"]}
    first = run.clock[0]
    assert {item.component for item in run.clock} == {0}
    for item in run.clock:
        error = item.offset_ns - first.offset_ns - (true[item.rank] - true[first.rank])
        assert abs(error) <= max(3 * item.uncertainty_ns, 1)
        assert abs(error) <= 5_000


BASE = {"tp": 2, "pp": 2, "dp": 2, "steps": 6, "offset_ms": 2.0}


@pytest.mark.parametrize(
    "odd",
    [
        {"comm_args": "operator"},
        {"alias": True},
        {"groups": "undefined", "manifest": False},
        {"groups": "undefined", "manifest": False, "pg_config": False},
        {"tp_kernels": "custom"},
        {"tp_kernels": "symmetric"},
        {"drift_ppm": 30.0},
        {"schedule": "interleaved_1f1b"},
        {"schedule": "zbv"},
        {"norm": True},
        {"fused": True},
        {"tail_ratio": 0.01},
        {"coalesced": True},
    ],
    ids=str,
)
def test_odd_traces_name_the_same_rank(odd: dict[str, Any]) -> None:
    spec = simulate.made({**BASE, **odd, "faults": ("slow-rank:5:1.3",)})
    result = analyze(simulate.load(spec))
    assert (result.culprit_kind, result.culprit_ranks) == ("rank", (5,))
    assert result.slowdown == pytest.approx(simulate.truth(spec)["loss"]["slowdown"], rel=0.02)
    clean = analyze(simulate.load(simulate.made({**BASE, **odd})))
    assert clean.culprit_kind == "none"


@pytest.mark.parametrize(
    "thin",
    [
        {"comm_args": "none"},
        {"comm_args": "none", "coalesced": True},
        {"comm_args": "none", "seq_numbers": False},
        {"graph": True},
        {"markers": False, "seq_numbers": False, "cut_steps": 0.6},
        {"missing": (1,)},
        {"missing": (5,)},
        {"missing": (0, 1, 2, 3, 4, 6, 7)},
    ],
    ids=str,
)
def test_thin_traces_never_name_the_wrong_rank(thin: dict[str, Any]) -> None:
    for fault, right in (((), ()), (("slow-rank:5:1.3",), (5,))):
        run = simulate.load(simulate.made({**BASE, **thin, "faults": fault}))
        try:
            result = analyze(run)
        except MissingDataError as error:
            refusal = str(error)
        else:
            refusal = ""
        if refusal:
            assert len(refusal) > 20
            continue
        assert result.culprit_ranks in ((), right)
        assert result.status != "ok"
        assert result.status_reason


# Of pipelines of four or more, kernels at both ends carry transfers of other pairs as well.
COALESCED = ({"pp": 4}, {"pp": 4, "schedule": "interleaved_1f1b"}, {"pp": 2, "tp": 2, "dp": 2})


@pytest.mark.parametrize(
    "view", [{"offset_ms": 2.0}, {"offset_ms": 50.0, "cut_steps": 0.7}], ids=str
)
@pytest.mark.parametrize("shape", COALESCED, ids=str)
def test_coalesced_pipelines_are_connected_and_costed(
    shape: dict[str, Any], view: dict[str, Any]
) -> None:
    base = {**shape, **view, "steps": 7, "coalesced": True, "seq_numbers": False}
    for fault, culprit in (
        ("", ("none", ())),
        ("slow-rank:1:1.3", ("rank", (1,))),
        ("slow-link:0-1:0.5", ("link", (0, 1))),
    ):
        spec = simulate.made({**base, "faults": (fault,) if fault else ()})
        truth, run = simulate.truth(spec), simulate.load(spec)
        assert any((trace.calls.carried() > 1).any() for trace in run.traces)
        check_clocks(run, truth)
        result = analyze(run)
        assert (result.culprit_kind, result.culprit_ranks) == culprit
        assert result.slowdown == pytest.approx(truth["loss"]["slowdown"], rel=0.02)


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
@pytest.mark.parametrize("culprit", [1, 2])
def test_a_neighbour_whose_transfers_share_kernels_is_not_to_blame(
    schedule: str, culprit: int
) -> None:
    # When one of a kernel's transfers was over is not known, so waits for it look like gaps of
    # the host; but the host had launched what came next.
    shape = {"pp": 4, "layers": 8, "chunks": 2, "microbatches": 8, "schedule": schedule}
    noise = {"steps": 5, "noise_ratio": 0.02, "coalesced": True}
    spec = simulate.made({**shape, **noise, "faults": (f"slow-rank:{culprit}:1.25",)})
    result = analyze(simulate.load(spec))
    assert (result.culprit_ranks, result.cause) == ((culprit,), "compute")


def test_lists_of_more_than_thirty_ranks_are_no_obstacle() -> None:
    for known in (True, False):
        fields = {"dp": 40, "steps": 5, "manifest": False, "pg_config": known}
        result = analyze(simulate.load(simulate.made({**fields, "faults": ("slow-rank:33:1.3",)})))
        assert result.culprit_ranks == (33,)


def test_a_delay_in_a_backward_that_ddp_equalises_is_named() -> None:
    # Every rank's backward looks 200 ms longer, as all of them wait for the same gradients.
    spec = simulate.made({"dp": 4, "steps": 5, "faults": ("gc:2:200:every=1",)})
    result = analyze(simulate.load(spec))
    assert result.culprit_ranks == (2,)
    assert result.slowdown == pytest.approx(simulate.truth(spec)["loss"]["slowdown"], rel=0.02)
