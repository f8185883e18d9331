"""The runner: starts ranks, records them and the conditions; knows no model.

The package can be called: ``tracekit.profile("my-run")`` is the context manager
that records a loop of one's own.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from tracekit.profile.context import Profile

        return Profile(*args, **kwargs)


# A package named like the function that the product's documentation promises.
sys.modules[__name__].__class__ = _Callable
