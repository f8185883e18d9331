"""Numbers and names to words: the only place where units change.

Three significant digits; one unit per column, not per cell; "—" for what
cannot be measured. Names come from traces, so nothing in them may act as
markup, as a terminal escape or as a change of writing direction.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

MISSING = "—"
NAME_LENGTH = 60

_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")),
    "bytes": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "ratio": ((0.01, "%"),),
    "gbps": ((1.0, "GB/s"),),
}

_UNITS = sorted({suffix for steps in _SCALES.values() for _, suffix in steps}, key=len)
_NUMBER_AND_UNIT = re.compile(rf"(\d) ({'|'.join(map(re.escape, reversed(_UNITS)))})(?!\w)")


@dataclass(frozen=True, slots=True)
class Scale:
    """How the values of one column are shown: divided by ``divisor``, in ``suffix``."""

    unit: str
    divisor: float
    suffix: str

    def value(self, value: object) -> float | None:
        """The number to plot, or None when it is missing or without bound."""
        if missing(value) or not math.isfinite(float(value)):  # type: ignore[arg-type]
            return None
        return float(value) / self.divisor  # type: ignore[arg-type]

    def cell(self, value: object) -> str:
        """The number alone; its unit stands in the head of the column."""
        if missing(value):
            return MISSING
        if isinstance(value, str):
            return plain(value)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if self.unit == "count":
            return f"{int(value):,}"  # type: ignore[call-overload]
        if self.unit == "" and float(value).is_integer():  # type: ignore[arg-type]
            return str(int(value))  # type: ignore[call-overload]
        return significant(float(value) / self.divisor)  # type: ignore[arg-type]

    def quantity(self, value: object) -> str:
        """The number with its unit, for a sentence."""
        text = self.cell(value)
        return f"{text} {self.suffix}" if self.suffix and text != MISSING else text


def scale(unit: str, values: Iterable[object]) -> Scale:
    """The scale of a column: the largest unit in which its largest value is at least one."""
    steps = _SCALES.get(unit)
    if steps is None:
        return Scale(unit, 1.0, "")
    present = (abs(float(v)) for v in values if not missing(v))  # type: ignore[arg-type]
    top = max(filter(math.isfinite, present), default=0.0)
    for divisor, suffix in steps:
        # Compare what will be read: 999,999 ns are "1.00 ms" and not "1,000 µs".
        if float(f"{top / divisor:.2e}") >= 1:
            return Scale(unit, divisor, suffix)
    if top == 0 and unit == "ns":
        return Scale(unit, 1e6, "ms")
    return Scale(unit, *steps[-1])


def quantity(value: object, unit: str) -> str:
    """One value with its unit: ``quantity(41_400_000, "ns") == "41.4 ms"``."""
    return scale(unit, (value,)).quantity(value)


def significant(value: float) -> str:
    """Three significant digits, thousands apart; an exact zero is "0"."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞"
    rounded = float(f"{value:.2e}")
    if abs(rounded) >= 100:
        return f"{value:,.0f}"
    if abs(rounded) < 0.001:  # next to nothing in the column's unit
        return "<0.001" if value > 0 else ">-0.001"
    decimals = 2 - math.floor(math.log10(abs(rounded)))
    return f"{value:.{decimals}f}"


def missing(value: object) -> bool:
    """Whether this is None, NaN or NA."""
    return bool(pd.isna(value))


def plain(text: str) -> str:
    r"""A name with its control and direction characters made visible, as ``\u202e``.

    Keeps letters of every script, spaces and line breaks out of trouble: what
    remains cannot move a terminal's cursor or turn the text around it.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def nobreak(text: str) -> str:
    """The same sentence with no line break between a number and its unit."""
    return _NUMBER_AND_UNIT.sub("\\1\u00a0\\2", text)


def _visible(char: str) -> str:
    # Cc control, Cf format (bidi marks, zero width), Cs lone surrogate, Zl/Zp line ends.
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        code = ord(char)
        if code < 0x100:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return char


def shorten(text: str, length: int = NAME_LENGTH) -> str:
    """The beginning and the end of a long name: kernels differ in their last template words."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 3
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"
