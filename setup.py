"""The native tokenizer: optional, since everything also works without a compiler."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup

try:
    from pybind11.setup_helpers import Pybind11Extension
except ImportError:  # built without isolation: the Python reader does all the work
    extensions = []
else:
    folder = Path("tracekit/io/_native")
    msvc = sys.platform == "win32"
    extensions = [
        Pybind11Extension(
            "tracekit.io._tokenizer",
            [str(folder / "module.cpp")],
            depends=[
                str(folder / name)
                for name in ("json.hpp", "columns.hpp", "predict.hpp", "tokenizer.hpp")
            ],
            cxx_std=17,
            # Contracted multiply-adds would round other than the Python reader does.
            extra_compile_args=["/O2"] if msvc else ["-O3", "-ffp-contract=off"],
            optional=True,
        )
    ]

setup(ext_modules=extensions)
