"""Reads the operation tables of the OSDI 2025 straggler study (Parquet, one row an operation)."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd

from tracekit.core.errors import InputError
from tracekit.core.optable import KINDS, OpTable

_COLUMNS = ("optype", "step", "dp_rank", "stage", "seq_id", "start_ts", "duration")


def read(path: str | os.PathLike[str]) -> OpTable:
    """The operations of one job.

    Raises:
        InputError: the file is no such table, or nothing here reads Parquet.
    """
    try:
        frame = pd.read_parquet(path, columns=list(_COLUMNS))
    except ImportError as error:
        raise InputError(
            f"{path}: reading Parquet needs pyarrow; pip install 'torch-tracekit[parquet]'"
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: not an operation table ({error})") from error
    frame = frame[frame["optype"].isin(KINDS)]
    place = {name: number for number, name in enumerate(KINDS)}
    return OpTable(
        kind=frame["optype"].astype(str).map(place).to_numpy(dtype=np.int32),
        step=frame["step"].to_numpy(dtype=np.int64),
        replica=frame["dp_rank"].to_numpy(dtype=np.int32),
        stage=frame["stage"].to_numpy(dtype=np.int32),
        number=frame["seq_id"].to_numpy(dtype=np.int32),
        begin_s=frame["start_ts"].to_numpy(dtype=np.float64),
        length_s=frame["duration"].to_numpy(dtype=np.float64),
    )
