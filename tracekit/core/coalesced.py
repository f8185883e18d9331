"""Transfers that share a kernel, as those of one ``batch_isend_irecv`` do.

Such a kernel begins when the rank is ready for all of its transfers and ends with the last of
them, so the end of any one is only known to lie before. Where the kernels at both ends carry
exactly the same transfers, as those of two neighbours that exchange, they end together like
those of a single transfer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.core.collective import Matching
from tracekit.core.trace import Int64, RankTrace

Bool = npt.NDArray[np.bool_]


def end_with_others(traces: Sequence[RankTrace], matching: Matching) -> Bool:
    """(instances,) transfers whose two kernels do not carry the same, so may end apart."""
    rows = matching.rows
    out = np.zeros(len(matching.instances), dtype=np.bool_)
    carried = carried_of(traces, matching)
    shared = matching.p2p()[rows.instance] & (carried > 1) if len(rows) else carried > 1
    out[rows.instance[shared]] = True
    chosen = np.flatnonzero(out[rows.instance])
    if len(chosen) == 0:
        return out
    kernel = kernel_of(traces, matching)[chosen]
    _, place = np.unique(kernel, return_inverse=True)
    place = place.reshape(-1)
    instance = rows.instance[chosen]
    # Kernels carry the same when the sums of their instances' random codes agree.
    code = np.random.default_rng(0).integers(1, 1 << 61, len(out), dtype=np.int64)
    total = np.zeros(int(place.max()) + 1, dtype=np.int64)
    np.add.at(total, place, code[instance])
    whole = np.bincount(place)[place] == carried[chosen]
    low = np.full(len(out), np.iinfo(np.int64).max)
    high = np.full(len(out), np.iinfo(np.int64).min)
    np.minimum.at(low, instance, total[place])
    np.maximum.at(high, instance, total[place])
    together = (low == high) & out
    together[instance[~whole]] = False
    out[together] = False
    return out


def carried_of(traces: Sequence[RankTrace], matching: Matching) -> Int64:
    """(rows,) how many transfers the kernel of each row carries."""
    return matching.per_row([trace.calls.carried() for trace in traces])


def kernel_of(traces: Sequence[RankTrace], matching: Matching) -> Int64:
    """(rows,) number of the kernel of each row, over all traces."""
    first = np.cumsum([0, *(len(trace.kernels) for trace in traces)])
    return matching.per_row(
        [trace.calls.kernel + base for trace, base in zip(traces, first[:-1], strict=True)]
    )
