"""Which rank this process is, when a launcher has started it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tracekit.core.errors import UsageError

# rank, world size, local rank, and a variable that only a started rank has. The first that fits
# counts: torchrun inside srun sets both, and its own numbers are the right ones.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "RANK"),
    # SLURM_PROCID alone is also set in a batch script, which is no rank of a job step.
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_RANK",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_RANK"),
)
DEFAULT_PORT = 29500


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's seat in the job, and where the ranks meet."""

    rank: int
    local_rank: int
    world_size: int
    init_method: str


class Meeting(Protocol):
    """What ranks must agree on to meet."""

    @property
    def device(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def timeout_s(self) -> float: ...


class Job(Meeting, Protocol):
    """What a job needs to know of itself to be started."""

    @property
    def world_size(self) -> int: ...


def from_environment(environment: Mapping[str, str], least: int = 2) -> Place | None:
    """This process's place in a launched job, or None if it stands alone.

    Args:
        environment: of this process.
        least: fewest ranks that make a job; a single rank needs no launcher.

    Raises:
        UsageError: a launcher started it but left out what is needed to meet.
    """
    for rank_key, size_key, local_key, mark in LAUNCHERS:
        if mark not in environment or size_key not in environment:
            continue
        rank, size = _number(environment, rank_key), _number(environment, size_key)
        if size < least:
            continue
        local = _number(environment, local_key) if local_key in environment else rank
        return Place(rank, local, size, _meeting(environment, size))
    return None


def _number(environment: Mapping[str, str], key: str) -> int:
    try:
        return int(environment[key])
    except (KeyError, ValueError):
        raise UsageError(
            f"{key} is {environment.get(key)!r} in the environment; expected a number"
        ) from None


def _meeting(environment: Mapping[str, str], size: int) -> str:
    """The address where all ranks meet."""
    address = environment.get("MASTER_ADDR")
    if address is None:
        one_host = environment.get("SLURM_NNODES") == "1" or environment.get(
            "OMPI_COMM_WORLD_LOCAL_SIZE"
        ) == str(size)
        if not one_host:
            raise UsageError("MASTER_ADDR is not set; set it to the host of rank 0 on all ranks")
        address = "127.0.0.1"
    port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else DEFAULT_PORT
    return f"tcp://{address}:{port}"
