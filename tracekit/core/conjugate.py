"""Linear equations of very many unknowns, without their matrix: conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating[Any]]

_MOST_STEPS = 2_000
_EXACT = 1e-12  # residual left, relative to the right side


def solved(times: Callable[[Float], Float], diagonal: Float, right: Float, start: Float) -> Float:
    """x of A x = right, for a symmetric, positive semidefinite A.

    Unknowns whose diagonal is 0 stand alone and stay as they are.

    Args:
        times: what A makes of a vector.
        diagonal: (n,) of A, by which the steps are scaled.
        right: (n,).
        start: (n,) first guess.

    Source: Golub and Van Loan, Matrix Computations, section 11.5: preconditioned conjugate
    gradients.
    """
    scale = np.where(diagonal > 0, 1 / np.maximum(diagonal, 1e-300), 0.0)
    x: Float = start.astype(np.float64)
    rest = right - times(x)
    enough = _EXACT**2 * float(right @ (scale * right))
    direction: Float = scale * rest
    left = float(rest @ direction)
    for _ in range(_MOST_STEPS):
        if left <= enough:
            break
        image = times(direction)
        bend = float(direction @ image)
        if bend <= 0:
            break
        x = x + left / bend * direction
        rest = rest - left / bend * image
        before, left = left, float(rest @ (scale * rest))
        direction = scale * rest + left / before * direction
    return x
