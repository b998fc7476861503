"""How much less, or more, costs vary than expected, or whether they run against what is expected.

The logarithm of (found / expected) may follow the logarithm of what was expected: where a constant
part was forgotten costs vary less, where the objective is another one they may fall where they
should rise. A smooth process over choices learns that only near what was tried.
"""

from __future__ import annotations

import numpy as np

from distir.arrays import Floats

SPREAD = 0.2
"""Standard deviation of the slope before anything is tried; its mean is 0."""
FEWEST = 6
"""Trials before a slope is believed."""
LEAST_NOISE = 1e-3
"""Below this, what rounding leaves between equal expectations would have a slope."""
ROUNDS = 5
"""In which the slope and the scatter around it, each given the other, settle."""


def slope_of(log_expected: Floats, log_ratios: Floats, noise: float) -> float:
    """How fast the logarithm of (found / expected) rises with that of what was expected: Bayesian
    regression, with a scatter of at least `noise`."""
    if len(log_ratios) < FEWEST:
        return 0.0
    steps, values = log_expected - log_expected.mean(), log_ratios - log_ratios.mean()
    noise = max(noise, LEAST_NOISE)
    slope, scatter = 0.0, 2 * noise
    for _ in range(ROUNDS):
        slope = float(steps @ values / (steps @ steps + (scatter / SPREAD) ** 2))
        left: Floats = values - slope * steps
        scatter = max(noise, float(np.sqrt(np.mean(np.square(left)))))
    return slope


def line(expected: Floats, found: Floats) -> tuple[float, float]:
    """Slope and start of a line of least squares; of slope 0 where all is expected to be alike."""
    steps = expected - expected.mean()
    spread = float(steps @ steps)
    slope = float(steps @ found) / spread if spread else 0.0
    return slope, float(found.mean() - slope * expected.mean())


def runs_against(expected: Floats, found: Floats) -> bool:
    """Whether what was found falls where it was expected to rise, by more than chance: the slope of
    a line through it lies two standard errors below 0."""
    if len(found) < 3:
        return False
    slope, start = line(expected, found)
    steps, left = expected - expected.mean(), found - start - slope * expected
    return slope < 0 and slope**2 * float(steps @ steps) > 4 * float(left @ left) / (len(found) - 2)


__all__ = ["line", "runs_against", "slope_of"]
