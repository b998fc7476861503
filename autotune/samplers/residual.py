"""What trials say about the error of an expectation: a Gaussian process over features.

The logarithm of (found / expected) is a common factor, of which nothing is known, and a part that
changes smoothly with the choices. How large that part is and how quickly it changes is taken from a
few combinations, by their likelihood: trials are too few to fit more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from distir.arrays import Floats, Indices
from distir.errors import DistirError

SPREADS = (0.03, 0.1, 0.3, 1.0)
"""Standard deviations of the part that changes."""
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Steps over which it changes with the features of a group."""
USUAL = (0.3, 4.0)
"""Spread and lengths that the choice begins with."""
MOST_TRIALS = 256
"""Trials that a process is fitted to: its time grows with their cube."""
FACTOR = 0.5
"""Standard deviation of the logarithm of the common factor around the mean of what was found."""


class Estimate(NamedTuple):
    """Means and standard deviations, one per row."""

    mean: Floats
    deviation: Floats


class Scale(NamedTuple):
    """How much the part changes, and over how many steps in each group of features."""

    spread: float
    lengths: tuple[float, ...]

    def neighbours(self) -> Iterator[Scale]:
        """Scales that differ in one number."""
        for spread in SPREADS:
            yield Scale(spread, self.lengths)
        for group, length in enumerate(self.lengths):
            at = LENGTHS.index(length)
            for other in LENGTHS[max(0, at - 1) : at + 2]:
                yield Scale(self.spread, (*self.lengths[:group], other, *self.lengths[group + 1 :]))


@dataclass(frozen=True)
class Residual:
    """A fitted Gaussian process."""

    process: Any
    mean: float
    """Of the values: what is left of them is what the process knows."""
    scale: Scale
    trials: int

    @classmethod
    def fitted(
        cls,
        rows: Floats,
        values: Floats,
        noise: float,
        groups: Indices | None = None,
        before: Residual | None = None,
    ) -> Residual:
        """From the values found at `rows`, [trials, features]; `noise` is the standard deviation of
        a value that is found twice, and `groups` says of each feature which group it is of.

        The scale is likelier than any that differs from it in one number; it is that of the fit
        `before` until there are a quarter more trials. Of many trials those with the least values
        count, which are the ones that a search compares.
        """
        least = np.argsort(values, kind="stable")[:MOST_TRIALS]
        rows, values = rows[least], values[least]
        num_features = int(rows.shape[1])
        one = np.zeros(num_features, np.int64)
        of = one if groups is None else groups
        mean = float(values.mean())
        known: dict[Scale, Any] = {}

        def likelihood(scale: Scale) -> float:
            if scale not in known:
                with one_thread():
                    known[scale] = _fit(scale, of, rows, values - mean, noise)
            return known[scale].log_marginal_likelihood_value_

        usual = Scale(USUAL[0], (USUAL[1],) * (1 + int(of.max())))
        scale = usual if before is None else before.scale
        if before is None or len(values) >= 1.25 * before.trials:
            while (better := max(scale.neighbours(), key=likelihood)) != scale:
                if likelihood(better) <= likelihood(scale) + 1e-9:
                    break
                scale = better
        likelihood(scale)
        return cls(known[scale], mean, scale, len(values))

    def at(self, rows: Floats) -> Estimate:
        """What is expected at other rows."""
        with one_thread():
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


def log_below(units: Floats) -> Floats:
    """The logarithm of `below`, also where that is next to nothing."""
    from scipy.special import log_ndtr  # pyright: ignore[reportMissingTypeStubs]

    return log_ndtr(units)


def _fit(scale: Scale, groups: Indices, rows: Floats, values: Floats, noise: float) -> Any:
    library, kernels, _ = scikit_learn()
    factor = kernels.ConstantKernel(FACTOR**2)
    part = kernels.RBF(np.array(scale.lengths)[groups])
    kernel = factor + kernels.ConstantKernel(scale.spread**2) * part
    process = library.GaussianProcessRegressor(kernel, alpha=noise**2 + 1e-8, optimizer=None)
    return process.fit(rows, values)


def one_thread() -> AbstractContextManager[Any]:
    """Has linear algebra run on one thread: matrices of a few hundred rows gain nothing from
    several, and where other programs keep cores busy, threads that wait for each other take many
    times as long."""
    return _thread_pools().limit(limits=1, user_api="blas")


@cache
def _thread_pools() -> Any:
    """The libraries with threads, looked for once scikit-learn has loaded its own."""
    from threadpoolctl import ThreadpoolController  # pyright: ignore[reportMissingTypeStubs]

    scikit_learn()
    return ThreadpoolController()


@cache
def scikit_learn() -> tuple[Any, Any, Any]:
    """scikit-learn's Gaussian processes, their kernels and linear models, imported late."""
    try:
        from sklearn import (  # pyright: ignore[reportMissingTypeStubs]
            gaussian_process,
            linear_model,
        )
        from sklearn.gaussian_process import kernels  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise DistirError(
            "this sampler needs scikit-learn; try: pip install scikit-learn"
        ) from error
    return gaussian_process, kernels, linear_model


__all__ = [
    "Estimate",
    "Residual",
    "below",
    "improvement",
    "log_below",
    "one_thread",
    "scikit_learn",
]
