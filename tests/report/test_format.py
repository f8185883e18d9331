from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.report import format


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (41_400_000, "ns", "41.4 ms"),
        (999, "ns", "999 ns"),
        (999_999, "ns", "1.00 ms"),
        (1_234_567_890_000, "ns", "1,235 s"),
        (0, "ns", "0 ms"),
        (0.365, "ratio", "36.5 %"),
        (1.0, "ratio", "100 %"),
        (0.00012, "ratio", "0.0120 %"),
        (1536, "bytes", "1.50 KiB"),
        (12.345, "gbps", "12.3 GB/s"),
        (12345, "count", "12,345"),
        (12345, "", "12345"),
        (2.5, "", "2.50"),
        (True, "", "yes"),
        (-41_400, "ns", "-41.4 µs"),
        (None, "ns", "—"),
        (float("nan"), "ratio", "—"),
        (pd.NA, "count", "—"),
        (np.float64(9.996e6), "ns", "10.0 ms"),
    ],
)
def test_quantity(value: object, unit: str, text: str) -> None:
    assert format.quantity(value, unit) == text


def test_a_column_has_one_unit() -> None:
    scale = format.scale("ns", (120_000_000, 41_000, None))
    assert scale.suffix == "ms"
    cells = [scale.cell(value) for value in (120_000_000, 41_000, 0, 3, None)]
    assert cells == ["120", "0.0410", "0", "<0.001", "—"]


def test_what_has_no_bound_sets_no_scale() -> None:
    scale = format.scale("ns", (5_000_000.0, float("inf")))
    assert scale.suffix == "ms"
    assert scale.value(float("inf")) is None
    assert scale.cell(float("-inf")) == "-∞"


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_three_significant_digits_are_kept(value: float) -> None:
    read = float(format.significant(value).replace(",", ""))
    assert read == pytest.approx(value, rel=0.00501)


@given(st.text())
def test_plain_text_cannot_act(text: str) -> None:
    shown = format.plain(text)
    assert not any(char in shown for char in "\x1b\n\r\u202e\u200f\u2028\ud800")
    shown.encode()


def test_plain_text_keeps_the_letters_of_every_script() -> None:
    assert format.plain("größe 数据 שלום") == "größe 数据 שלום"
    assert format.plain("a\u202eb\x1b[31m") == r"a\u202eb\x1b[31m"


def test_long_names_keep_both_ends() -> None:
    short = format.shorten("begin_" + "x" * 10_000 + "_end", 40)
    assert len(short) == 40
    assert short.startswith("begin_")
    assert short.endswith("_end")
    assert format.shorten("short", 40) == "short"
