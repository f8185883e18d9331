"""The events of a job on CPUs with gloo, and the records a runner keeps beside them."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.core.trace import Int64
from tracekit.io.records import CollectiveRecord, ExpertRecord, P2pRecord, Records
from tracekit.simulate import calls
from tracekit.simulate.clock import BASE_NS
from tracekit.simulate.engine import Lane
from tracekit.simulate.events import (
    END,
    LAUNCH,
    LAUNCHED,
    START,
    Pattern,
    PatternWriter,
    event,
)
from tracekit.simulate.gpu import HOST, PAUSES, marker
from tracekit.simulate.job import Job
from tracekit.simulate.model import CLASSES
from tracekit.simulate.program import Do, Op

_OPERATORS = {
    "all_reduce": "c10d::allreduce_",
    "all_to_all": "c10d::alltoall_base_",
    "send": "c10d::send",
    "recv": "c10d::recv_",
}
_WIDTHS = {2: "c10::BFloat16", 4: "float", 8: "long int"}


def pattern(job: Job, lane: Lane) -> Pattern:
    """All events of a pipeline rank's ranks."""
    out = PatternWriter()
    workers = {name: place for place, name in enumerate(sorted({op.axis for op in lane.ops}))}
    for row in range(len(lane.launch)):
        _operation(job, out, lane, row, workers)
    return out.pattern()


def _operation(job: Job, out: PatternWriter, lane: Lane, row: int, workers: dict[str, int]) -> None:
    step, place = divmod(row, len(lane.ops))
    op = lane.ops[place]
    own = f'"External id": {row + 1}'
    match op.do:
        case Do.COMPUTE:
            dims = f'"Input Dims": [[{job.spec.seq}, {job.spec.hidden}]], "Input type": ["float"]'
            text = event("cpu_op", CLASSES[op.name].operator, HOST, f"{own}, {dims}")
            out.add(text, row, START, END)
        case Do.COLLECTIVE | Do.SEND | Do.RECV if op.name not in job.spec.untraced:
            _call(out, row, op, workers)
        case Do.PAUSE if op.name in PAUSES and (lane.costs.host_ns[row] > 0).any():
            text = event("user_annotation", PAUSES[op.name], HOST, own)
            out.add_optional(text, row, LAUNCH, LAUNCHED)
        case Do.CLOSE:
            name = marker(job, op)
            if op.name == "step" and job.spec.markers:
                name = f"ProfilerStep#{step}"
            if name is not None:
                text = event("user_annotation", name, HOST, own)
                out.add(text, row - op.back, LAUNCH, LAUNCHED, until=row)
        case _:
            pass


def _call(out: PatternWriter, row: int, op: Op, workers: dict[str, int]) -> None:
    """The caller's operator, and the transfer on the backend's thread."""
    own = f'"External id": {row + 1}'
    size = f"@in {row}@" if op.routed else str(op.size)
    inputs = _exchange(row, op, size) if op.name == "all_to_all" else _tensors(size)
    out.add(event("cpu_op", _OPERATORS[op.name], HOST, f"{own}, {inputs}"), row, LAUNCH, LAUNCHED)
    # A transfer between two ranks shows on the caller's thread, from posting to its wait.
    worker = f'"pid": @pid@, "tid": @worker{workers[op.axis]}@'
    where = worker if op.do is Do.COLLECTIVE else HOST
    dims = f'"Input Dims": [[{size}]], "Input type": ["{_WIDTHS[op.width]}"]'
    begin = START if op.do is Do.COLLECTIVE else LAUNCHED
    out.add(event("user_annotation", f"gloo:{op.name}", where, f"{own}, {dims}"), row, begin, END)


def _tensors(size: str) -> str:
    """The inputs of an operator that takes lists of tensors."""
    return f'"Input Dims": [[[{size}]], [], []], "Input type": ["TensorList", "", ""]'


def _exchange(row: int, op: Op, size: str) -> str:
    """The inputs of an exchange: output, input, group, splits of both; empty where even."""
    got, split, parted = size, "[]", "[]"
    if op.routed:
        got, split, parted = f"@out {row}@", f"@in split {row}@", f"@out split {row}@"
    return (
        f'"Input Dims": [[{got}], [{size}], [], [], [], [], []], '
        '"Input type": ["float", "float", "", "ScalarList", "ScalarList", "Scalar", "Scalar"], '
        f'"Concrete Inputs": ["", "", "", "{parted}", "{split}", "True", "-1"]'
    )


def records(
    job: Job,
    lane: Lane,
    rank: int,
    shown: Int64,
    sizes: Mapping[int, int],
    tokens: Mapping[int, list[int]],
) -> Records:
    """What the runner keeps of one rank.

    Args:
        job: the job.
        lane: the rank's pipeline rank.
        rank: its number.
        shown: (rows, COLUMNS) times of each operation by the rank's clock.
        sizes: elements of each routed exchange, by row.
        tokens: of each expert of the rank, for each forward of experts, by row.
    """
    number = calls.numbering(job.spec, lane.ops)
    groups = job.named(rank)
    collectives, transfers, experts = [], [], []
    first = job.coordinate(rank, "ep") * (job.spec.experts // job.spec.ep)
    for row, (launch, end) in enumerate((shown[:, [LAUNCH, END]] + BASE_NS).tolist()):
        op = lane.ops[row % len(lane.ops)]
        if row in tokens:
            experts.append(ExpertRecord(op.layer, first, end, tokens[row]))
        if op.name in job.spec.untraced:
            continue
        if op.do in (Do.SEND, Do.RECV):
            peer = rank + (op.peer - job.coordinate(rank, "pp")) * job.width
            size = op.size * op.width
            transfers.append(P2pRecord(op.name, groups["pp"].name, peer, size, launch, launch, end))
        elif op.do is Do.COLLECTIVE:
            axis = op.axis + (" alias" if number.alias[row] else "")
            shape, dtype = [[sizes.get(row, op.size)]], [calls.DTYPES[op.width]]
            name = groups[axis].name
            collectives.append(
                CollectiveRecord(name, number.seq[row], op.name, launch, shape, shape, dtype, dtype)
            )
    return Records(rank=rank, collectives=collectives, p2p=transfers, experts=experts)
