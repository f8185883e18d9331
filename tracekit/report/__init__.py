"""Results to output: blocks of plain data, and the renderers that show them.

The package can be called: ``tracekit.report([run], "report.html")`` writes a report.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import importlib

        # The face of the product stands above this package.
        return importlib.import_module("tracekit.api").report(*args, **kwargs)


# A package named like the function that the product's documentation promises.
sys.modules[__name__].__class__ = _Callable
