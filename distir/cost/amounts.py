"""Arithmetic on a number or on an array of numbers, so that many plans are costed at once."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["Amount", "larger", "smaller", "soft_maximum"]

Amount: TypeAlias = "float | NDArray[np.float64]"
"""One quantity, or one per plan."""

_TINY = 1e-300
"""Keeps the ratio of two zeros defined; far below any time that occurs."""


def larger(first: Amount, *others: Amount) -> Amount:
    """The largest of its arguments, elementwise."""
    return reduce(_larger, others, first)


def smaller(first: Amount, *others: Amount) -> Amount:
    """The smallest of its arguments, elementwise."""
    return reduce(_smaller, others, first)


def soft_maximum(order: float, first: Amount, second: Amount) -> Amount:
    """The `order`-norm of two times: smooth, monotone, between their maximum and their sum.

    Two activities that overlap, but not perfectly: where one dominates it alone counts, where they
    are equal the result is `2^(1/order)` times either. Infinity gives the plain maximum, 1 the sum.
    """
    if math.isinf(order):
        return _larger(first, second)
    high = _larger(first, second)
    ratio = _smaller(first, second) / (high + _TINY)
    return high * (1.0 + ratio**order) ** (1.0 / order)


def _larger(a: Amount, b: Amount) -> Amount:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return cast("Any", np.maximum(a, b))
    return max(a, b)


def _smaller(a: Amount, b: Amount) -> Amount:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return cast("Any", np.minimum(a, b))
    return min(a, b)
