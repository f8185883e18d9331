"""Launch shapes: the same text on both paths, nothing where they are odd."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.io.documents import event, kernel, parsed, window
from tests.io.same import both


def shapes(*events: dict[str, Any]) -> list[str]:
    found = parsed(*events)
    return [found.strings[code] if code >= 0 else "" for code in found.columns.shape.tolist()]


def test_grid_and_block_of_each_kernel() -> None:
    events = (
        kernel("a", 0, 1, grid=[2400, 1, 1], block=[256, 1, 1]),
        kernel("a", 2, 1, grid=[8, 2], block=[32]),
        kernel("a", 4, 1, grid=[8, 1, 1]),
        event("cpu_op", "aten::mm", 6, 1),
    )
    assert shapes(*events) == ["2400x1x1 / 256x1x1", "8x2 / 32", "", ""]
    trace = window(*events).trace
    ids = trace.origin().shape_id.tolist()
    assert [trace.names[code] if code >= 0 else "" for code in ids] == shapes(*events)[:3]


@pytest.mark.parametrize(
    "grid",
    ["[1,2,3,4]", "[]", "[1.5]", "[-1]", '"8"', "null", "[2147483648]", "[1,[2]]", "[01]", "{}",
     "[2147483647, 0 ,1]", "[ 1 ,\\n2 ]",
     "[1" + " " * 2000 + "]", '["1"]', "[true]", "[1e2]", "[-0]"],
)  # fmt: skip
def test_odd_ones_are_alike_on_both_paths(grid: str) -> None:
    plain = {**kernel("a", 0, 1, grid="GRID", block=[1, 1, 1])}
    text = json.dumps({"schemaVersion": 1, "traceEvents": [plain, kernel("b", 2, 1)]})
    both(text.replace('"GRID"', grid).encode())
