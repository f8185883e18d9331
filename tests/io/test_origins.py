"""The operator and the annotation that each kernel comes from."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.io.documents import event, kernel, window
from tracekit.core.trace import RankTrace
from tracekit.io.origins import innermost


def named(trace: RankTrace) -> list[tuple[str, str]]:
    """Operator and annotation of each kernel, "" where not known."""
    names, origin = (*trace.names, ""), trace.origin()
    return [
        (names[op], names[scope])
        for op, scope in zip(origin.op_id.tolist(), origin.scope_id.tolist(), strict=True)
    ]


def launch(start: float, correlation: int, tid: int = 1) -> dict[str, object]:
    return event("cuda_runtime", "cudaLaunchKernel", start, 1, tid=tid, correlation=correlation)


def test_external_id_names_the_operator_and_the_launch_the_annotation() -> None:
    found = window(
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("user_annotation", "layer 3", 5, 40),
        event("cpu_op", "aten::linear", 8, 20, External_id=1),
        event("cpu_op", "aten::mm", 10, 10, External_id=2),
        launch(12, 7),
        kernel("gemm", 60, 5, correlation=7, External_id=2),
    )
    assert named(found.trace) == [("aten::mm", "layer 3")]


def test_without_external_id_the_innermost_operator_around_the_launch() -> None:
    found = window(
        event("cpu_op", "aten::linear", 8, 20),
        event("cpu_op", "aten::t", 9, 1),
        event("cpu_op", "aten::mm", 10, 10),
        launch(12, 7),
        launch(25, 8),
        launch(50, 9),
        kernel("a", 60, 5, correlation=7),
        kernel("b", 70, 5, correlation=8),
        kernel("c", 80, 5, correlation=9),
        kernel("replayed", 90, 5),
    )
    assert [op for op, _ in named(found.trace)] == ["aten::mm", "aten::linear", "", ""]


def test_a_backward_thread_has_the_main_threads_annotation() -> None:
    found = window(
        event("user_annotation", "backward", 0, 50),
        event("user_annotation", "nccl:all_reduce", 10, 5),
        launch(12, 7, tid=2),
        kernel("gemm", 60, 5, correlation=7),
    )
    assert named(found.trace) == [("", "backward")]


def test_on_a_cpu_the_operator_is_the_stretch_itself() -> None:
    found = window(event("user_annotation", "layer 3", 5, 40), event("cpu_op", "aten::mm", 10, 10))
    assert named(found.trace) == [("aten::mm", "layer 3")]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=12), st.data())
def test_innermost_equals_a_plain_search(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    """Intervals that nest: each is cut at the end of the one it begins in."""
    stack: list[tuple[int, int]] = []
    nested = []
    for start, length in sorted(pairs, key=lambda pair: (pair[0], -pair[1])):
        while stack and stack[-1][1] <= start:
            stack.pop()
        end = min(start + length, stack[-1][1]) if stack else start + length
        stack.append((start, end))
        nested.append((start, end))
    nested.sort(key=lambda pair: (pair[0], -pair[1]))
    at = data.draw(st.lists(st.integers(-1, 95), min_size=1, max_size=8))
    start, end = np.array(nested, dtype=np.int64).reshape(-1, 2).T
    got = innermost(start, end, np.array(at, dtype=np.int64)).tolist()
    for moment, place in zip(at, got, strict=True):
        around = [i for i, (low, high) in enumerate(nested) if low <= moment < high]
        assert place == (around[-1] if around else -1)
