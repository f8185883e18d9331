"""Which rank a process is, by what its launcher left in the environment."""

from __future__ import annotations

import pytest

from tracekit.core.errors import UsageError
from tracekit.profile.place import Place, from_environment

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "1234",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "2",
    "MASTER_ADDR": "head",
}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_alone() -> None:
    assert from_environment({}) is None
    assert from_environment({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}) is None


def test_torchrun() -> None:
    assert from_environment(TORCHRUN) == Place(3, 1, 4, "tcp://head:1234")


def test_slurm() -> None:
    assert from_environment(SLURM) == Place(5, 1, 8, "tcp://head:29500")


def test_open_mpi_on_one_host_meets_there() -> None:
    assert from_environment(OMPI) == Place(1, 1, 2, "tcp://127.0.0.1:29500")


def test_pmi() -> None:
    found = from_environment({"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "head"})
    assert found == Place(1, 1, 2, "tcp://head:29500")


def test_the_inner_launcher_counts() -> None:
    found = from_environment(OMPI | SLURM | TORCHRUN)
    assert found is not None
    assert (found.rank, found.world_size) == (3, 4)


def test_a_batch_script_is_no_rank() -> None:
    batch = {key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"}
    assert from_environment(batch) is None


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="MASTER_ADDR is not set"):
        from_environment({key: value for key, value in SLURM.items() if key != "MASTER_ADDR"})
    with pytest.raises(UsageError, match="RANK is 'x'"):
        from_environment(TORCHRUN | {"RANK": "x"})
