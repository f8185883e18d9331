"""tracekit: where the time goes when a model is trained or served on many devices."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tracekit.core.errors import (
    InputError,
    MissingDataError,
    RankFailedError,
    TracekitError,
    UsageError,
)

if TYPE_CHECKING:
    from tracekit.api import Run, analyze, compare, load, report, scaling

__all__ = [
    "InputError",
    "MissingDataError",
    "RankFailedError",
    "Run",
    "TracekitError",
    "UsageError",
    "analyze",
    "compare",
    "load",
    "profile",
    "report",
    "scaling",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in {"profile", "report"}:
        return importlib.import_module(f"tracekit.{name}")  # packages that can be called
    # pandas takes most of a second to import; `tracekit --help` should not pay for it.
    if name in __all__:
        from tracekit import api

        return getattr(api, name)
    raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
