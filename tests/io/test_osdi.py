"""The published slowdowns of three real jobs, from their tables, and what is no table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tracekit.core.errors import InputError
from tracekit.core.optable import KINDS, OpTable, what_if
from tracekit.io.osdi import read


@pytest.mark.parametrize(("name", "slowdown"), [("ST", 1.179), ("SE", 1.537), ("AR", 1.973)])
def test_published_slowdowns(real_traces: Path, name: str, slowdown: float) -> None:
    pytest.importorskip("pyarrow")
    table = read(real_traces / "osdi25_straggler" / f"trace-{name}.parquet")
    assert what_if(table).slowdown == pytest.approx(slowdown, abs=0.002)


def test_two_stages_by_hand() -> None:
    # Stage 1 computes 3 s instead of 1 s on replica 0; replica 1 is healthy.
    rows = []
    for replica, slow in ((0, 3.0), (1, 1.0)):
        rows += [
            ("forward-compute", replica, 0, 0.0, 1.0),
            ("forward-send", replica, 0, 1.0, 0.5),
            ("forward-recv", replica, 1, 0.0, 1.5),
            ("forward-compute", replica, 1, 1.5, slow),
        ]
    table = OpTable(
        kind=np.array([KINDS.index(row[0]) for row in rows], dtype=np.int32),
        step=np.zeros(len(rows), dtype=np.int64),
        replica=np.array([row[1] for row in rows], dtype=np.int32),
        stage=np.array([row[2] for row in rows], dtype=np.int32),
        number=np.zeros(len(rows), dtype=np.int32),
        begin_s=np.array([row[3] for row in rows]),
        length_s=np.array([row[4] for row in rows]),
    )
    found = what_if(table)
    assert found.observed_s == pytest.approx(4.5)
    # Computes take 1.5 s on the mean, transfers 0.5 s.
    assert found.ideal_s == pytest.approx(1.5 + 0.5 + 1.5)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"not an operation table|pyarrow"):
        read(path)
