"""Write a synthetic trace of a given size, for measuring the reader.

The mix follows real H100 training traces recorded with stacks, in Kineto's own layout
(about 240 bytes per event):

    40 %  python_function   stack frames; names hold paths
    18 %  cpu_op            half of them with shapes, types and concrete inputs
     8 %  cuda_runtime      with correlation
     8 %  kernel            150 names of 40 to 400 bytes; 4 % NCCL with communication arguments
     1 %  gpu_memcpy
    20 %  flow starts and ends (ac2g, fwdbwd)
     4 %  memory instants
     1 %  user_annotation   among them ProfilerStep#N

The same size and seed give the same bytes.

    python benchmarks/generate.py 400 trace.json
    python benchmarks/generate.py 400 trace.json.gz
"""

from __future__ import annotations

import argparse
import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

BASE_NS = 1_751_410_836_000_000_000
MEGABYTE = 1_000_000

HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028765696,
      "computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8, "pg_count": 1, "pg_config": \
[{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8, \
"ranks": [0, 1, 2, 3, 4, 5, 6, 7]}], "nccl_version": "2.27.5"},
  "with_stack": 1,
  "record_shapes": 1,
  "traceEvents": ["""
FOOTER = f"""
  ],
  "traceName": "trace.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": {BASE_NS}
}}
"""

OPERATORS = [
    f"aten::{name}"
    for name in (
        "mm", "addmm", "empty", "empty_strided", "copy_", "to", "_to_copy", "add", "mul", "view",
        "reshape", "transpose", "linear", "matmul", "softmax", "layer_norm", "native_layer_norm",
        "gelu", "dropout", "embedding", "slice", "select", "cat", "sum", "div", "bmm", "expand",
    )
]  # fmt: skip
RUNTIME = ["cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaEventRecord",
           "cudaStreamIsCapturing", "cudaEventQuery"]  # fmt: skip


class Writer:
    """One training process: a clock that moves on, and its counters."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ts_ns = 1_428_625_731_456_483
        self.correlation = 600_000
        self.external = 18_000
        self.step = 0
        self.kernels = [self._kernel_name(index) for index in range(150)]
        self.frames = [
            f"torch/nn/modules/module_{index % 40}.py({index * 7}): _call_impl_{index}"
            for index in range(3000)
        ]

    def _kernel_name(self, index: int) -> str:
        body = f"at::native::vectorized_kernel_{index}<4, at::native::CUDAFunctor_add<float>"
        return (
            f"void {body}, std::array<char*, 3ul> >("
            + ", ".join(["int", "float const*", "at::TensorIteratorBase&"] * (1 + index % 8))
            + ")"
        )

    def event(self, phase_args: str) -> str:
        return "\n  {\n    " + phase_args + "\n  }"

    def clock(self) -> str:
        self.ts_ns += self.random.randrange(200, 4000)
        return f"{self.ts_ns // 1000}.{self.ts_ns % 1000:03}"

    def complete(self, category: str, name: str, where: str, args: str) -> str:
        duration = self.random.randrange(500, 90_000)
        return self.event(
            f'"ph": "X", "cat": "{category}", "name": "{name}", {where},\n    '
            f'"ts": {self.clock()}, "dur": {duration // 1000}.{duration % 1000:03},\n    '
            f'"args": {{\n      {args}\n    }}'
        )

    def python_function(self) -> str:
        number = self.random.randrange(1 << 20)
        return self.complete(
            "python_function", self.random.choice(self.frames), '"pid": 25286, "tid": 25286',
            f'"Python parent id": {number - 1}, "Python id": {number}, "Ev Idx": {number}',
        )  # fmt: skip

    def cpu_op(self) -> str:
        self.external += 1
        args = f'"External id": {self.external},"Record function id": 0, '
        if self.random.random() < 0.5:
            args += (
                '"Concrete Inputs": ["", "", "-1", "False"], '
                '"Input type": ["c10::BFloat16", "long int", "Scalar", "Scalar"], '
                '"Input Strides": [[4096, 1], [1], [], []], '
                '"Input Dims": [[2048, 4096], [4096], [], []], '
            )
        return self.complete(
            "cpu_op", self.random.choice(OPERATORS), '"pid": 25286, "tid": 25286',
            args + f'"Ev Idx": {self.external}',
        )  # fmt: skip

    def runtime(self) -> str:
        self.correlation += 1
        return self.complete(
            "cuda_runtime", self.random.choice(RUNTIME), '"pid": 25286, "tid": 25286',
            f'"External id": {self.external}, "cbid": 211, "correlation": {self.correlation}',
        )  # fmt: skip

    def kernel(self) -> str:
        name, stream, extra = self.random.choice(self.kernels), 7, ""
        if self.random.random() < 0.04:
            name, stream = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)", 24
            extra = (
                ', "Collective name": "allreduce", "In msg nelems": 4194304, '
                '"Out msg nelems": 4194304, "Group size": 8, "dtype": "BFloat16", '
                '"In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
                '"Process Group Description": "default_pg", '
                '"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
            )
        return self.complete(
            "kernel", name, f'"pid": 0, "tid": {stream}',
            f'"External id": {self.external}, "queued": 0, "device": 0, "context": 1, '
            f'"stream": {stream}, "correlation": {self.correlation}, "registers per thread": 40, '
            '"shared memory": 16384, "blocks per SM": 4.740741, "warps per SM": 75.851852, '
            f'"grid": [512, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 75{extra}',
        )  # fmt: skip

    def memcpy(self) -> str:
        return self.complete(
            "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", '"pid": 0, "tid": 20',
            f'"External id": {self.external}, "device": 0, "context": 1, "stream": 20, '
            f'"correlation": {self.correlation}, "bytes": 65536, '
            '"memory bandwidth (GB/s)": 1.5e-02',
        )  # fmt: skip

    def flow(self) -> str:
        phase, bind = self.random.choice((("s", ""), ("f", ', "bp": "e"')))
        return self.event(
            f'"ph": "{phase}", "id": {self.correlation}, "pid": 25286, "tid": 25286, '
            f'"ts": {self.clock()},\n    "cat": "ac2g", "name": "ac2g"{bind}'
        )

    def instant(self) -> str:
        return self.event(
            '"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n    '
            f'"pid": 25286, "tid": 25286,\n    "ts": {self.clock()},\n    '
            '"args": {\n      "Total Reserved": 2629828608, "Total Allocated": 1003059712, '
            '"Bytes": 18317312, "Addr": 137877174353920, "Device Id": 0, "Device Type": 1\n    }'
        )

    def annotation(self) -> str:
        name = "Optimizer.step#AdamW.step"
        if self.random.random() < 0.1:
            self.step += 1
            name = f"ProfilerStep#{self.step}"
        return self.complete(
            "user_annotation", name, '"pid": 25286, "tid": 25286',
            f'"External id": {self.external}, "Ev Idx": 0',
        )  # fmt: skip

    def events(self) -> Iterator[str]:
        """Endless events of the mix."""
        mix: list[tuple[Callable[[], str], int]] = [
            (self.python_function, 40), (self.cpu_op, 18), (self.runtime, 8), (self.kernel, 8),
            (self.memcpy, 1), (self.flow, 20), (self.instant, 4), (self.annotation, 1),
        ]  # fmt: skip
        makers, weights = [maker for maker, _ in mix], [weight for _, weight in mix]
        while True:
            for maker in self.random.choices(makers, weights, k=1000):
                yield maker()


def write(path: Path, megabytes: float, seed: int = 0) -> int:
    """Write a trace of about so many megabytes of JSON; returns its number of events."""
    count, size, limit = 0, 0, megabytes * MEGABYTE
    with _create(path) as stream:
        stream.write(HEADER.encode())
        separator = ""
        batch: list[str] = []
        for event in Writer(seed).events():
            batch.append(event)
            count += 1
            size += len(event) + 1
            if len(batch) == 1000 or size >= limit:
                stream.write((separator + ",".join(batch)).encode())
                separator, batch = ",", []
                if size >= limit:
                    break
        stream.write(FOOTER.encode())
    return count


def _create(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "wb", compresslevel=6)
    return path.open("wb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("megabytes", type=float, help="size of the JSON")
    parser.add_argument("path", type=Path, help="file to write; .gz compresses it")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    count = write(given.path, given.megabytes, given.seed)
    print(f"{given.path}: {count} events")


if __name__ == "__main__":
    main()
