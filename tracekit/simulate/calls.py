"""The arguments that a communication call leaves in a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.core.topology import Group
from tracekit.simulate.job import WORLD, Job
from tracekit.simulate.program import Do, Op
from tracekit.simulate.spec import Spec

LONGEST_LIST = 30  # Kineto cuts longer ones

_RECORDED = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "send": "send",
    "recv": "recv",
}
_NCCL = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
_OWN = {
    "custom": "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(RankData*, int)",
    "symmetric": "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
}
DTYPES = {2: "BFloat16", 4: "Float", 8: "Long"}


def kernel_name(spec: Spec, op: Op) -> str:
    """The name of the kernel of a call."""
    if op.axis == "tp" and op.name == "all_reduce" and spec.tp_kernels in _OWN:
        return _OWN[spec.tp_kernels]
    return _NCCL[op.name]


def has_arguments(spec: Spec, op: Op) -> bool:
    """Whether anything in the trace says what this call is."""
    own = op.axis == "tp" and op.name == "all_reduce" and spec.tp_kernels in _OWN
    replayed = spec.graph and op.do is Do.COLLECTIVE and op.work in ("F", "B", "I", "W")
    return spec.comm_args != "none" and not own and not replayed


def axis_of(op: Op) -> str:
    """The axis of the group of a call, or WORLD."""
    return op.axis if op.do is Do.COLLECTIVE else "pp"


@dataclass(frozen=True, slots=True)
class Numbering:
    """The sequence number of each call of a program, and whether it uses its group's second name.

    Equal on all ranks of a program, so on all members of a group inside it.
    """

    seq: tuple[int, ...]
    alias: tuple[bool, ...]


def numbering(spec: Spec, ops: tuple[Op, ...]) -> Numbering:
    """Count the calls of all steps; -1 and False for what is no call."""
    counts: Counter[str] = Counter()
    seq, alias = [], []
    for _ in range(spec.steps):
        for op in ops:
            if op.do not in (Do.COLLECTIVE, Do.SEND, Do.RECV):
                seq.append(-1)
                alias.append(False)
                continue
            # A send or receive counts on its own rank only; a collective alike on all.
            stream = axis_of(op) if op.do is Do.COLLECTIVE else "p2p"
            counts[f"turn {stream}"] += 1
            second = spec.alias and op.axis == "tp" and counts[f"turn {stream}"] % 2 == 0
            name = stream + (" alias" if second else "")
            counts[name] += 1
            seq.append(counts[name])
            alias.append(second)
    return Numbering(tuple(seq), tuple(alias))


def list_text(numbers: Sequence[int]) -> str:
    """A list as Kineto writes it: cut when it is long."""
    if len(numbers) > LONGEST_LIST:
        shown = ", ".join(map(str, numbers[: LONGEST_LIST - 1]))
        return f"[{shown}, ..., {numbers[-1]}]"
    return "[" + ", ".join(map(str, numbers)) + "]"


def elements(job: Job, op: Op) -> tuple[int, int]:
    """Elements that go in and come out."""
    if op.name == "all_gather":
        return op.size, op.size * job.spec.degree(op.axis)
    if op.name == "reduce_scatter":
        return op.size, op.size // job.spec.degree(op.axis)
    return op.size, op.size


def arguments(job: Job, op: Op, row: int, seq: int) -> str:
    """The arguments of a call as JSON members; what differs between ranks is left to fill in.

    That is its group, its peer, and of a routed exchange the sizes, whose tokens hold the row.
    """
    spec = job.spec
    into, out = elements(job, op)
    members = spec.world_size if axis_of(op) == WORLD else spec.degree(axis_of(op))
    parts = [f'"Collective name": "{_RECORDED[op.name]}"']
    if op.routed:
        parts.append(f'"In msg nelems": @in {row}@, "Out msg nelems": @out {row}@')
    else:
        parts.append(f'"In msg nelems": {into}, "Out msg nelems": {out}')
    parts.append(f'"Group size": {members}, "dtype": "{DTYPES[op.width]}"')
    if op.routed:
        splits = f'"@in split {row}@", "Out split size": "@out split {row}@"'
    else:
        splits = '"[]", "Out split size": "[]"'
    parts.append(f'"In split size": {splits}')
    parts.append(f"@{axis_of(op)}@")
    if op.do is Do.SEND:
        parts.append(f'"Dst Rank": @peer{op.peer}@')
    elif op.do is Do.RECV:
        parts.append(f'"Src Rank": @peer{op.peer}@')
    if spec.seq_numbers:
        parts.append(f'"Seq": {seq}')
    return ", ".join(parts)


def group_arguments(group: Group) -> str:
    """What a call says of its group."""
    return (
        f'"Process Group Name": "{group.name}", '
        f'"Process Group Description": "{group.description}", '
        f'"Process Group Ranks": "{list_text(group.ranks)}"'
    )
