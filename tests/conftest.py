"""Shared fixtures, and where real traces recorded by other people are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Timings on a busy machine say nothing about the code.
settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("default")

# Samples lie in the repository: no test may leave parsed columns beside them.
os.environ.setdefault("TRACEKIT_CACHE", "off")

REAL_TRACES = Path(
    os.environ.get("TRACEKIT_REAL_TRACES", Path(__file__).parents[2] / "shared" / "traces")
)


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """Folder of real traces with ``facts.json``; the test is skipped where it is absent."""
    if not (REAL_TRACES / "facts.json").is_file():
        pytest.skip(f"no real traces at {REAL_TRACES} (TRACEKIT_REAL_TRACES names another place)")
    return REAL_TRACES
