"""The declared shape of results: every column has a unit and one sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a result table, or one scalar of a result.

    ``unit`` is "ns", "bytes", "ratio" (shown as per cent), "gbps" (GB/s), "count" or "".
    """

    name: str
    dtype: str
    unit: str
    description: str


class Schema:
    """The columns of one result table, in order."""

    __slots__ = ("columns",)

    def __init__(self, *columns: Column) -> None:
        self.columns = columns

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def __getitem__(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)
