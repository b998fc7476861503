"""How much more memory strategies need than expected: learned from which of them ran.

The logarithm of (needed / expected) is a common factor and a scatter of single strategies. That a
strategy ran, or ran out of memory, bounds the sum of the two from one side. Both have Student's
distribution: a job may do other than what is simulated and need many times the memory, and single
strategies may need far more or less than others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distir.arrays import Floats

FACTOR = 0.15
"""Scale of the logarithm of the common factor before anything is tried: half of the sources of
published runs lie within."""
SCATTER = 0.05
"""Scale of single strategies around it."""
FREEDOM = 2
"""Degrees of freedom of both."""

_STEP, _WIDEST = 0.01, 5.0
_GRID = np.arange(-_WIDEST, _WIDEST + _STEP / 2, _STEP)
"""Logarithms of factors, from less than a hundredth to more than a hundred."""
_SUMS = np.arange(-2 * _WIDEST, 2 * _WIDEST + _STEP / 2, _STEP)
"""Logarithms of what a filling comes to by a factor."""


@dataclass(frozen=True, slots=True)
class Margin:
    """What is known of the common factor: weights of its logarithms in a grid."""

    weights: Floats

    @classmethod
    def learned(cls, log_fill: Sequence[float], ran: Sequence[bool]) -> Margin:
        """From the expected logarithms of the filling of strategies, and whether each ran."""
        # The product of many small chances is no float.
        logs = -(FREEDOM + 1) / 2 * np.log1p(np.square(_GRID / FACTOR) / FREEDOM)
        for expected, happened in zip(log_fill, ran, strict=True):
            sign = -1 if happened else 1
            sums = np.clip(expected, -_WIDEST, _WIDEST) + _GRID
            logs = logs + np.log(_below(sign * sums / SCATTER))
        weights = np.exp(logs - logs.max())
        return cls(weights / weights.sum())

    def chance_to_fit(self, log_fill: Floats) -> Floats:
        """The probability that strategies of this expected filling run."""
        fits = _below(-_SUMS / SCATTER)
        chances = np.convolve(fits, self.weights[::-1], mode="valid")
        return np.interp(log_fill, _GRID, chances)

    @property
    def factor(self) -> float:
        """The ratio of the memory needed to the memory expected: as likely more as less."""
        return float(np.exp(np.interp(0.5, np.cumsum(self.weights), _GRID)))


def _below(units: Floats) -> Floats:
    """The share of the distribution that lies below so many scales."""
    from scipy.special import stdtr  # pyright: ignore[reportMissingTypeStubs]

    return stdtr(FREEDOM, units)


__all__ = ["Margin"]
