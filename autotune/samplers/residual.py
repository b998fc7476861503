"""What trials say about the error of an expectation: a Gaussian process over features.

The logarithm of (found / expected) is a common factor, of which nothing is known, and a part that
changes smoothly with the choices. How large that part is and how quickly it changes is taken from a
few combinations, by their likelihood: trials are too few to fit more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from distir.arrays import Floats
from distir.errors import DistirError

SPREADS = (0.03, 0.1, 0.3, 1.0)
"""Standard deviations of the part that changes."""
LENGTHS = (1.0, 2.0, 4.0, 8.0)
"""Steps over which it changes."""
MOST_TRIALS = 256
"""Trials that a process is fitted to: its time grows with their cube."""
FACTOR = 0.5
"""Standard deviation of the logarithm of the common factor around the mean of what was found."""


class Estimate(NamedTuple):
    """Means and standard deviations, one per row."""

    mean: Floats
    deviation: Floats


@dataclass(frozen=True)
class Residual:
    """A fitted Gaussian process."""

    process: Any
    mean: float
    """Of the values: what is left of them is what the process knows."""
    spread: float
    length: float
    trials: int

    @classmethod
    def fitted(
        cls, rows: Floats, values: Floats, noise: float, before: Residual | None = None
    ) -> Residual:
        """From the values found at `rows`, [trials, features]; `noise` is the standard deviation of
        a value that is found twice. Spread and length are those of the fit `before`, until there
        are a quarter more trials. Of many trials those with the least values count, which are the
        ones that a search compares."""
        least = np.argsort(values, kind="stable")[:MOST_TRIALS]
        rows, values = rows[least], values[least]
        tried = [(spread, length) for spread in SPREADS for length in LENGTHS]
        if before is not None and len(values) < 1.25 * before.trials:
            tried = [(before.spread, before.length)]
        mean = float(values.mean())
        fits = [(_fit(*each, rows, values - mean, noise), *each) for each in tried]
        process, spread, length = max(fits, key=lambda each: each[0].log_marginal_likelihood_value_)
        return cls(process, mean, spread, length, len(values))

    def at(self, rows: Floats) -> Estimate:
        """What is expected at other rows."""
        mean, deviation = self.process.predict(rows, return_std=True)
        return Estimate(self.mean + mean, deviation)


def improvement(estimate: Estimate, best: float) -> Floats:
    """How far each is expected to lie below `best`, where lying above counts as 0: the expected
    improvement (Jones et al. 1998)."""
    deviation = np.maximum(estimate.deviation, 1e-9)
    units = (best - estimate.mean) / deviation
    density = np.exp(-0.5 * np.square(units)) / math.sqrt(2 * math.pi)
    return deviation * (units * below(units) + density)


def below(units: Floats) -> Floats:
    """The share of a normal distribution that lies below so many standard deviations."""
    from scipy.special import ndtr  # pyright: ignore[reportMissingTypeStubs]

    return ndtr(units)


def _fit(spread: float, length: float, rows: Floats, values: Floats, noise: float) -> Any:
    library, kernels = _scikit_learn()
    factor = kernels.ConstantKernel(FACTOR**2)
    kernel = factor + kernels.ConstantKernel(spread**2) * kernels.RBF(length)
    process = library.GaussianProcessRegressor(kernel, alpha=noise**2 + 1e-8, optimizer=None)
    return process.fit(rows, values)


@cache
def _scikit_learn() -> tuple[Any, Any]:
    """scikit-learn, imported late."""
    try:
        from sklearn import gaussian_process  # pyright: ignore[reportMissingTypeStubs]
        from sklearn.gaussian_process import kernels  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise DistirError(
            "this sampler needs scikit-learn; try: pip install scikit-learn"
        ) from error
    return gaussian_process, kernels


__all__ = ["Estimate", "Residual", "below", "improvement"]
