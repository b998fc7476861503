"""Robust regression with priors, by damped Gauss-Newton steps.

Minimised over the logarithms `x` of the constants relative to their priors:

    sum_i w_i · 2 s² (sqrt(1 + (r_i / s)²) - 1) / s²  +  sum_k (x_k / spread_k)²

with `r_i` the logarithm of predicted over measured seconds, `s` the scale of what a good model
leaves, and weights `w_i` by which all sources with enough rows count alike. Constants that have
limits stay within them: beyond, predictions would not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from autotune.calibration.pricing import Vector
from autotune.validation.cases import Case

__all__ = ["SCALE", "Fitted", "fit", "fit_linear", "row_weights"]

SCALE = 0.06
"""What a good model leaves: repeats of one run differ by 3 to 4 %, software releases by 8 %."""

Limits: TypeAlias = "tuple[Vector, Vector]"
"""The least and the largest `x`."""

ROWS_PER_SOURCE = 10
"""The rows that a source counts as; a source with fewer rows counts as those it has."""

MOST_STEPS = 12
STEP_LENGTHS = (1.0, 0.5, 0.25, 0.125)
SMALLEST_GAIN = 5e-3
"""The relative decrease of the loss below which a step makes no progress."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Where a fit ended. `x` are logarithms relative to the priors; `residuals` and `jacobian`
    belong to it; `covariance` is that of `x` given the rows."""

    x: Vector
    residuals: Vector
    jacobian: Vector
    weights: Vector
    spreads: Vector
    limits: Limits | None = None

    @property
    def robust_weights(self) -> Vector:
        """Weights of rows as the robust loss leaves them."""
        return self.weights * _weights_of(self.residuals)

    @property
    def information(self) -> Vector:
        """Information of each row about each constant alone, `[rows, constants]`, in units of the
        prior's."""
        return self.robust_weights[:, None] * (self.jacobian * self.spreads) ** 2 / SCALE**2

    @property
    def covariance(self) -> Vector:
        """Covariance of `x`, given rows and priors."""
        hessian = _hessian(self.jacobian, self.robust_weights, self.spreads)
        return np.asarray(np.linalg.inv(hessian), dtype=np.float64)

    @property
    def identified(self) -> Vector:
        """Per constant, by which fraction the rows narrow its prior's standard deviation."""
        deviations = np.asarray(np.sqrt(np.diag(self.covariance)), dtype=np.float64)
        return 1.0 - deviations / self.spreads


def row_weights(cases: Sequence[Case]) -> Vector:
    """Weights of rows by which sources count alike, less where a source says itself how far its
    times may be off."""
    counts = Counter(case.row.group for case in cases)
    return np.array(
        [
            min(1.0, ROWS_PER_SOURCE / counts[case.row.group])
            / (1.0 + (case.stated_spread / SCALE) ** 2)
            for case in cases
        ]
    )


def fit(
    residuals: Callable[[Vector], Vector],
    jacobian: Callable[[Vector, Vector], Vector],
    weights: Vector,
    spreads: Vector,
    start: Vector,
    progress: Callable[[str], None] = lambda _: None,
    limits: Limits | None = None,
) -> Fitted:
    """The best constants. `residuals(x)` are the logarithms of predicted over measured, and
    `jacobian(x, residuals(x))` their derivatives."""
    x, r = start, residuals(start)
    loss = _loss(r, x, weights, spreads)
    j, exact = jacobian(x, r), True
    for step in range(MOST_STEPS):
        progress(f"step {step}: {loss:.1f}")
        moved, tried, reached = _step(residuals, x, r, j, loss, weights, spreads, limits)
        gained, was_exact = loss - reached, exact
        if gained > 0:
            j, exact = _with_secant(j, moved - x, tried - r), False
            x, r, loss = moved, tried, reached
        if gained < SMALLEST_GAIN * loss:
            if was_exact:
                break
            j, exact = jacobian(x, r), True
    return Fitted(x, r, j if exact else jacobian(x, r), weights, spreads, limits)


def _step(
    residuals: Callable[[Vector], Vector],
    x: Vector,
    r: Vector,
    j: Vector,
    loss: float,
    weights: Vector,
    spreads: Vector,
    limits: Limits | None,
) -> tuple[Vector, Vector, float]:
    """The first point on the way to the best of the linear model that is better, with its residuals
    and loss; where none is, the point itself."""
    target = fit_linear(x, r, j, weights, spreads, limits)
    for length in STEP_LENGTHS:
        moved = x + length * (target - x)
        tried = residuals(moved)
        reached = _loss(tried, moved, weights, spreads)
        if reached < loss:
            return moved, tried, reached
    return x, r, loss


def _with_secant(jacobian: Vector, step: Vector, change: Vector) -> Vector:
    """The nearest derivatives that say what a step has changed (Broyden 1965): derivatives by
    difference cost as many predictions as there are constants, a step one."""
    return jacobian + np.outer(change - jacobian @ step, step) / (step @ step)


def fit_linear(
    x: Vector,
    residuals: Vector,
    jacobian: Vector,
    weights: Vector,
    spreads: Vector,
    limits: Limits | None = None,
) -> Vector:
    """The best constants if residuals were linear: `residuals + jacobian (x' - x)`. Those at a
    limit beyond which it would be better stay there, and the others make the best of that (Newton
    steps that are projected; Bertsekas 1982)."""
    best, r = x, residuals
    least, most = limits or (np.full(len(x), -np.inf), np.full(len(x), np.inf))
    for _ in range(50):
        w = weights * _weights_of(r)
        gradient = jacobian.T @ (w * r) / SCALE**2 + best / spreads**2
        held = ((best <= least) & (gradient > 0)) | ((best >= most) & (gradient < 0))
        free = np.flatnonzero(~held)
        hessian = _hessian(jacobian, w, spreads)[np.ix_(free, free)]
        moved = best.copy()
        moved[free] -= np.linalg.solve(hessian, gradient[free])
        moved = np.clip(moved, least, most)
        step, best = moved - best, moved
        r = residuals + jacobian @ (best - x)
        if np.abs(step).max(initial=0.0) < 1e-6:
            break
    return best


def _weights_of(residuals: Vector) -> Vector:
    """By how much the loss counts a row less than its square would."""
    return 1.0 / np.sqrt(1.0 + (residuals / SCALE) ** 2)


def _hessian(jacobian: Vector, weights: Vector, spreads: Vector) -> Vector:
    return jacobian.T @ (weights[:, None] * jacobian) / SCALE**2 + np.diag(spreads**-2.0)


def _loss(residuals: Vector, x: Vector, weights: Vector, spreads: Vector) -> float:
    rows = 2.0 * (np.sqrt(1.0 + (residuals / SCALE) ** 2) - 1.0)
    return float(weights @ rows + ((x / spreads) ** 2).sum())
