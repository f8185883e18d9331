"""Random damage to traces: no crash, no hang, and both paths of the reader agree."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutate
from tests.io.same import both
from tracekit.core.errors import InputError
from tracekit.io import kineto, stream
from tracekit.io.events import Events

SEEDS = [
    path.read_bytes()
    for path in sorted((Path(__file__).parents[2] / "sample_traces" / "broken").glob("*.json"))
    if path.stat().st_size < 10_000
]

numbers = st.one_of(
    st.integers(-(10**6), 10**6),
    st.integers(),
    st.floats(),
    st.decimals(0, 10**7, places=3).map(float),
    st.sampled_from(["12", "-7", "1.5", "x", "0x0", "", None, True, [], {}]),
    st.sampled_from([2**43, 1712195495505583.25, 4.6e15, 86_400_000_000]),
)  # fmt: skip
texts = st.one_of(st.text(max_size=8), st.sampled_from(["kernel", "cpu_op", "python_function"]))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "correlation": numbers, "External id": numbers, "external id": numbers, "device": numbers,
        "stream": numbers, "Collective name": texts | st.none() | st.just(1), "dtype": texts,
        "Process Group Ranks": anything, "Input Dims": anything, "Input type": anything,
        "Seq": numbers, "Rank": numbers | texts, "other": anything,
    },
)  # fmt: skip
some_events = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "B", "E", "i", "M", "s", "", "XX"]), "ts": numbers},
    optional={
        "cat": texts, "dur": numbers, "pid": numbers | texts, "tid": numbers | texts,
        "name": texts | st.sampled_from(["c10d::send", "gloo:x"]) | numbers,
        "args": arguments | st.none() | anything, "x": anything,
    },
)  # fmt: skip


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(st.lists(some_events, max_size=6), st.sampled_from([None, 1, 4]), st.booleans())
def test_events_of_any_content(
    events: list[dict[str, Any]], indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps({"a": 1, "traceEvents": events}, indent=indent, ensure_ascii=is_ascii)
    both(text.encode("utf-8", "surrogatepass"))


@settings(max_examples=1500)
@given(st.sampled_from(SEEDS), st.integers(0, 2**32))
def test_damaged_files(data: bytes, seed: int) -> None:
    both(mutate(data, random.Random(seed)))


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_behind_the_beginning_of_a_list(data: bytes) -> None:
    assert isinstance(both(b'{"traceEvents": [' + data), Events)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(SEEDS), st.integers(0, 2**32))
def test_damaged_gzip(tmp_path: Path, data: bytes, seed: int) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(mutate(gzip.compress(data), random.Random(seed)))
    # Anything but an InputError fails the test.
    with contextlib.suppress(InputError), stream.open_trace(path) as opened:
        kineto.parse(opened, "trace")


def test_the_seeds_are_there() -> None:
    assert len(SEEDS) > 40
    assert any(isinstance(both(seed), Events) for seed in SEEDS)
    if not kineto.native_available():
        pytest.skip("only the Python path was fuzzed: the native tokenizer was not built")
