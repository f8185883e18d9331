"""Small jobs for the tests."""

from __future__ import annotations

from typing import Any

from tracekit.simulate import Spec

# Nothing but the kernels takes time.
IDEAL: dict[str, Any] = {
    "noise_ratio": 0.0,
    "jitter_ratio": 0.0,
    "end_noise_us": 0.0,
    "launch_us": 0.0,
    "launch_latency_us": 0.0,
    "data_us": 0.0,
    "optimizer_us": 0.0,
    "intra_latency_us": 0.0,
    "intra_gbps": 1e12,
    "ranks_per_host": 1 << 20,
    "fused": True,
    "forward_us": 100.0,
}


def ideal(**changes: Any) -> Spec:
    """A job in which nothing but the kernels takes time, 100 us each, with these changes."""
    return Spec(**{**IDEAL, **changes})
