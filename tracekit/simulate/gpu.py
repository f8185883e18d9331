"""The events of a job on GPUs: operators and launches on the host, kernels on streams."""

from __future__ import annotations

from tracekit.simulate import calls
from tracekit.simulate.engine import COMPUTE_STREAM, Lane
from tracekit.simulate.events import (
    API,
    API_END,
    END,
    LAUNCH,
    LAUNCHED,
    OPERATOR_END,
    START,
    Pattern,
    PatternWriter,
    event,
)
from tracekit.simulate.job import Job
from tracekit.simulate.model import CLASSES
from tracekit.simulate.program import Do, Op

HOST = '"pid": @pid@, "tid": @pid@'
# What pauses of the host are called in a trace; a delay leaves no mark.
PAUSES = {
    "data": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "gc": "tracekit:gc",
}


def pattern(job: Job, lane: Lane) -> Pattern:
    """All events of a pipeline rank's ranks."""
    return _Writer(job, lane).written()


def marker(job: Job, op: Op) -> str | None:
    """The annotation of a stage's work."""
    style = job.spec.stage_markers
    if op.name != "stage" or style == "none":
        return None
    prefix = "tracekit:" if style == "tracekit" else ""
    return f"{prefix}PP:{op.stage}{op.work}{op.microbatch}"


class _Writer:
    def __init__(self, job: Job, lane: Lane) -> None:
        self.job, self.spec, self.lane = job, job.spec, lane
        self.number = calls.numbering(job.spec, lane.ops)
        self.out = PatternWriter()
        self.graph = 0  # correlation of the graph launch that is being replayed

    def written(self) -> Pattern:
        size = len(self.lane.ops)
        for step in range(self.spec.steps):
            for place, op in enumerate(self.lane.ops):
                self._operation(step, step * size + place, op, self.lane.stream[place])
        return self.out.pattern()

    def _operation(self, step: int, row: int, op: Op, stream: int) -> None:
        match op.do:
            case Do.COMPUTE:
                self._kernel(row, op, stream)
            case Do.COLLECTIVE | Do.SEND | Do.RECV if op.name not in self.spec.untraced:
                self._call(row, op, stream)
            case Do.PAUSE:
                self._pause(row, op)
            case Do.SYNC:
                args = f'"External id": {row + 1}, "cbid": 165, "correlation": {row + 1}'
                self._host(event("cuda_runtime", "cudaDeviceSynchronize", HOST, args), row)
            case Do.CLOSE:
                self._stretch(step, row, op)
            case _:
                pass

    def _host(self, text: str, row: int) -> None:
        self.out.add(text, row, LAUNCH, LAUNCHED)

    def _pause(self, row: int, op: Op) -> None:
        name = PAUSES.get(op.name)
        if name is not None and (self.lane.costs.host_ns[row] > 0).any():
            text = event("user_annotation", name, HOST, f'"External id": {row + 1}')
            self.out.add_optional(text, row, LAUNCH, LAUNCHED)

    def _stretch(self, step: int, row: int, op: Op) -> None:
        name = marker(self.job, op)
        if op.name == "step" and self.spec.markers:
            name = f"ProfilerStep#{step}"
        if name is not None:
            text = event("user_annotation", name, HOST, f'"External id": {row + 1}')
            self.out.add(text, row - op.back, LAUNCH, LAUNCHED, until=row)

    # -- device work -------------------------------------------------------------------

    def _kernel(self, row: int, op: Op, stream: int) -> None:
        kind = CLASSES[op.name]
        if not self._launch(row, op, kind.operator, ""):
            self._device(row, kind.kernel, stream, f'"graph node id": {row + 1}')
            return
        shape = f'"grid": {list(kind.grid)}, "block": {list(kind.block)}'
        extra = '"graph node id": 0, ' if self.spec.graph else ""
        self._device(row, kind.kernel, stream, f"{extra}{self._external(row)}{shape}")

    def _call(self, row: int, op: Op, stream: int) -> None:
        name = calls.kernel_name(self.spec, op)
        on_compute = op.axis == "tp" and not name.startswith("nccl")
        stream = COMPUTE_STREAM if on_compute else stream
        args = ""
        if calls.has_arguments(self.spec, op):
            args = calls.arguments(self.job, op, row, self.number.seq[row])
            if self.number.alias[row]:
                args = args.replace("@tp@", "@tp alias@")
        operator = "record_param_comms" if args or not on_compute else "_C_custom_ar::all_reduce"
        linked = self._launch(row, op, operator, args)
        if op.batch > 1:
            return  # the last of the batch launches the kernel
        shown = args if self.spec.comm_args == "full" and not op.batch else ""
        parts = [self._external(row)] if linked and args and not op.batch else []
        self._device(row, name, stream, "".join(parts) + (shown or '"queued": 0'))

    def _external(self, row: int) -> str:
        return f'"External id": {row + 1}, '

    def _launch(self, row: int, op: Op, operator: str, args: str) -> bool:
        """The operator and the runtime call; False inside a replayed graph, which has neither."""
        replayed = (
            self.spec.graph
            and op.do in (Do.COMPUTE, Do.COLLECTIVE)
            and op.work in ("F", "B", "I", "W")
        )
        if replayed:
            if op.head:
                self.graph = row + 1
                runtime = f'"cbid": 311, "correlation": {row + 1}'
                self.out.add(
                    event("cuda_runtime", "cudaGraphLaunch", HOST, runtime), row, API, API_END
                )
            return False
        self.graph = row + 1
        own = f'"External id": {row + 1}' + (f", {args}" if args else "")
        # The calls of a coalesced batch are over before its one launch begins.
        until = OPERATOR_END if op.batch else LAUNCHED
        self.out.add(event("cpu_op", operator, HOST, own), row, LAUNCH, until)
        if op.batch > 1:
            return True
        runtime = f'"External id": {row + 1}, "cbid": 211, "correlation": {row + 1}'
        self.out.add(event("cuda_runtime", "cudaLaunchKernel", HOST, runtime), row, API, API_END)
        return True

    def _device(self, row: int, name: str, stream: int, extra: str) -> None:
        where = f'"pid": 0, "tid": {stream}'
        args = (
            f'"device": 0, "context": 1, "stream": {stream}, "correlation": {self.graph}, {extra}'
        )
        self.out.add(event("kernel", name, where, args), row, START, END)
