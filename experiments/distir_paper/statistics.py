"""Statistics that the comparisons report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Places in ascending order, equal values sharing their mean place."""
    array = np.asarray(values, dtype=float)
    below = (array[:, None] > array[None, :]).sum(axis=1)
    equal = (array[:, None] == array[None, :]).sum(axis=1)
    return below + (equal - 1) / 2


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation (Spearman 1904); not a number if either is constant."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return float("nan")
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def mean_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Mean of `|predicted / measured - 1|`."""
    return float(np.mean(np.abs(np.asarray(predicted) / np.asarray(measured) - 1)))
