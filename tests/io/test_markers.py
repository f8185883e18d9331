"""Spans of the host's program from the runner's markers, or from torch's own names."""

from __future__ import annotations

import pytest

from tests.io.documents import event, window
from tracekit.core.trace import NO_SPANS, Phase
from tracekit.io import markers


def test_names_and_their_meaning_are_inverse() -> None:
    cases = [
        (Phase.FORWARD, 1, 0), (Phase.BACKWARD, 0, 12), (Phase.INPUT, 3, 1), (Phase.WEIGHT, 3, 1),
        (Phase.LOSS, 3, 2), (Phase.REDUCE, 2, -1), (Phase.RECV, -1, -1), (Phase.SEND, -1, -1),
        (Phase.DATA, -1, -1), (Phase.GC, -1, -1), (Phase.SYNC, -1, -1),
    ]  # fmt: skip
    assert {phase for phase, *_ in cases} == set(Phase)
    found = window(
        *(event("cpu_op", markers.name(*case), 10 * i, 5) for i, case in enumerate(cases)),
        event("cpu_op", "aten::mm", 500, 5),
    )
    spans = found.trace.spans
    rows = zip(spans.phase, spans.stage, spans.microbatch, strict=True)
    assert [tuple(map(int, row)) for row in rows] == [tuple(map(int, case)) for case in cases]
    assert spans.end_ns[0] - spans.start_ns[0] == 5_000


def test_our_markers_replace_torchs() -> None:
    found = window(
        event("user_annotation", "PP:1F0", 0, 100),
        event("cpu_op", "tracekit:PP:1F0", 60, 40),
    )
    assert found.trace.spans.start_ns.tolist() == [60_000]
    assert "spans-include-waits" not in {note.code for note in found.diagnostics}


def test_chunks_are_places_among_the_stages_of_a_rank() -> None:
    found = window(
        *(event("cpu_op", f"tracekit:PP:{stage}F0", stage, 1) for stage in (2, 6)),
        event("cpu_op", "tracekit:gc", 9, 1),
    )
    assert found.trace.spans.chunk.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PP:1F0", (Phase.FORWARD, 1, 0)),
        ("PP:6I0", (Phase.INPUT, 6, 0)),
        ("PP:6W10", (Phase.WEIGHT, 6, 10)),
        ("PP:0B3", (Phase.BACKWARD, 0, 3)),
        ("Forward 2", (Phase.FORWARD, -1, 2)),
        ("Backward 2", (Phase.BACKWARD, -1, 2)),
    ],
)
def test_torchs_own_names(name: str, meant: tuple[int, int, int]) -> None:
    found = window(
        event("user_annotation", name, 0, 5), event("user_annotation", "PP:1RECV_F0", 9, 5)
    )
    spans = found.trace.spans
    assert (spans.phase[0], spans.stage[0], spans.microbatch[0]) == meant
    assert len(spans) == 1
    assert "spans-include-waits" in {note.code for note in found.diagnostics}


def test_calls_that_wait_for_the_device_are_spans() -> None:
    found = window(
        event("cuda_runtime", "cudaStreamSynchronize", 0, 5),
        event("cuda_runtime", "hipDeviceSynchronize", 10, 5),
        event("cuda_runtime", "cudaLaunchKernel", 20, 5),
    )
    assert found.trace.spans.phase.tolist() == [Phase.SYNC, Phase.SYNC]


def test_torchs_data_loader_is_data() -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    found = window(event("user_annotation", name, 0, 5))
    assert found.trace.spans.phase.tolist() == [Phase.DATA]


def test_a_trace_without_markers_has_no_spans() -> None:
    assert window(event("cpu_op", "aten::mm", 0, 5)).trace.spans is NO_SPANS
