"""What names mean: every table and regular expression about kernels and operators.

Sources: the name lists of NCCL, RCCL, oneCCL, vLLM, SGLang, PyTorch symmetric
memory, FlashInfer, Transformer Engine, NVSHMEM and DeepEP, as seen in traces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from tracekit.core.topology import AXES

# Device work in current and 2021 spelling; cuda_sync and cuda_event rows are not work.
KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
MEMORY_CATEGORIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
LAUNCH_CATEGORIES = frozenset(
    {"cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime", "Runtime"}
)
OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator"})
ANNOTATION_CATEGORIES = frozenset({"user_annotation"})
# Device rows of accelerators whose events are not understood yet.
FOREIGN_DEVICE_CATEGORIES = frozenset({"mtia_ccp_events", "hpu_op", "mtia_runtime"})

COMMUNICATION_PATTERNS = (
    r"\bnccl",
    r"\brccl",
    r"\bmsccl",
    r"\boneccl",
    r"cross_device_reduce",
    r"multimem_all_reduce",
    r"multimem_one_shot_all_reduce",
    r"one_shot_all_reduce",
    r"two_shot_all_reduce",
    r"allreduce_fusion",
    r"userbuffers",
    r"nvshmem",
    r"deep_ep",
    r"(?:internode|intranode)::\w*(?:dispatch|combine)",
)

# Kernel or annotation name -> collective. The first match counts.
_COLLECTIVES = (
    (r"all_?reduce|cross_device_reduce", "all_reduce"),
    (r"all_?gather", "all_gather"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?to_?all", "all_to_all"),
    (r"broadcast", "broadcast"),
    (r"barrier", "barrier"),
    (r"send_?recv|coalesced", "send_recv"),
    (r"send", "send"),
    (r"recv", "recv"),
    (r"scatter", "scatter"),
    (r"gather", "gather"),
    (r"dispatch", "dispatch"),
    (r"combine", "combine"),
    (r"reduce", "reduce"),
)
_COLLECTIVE_TABLE = tuple((re.compile(pattern, re.IGNORECASE), op) for pattern, op in _COLLECTIVES)

# The operator under which a device's communication is recorded.
COMMUNICATION_RECORD = "record_param_comms"
# Operators of the caller that only hand work to a communication backend, or wait for it.
CPU_COMMUNICATION_OPERATOR = re.compile(
    r"c10d::|_c10d_functional|c10d_functional|record_param_comms|gloo:|nccl:|mpi:|ucc:"
)
# Operators whose inputs tell how an uneven all_to_all splits: (place of output, of input splits).
SPLIT_OPERATORS = {"c10d::alltoall_base_": (3, 4)}
# Operators that name a root: the operation, and the place of the root among the inputs.
ROOT_OPERATORS = {"c10d::broadcast_": ("broadcast", 2), "c10d::reduce_": ("reduce", 3)}
# Operators whose values of inputs are read.
VALUED_OPERATORS = frozenset(SPLIT_OPERATORS) | frozenset(ROOT_OPERATORS)
# Operators that compute: those of a library. Autograd nodes and functions only contain them.
CPU_COMPUTE_OPERATOR = re.compile(
    r"(?!c10d|_c10d|autograd::|gloo:|nccl:|mpi:|ucc:|profiler::)\w+::"
)
CPU_TRANSFER = re.compile(r"(?:gloo|mpi|ucc):")

PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")
# Annotations that mark a step where the profiler's own marker is absent, best first.
STEP_PATTERNS = (
    r"execute_(?:new_|model|context|\d)",  # vLLM
    r"step\[",  # SGLang forward batch
    r"forward_batch|run_batch",
    r"(?:megatron.*|^)train_step",
    r"Optimizer\.step#",
)

_AXIS_WORDS = (
    (r"pipeline|\bpp\b|mesh_pp", "pp"),
    (r"expert|\bep\b|mesh_ep|moe", "ep"),
    (r"context|\bcp\b|mesh_cp", "cp"),
    (r"tensor|\btp\b|mesh_tp", "tp"),
    (r"dp_replicate", "dp_replicate"),
    (r"dp_shard", "dp_shard"),
    (r"fsdp", "fsdp"),
    (r"data|\bdp\b|mesh_dp", "dp"),
)
_AXIS_TABLE = tuple((re.compile(pattern, re.IGNORECASE), axis) for pattern, axis in _AXIS_WORDS)
assert {axis for _, axis in _AXIS_WORDS} <= set(AXES)

_ELEMENT_BYTES = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4,
    "double": 8, "float64": 8, "long": 8, "long int": 8, "int64": 8, "uint64": 8,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2,
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "unsigned char": 1, "signed char": 1,
    "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


def communication_pattern(extra: Sequence[str] = ()) -> re.Pattern[str]:
    """One case-insensitive pattern over kernel names that are communication.

    Raises:
        re.error: one of ``extra`` is not a regular expression.
    """
    return re.compile("|".join((*COMMUNICATION_PATTERNS, *extra)), re.IGNORECASE)


@lru_cache(maxsize=1024)  # a run has few names and many calls
def collective(name: str) -> str:
    """The collective a kernel, annotation or recorded name stands for, or "other"."""
    for pattern, op in _COLLECTIVE_TABLE:
        if pattern.search(name):
            return op
    return "other"


def mesh_axis(description: str) -> str | None:
    """The mesh axis a process group's description names, if it names one."""
    words = description.replace("_GROUP", "")
    for pattern, axis in _AXIS_TABLE:
        if pattern.search(words.replace("_", " ")) or pattern.search(words):
            return axis
    return None


def element_bytes(dtype: str) -> int | None:
    """Bytes per element of a dtype as Kineto, c10 or torch spells it; None when unknown."""
    plain = dtype.lower().removeprefix("c10::").removeprefix("torch.")
    if plain.startswith("float8"):
        return 1
    return _ELEMENT_BYTES.get(plain)
