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


# Tests that start real ranks, browsers or processes and look at real time.
LIVE = ("profile", "workloads", "browser", "test_end_to_end.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Live tests get two more tries: what a busy machine did to one is not in the code."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in LIVE:
            item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """Folder of real traces with ``facts.json``; the test is skipped where it is absent."""
    if not (REAL_TRACES / "facts.json").is_file():
        pytest.skip(f"no real traces at {REAL_TRACES} (TRACEKIT_REAL_TRACES names another place)")
    return REAL_TRACES
