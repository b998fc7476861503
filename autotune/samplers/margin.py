"""How much more memory strategies need than expected: learned from which of them ran.

The logarithm of (needed / expected) is a common factor and a scatter of single strategies. That a
strategy ran, or ran out of memory, bounds the sum of the two from one side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.samplers.residual import below
from distir.arrays import Floats

FACTOR = 0.15
"""Standard deviation of the logarithm of the common factor before anything is tried: half of the
sources of published runs lie within."""
SCATTER = 0.05
"""That of single strategies around it."""

_GRID = np.linspace(-1.0, 1.0, 201)
_FILLS = np.linspace(-1.5, 1.5, 301)
"""Logarithms of fillings between which chances are interpolated."""


@dataclass(frozen=True, slots=True)
class Margin:
    """What is known of the common factor: weights of its logarithms in a grid."""

    weights: Floats

    @classmethod
    def learned(cls, log_fill: Sequence[float], ran: Sequence[bool]) -> Margin:
        """From the expected logarithms of the filling of strategies, and whether each ran."""
        logs = -0.5 * np.square(_GRID / FACTOR)  # the product of many small chances is no float
        for expected, happened in zip(log_fill, ran, strict=True):
            fits = below(-(expected + _GRID) / SCATTER)
            logs = logs + np.log(np.maximum(fits if happened else 1 - fits, 1e-9))
        weights = np.exp(logs - logs.max())
        return cls(weights / weights.sum())

    def chance_to_fit(self, log_fill: Floats) -> Floats:
        """The probability that strategies of this expected filling run."""
        chances = below(-(_FILLS[:, None] + _GRID[None, :]) / SCATTER) @ self.weights
        return np.interp(log_fill, _FILLS, chances)

    @property
    def factor(self) -> float:
        """The expected ratio of the memory needed to the memory expected."""
        return float(np.exp(_GRID @ self.weights))


__all__ = ["Margin"]
