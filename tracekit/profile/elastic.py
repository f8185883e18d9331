"""Ranks on this machine through torch's own launcher: for GPUs, which do not survive a fork."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit.core.errors import RankFailedError
from tracekit.profile import place as places
from tracekit.profile.local import TAIL_LINES, Job, Work


def run_ranks(job: Job, work: Work, on_progress: Callable[[str], None]) -> None:
    """Start one process per rank afresh and wait until all have succeeded.

    Raises:
        RankFailedError: with the last lines of the log of the rank that failed first.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="tracekit-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=job.world_size,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            max_restarts=0,
            local_addr="127.0.0.1",
            logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=Std.ALL),
        )
        on_progress(f"starting {job.world_size} processes")
        try:
            elastic_launch(config, be_rank)(work)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            lines = _cause(failure.message) or _tail(Path(logs), rank)
            head = f"rank {rank} of {job.world_size} failed (exit code {failure.exitcode})"
            raise RankFailedError("\n".join([f"{head}; the end of its log:", *lines])) from error


def be_rank(work: Work) -> None:
    """The life of one rank, in a process of its own."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    place = places.from_environment(os.environ, least=1)
    assert place is not None
    work(place, lambda line: None)


def _cause(message: Any) -> list[str]:
    """The end of the traceback, where the rank could still write one."""
    if not isinstance(message, dict):
        return []
    traceback: str = message.get("extraInfo", {}).get("py_callstack", "")
    return traceback.splitlines()[-TAIL_LINES:]


def _tail(logs: Path, rank: int) -> list[str]:
    """The last lines that a rank wrote to its error stream."""
    found = sorted(logs.rglob(f"{rank}/stderr.log"))
    text = found[-1].read_text(errors="replace") if found else ""
    return text.splitlines()[-TAIL_LINES:]
