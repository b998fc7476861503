"""What constants say of rows that they have not seen.

Every source is judged on constants fitted without it. Where one source alone pins a constant, this
would judge the prior; then half of the source's groups of competing rows take part in the fit, the
other half is judged, and the halves change places.

Fits without a source are linear around the fit of all: leaving one source out moves constants
little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.calibration.fit import Fitted, fit_linear, row_weights
from autotune.calibration.pricing import Mask, Vector
from autotune.validation.cases import Case

__all__ = ["PINNED", "Unseen", "fit_to", "leave_sources_out", "pinning_source", "residuals_by"]

PINNED = 0.8
"""Share of a constant's information above which a source pins it alone."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Logarithms of predicted over measured, by constants that have not seen the row; and those
    constants, source by source."""

    residuals: Vector
    fits: dict[str, Vector]


def pinning_source(fitted: Fitted, sources: Sequence[str], column: int) -> str | None:
    """The source that tells more than `PINNED` of all that rows tell of a constant, or None."""
    told = fitted.information[:, column]
    shares = {name: float(told[_is(sources, name)].sum()) for name in dict.fromkeys(sources)}
    total = sum(shares.values())
    best = max(shares, key=shares.__getitem__, default=None)
    return best if best is not None and total > 0 and shares[best] > PINNED * total else None


def leave_sources_out(fitted: Fitted, cases: Sequence[Case]) -> Unseen:
    """Judges every source by constants that have not seen it."""
    sources = [case.row.group for case in cases]
    count = fitted.jacobian.shape[1]
    pins = {pinning_source(fitted, sources, column) for column in range(count)}
    residuals = fitted.residuals.copy()
    fits: dict[str, Vector] = {}
    for source in dict.fromkeys(sources):
        own = _is(sources, source)
        judged = halves(cases, own) if source in pins else [own]
        for part in judged:
            x = fit_to(fitted, cases, ~part)
            fits[source] = x
            residuals[part] = residuals_by(fitted, x, part)
    return Unseen(residuals, fits)


def fit_to(fitted: Fitted, cases: Sequence[Case], seen: Mask) -> Vector:
    """Logarithms of constants fitted to some of the rows."""
    return fit_linear(
        fitted.x,
        fitted.residuals[seen],
        fitted.jacobian[seen],
        row_weights([case for case, is_seen in zip(cases, seen, strict=True) if is_seen]),
        fitted.spreads,
        fitted.limits,
    )


def residuals_by(fitted: Fitted, x: Vector, rows: Mask) -> Vector:
    """Residuals of some rows by constants with the logarithms `x`."""
    return fitted.residuals[rows] + fitted.jacobian[rows] @ (x - fitted.x)


def halves(cases: Sequence[Case], own: Mask) -> list[Mask]:
    """Masks of every other group of competing rows of a source, and of the rest."""
    groups = {case.choice_group: None for case, is_own in zip(cases, own, strict=True) if is_own}
    order = {group: place for place, group in enumerate(sorted(groups, key=str))}
    place = np.array([order.get(case.choice_group, -1) for case in cases])
    parts: list[Mask] = [own & (place % 2 == half) for half in (0, 1)]
    return [part for part in parts if part.any()]


def _is(sources: Sequence[str], name: str) -> Mask:
    return np.array([source == name for source in sources])
