"""How far predictions are off beyond the sizes that constants and bands were told by.

Rows are cut by a size, at its quartiles, to which every source counts alike. Constants and bands
are made of the smaller rows alone, without the source that is judged, and the larger rows are
predicted with them. A row that is d
doublings beyond the cut has the band of the smaller ones and, on top of it, a deviation that grows
with the square root of d. The spread is what that needs per doubling for the larger rows of all
cuts to lie in their bands as often as claimed. It is 0 where they do so as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.calibration.fit import Fitted, row_weights
from autotune.calibration.folds import fit_to, residuals_by
from autotune.calibration.pricing import Mask, Vector
from autotune.calibration.spreads import (
    CENTRAL,
    NEARLY_ALL,
    RowResidual,
    by_source,
    mean_error,
    share_quantile,
    spreads_of,
)
from autotune.validation.cases import Case
from distir.cost.band import doublings_beyond

__all__ = ["SIZES_OF", "Extrapolation", "beyond_the_data"]

SIZES_OF: Mapping[str, Callable[[Case], float]] = {
    "devices": lambda case: case.strategy.devices,
    "nodes": lambda case: case.nodes,
    "parameters": lambda case: case.model.parameters,
    "sequence": lambda case: case.sequence_length,
}
"""By name of a size, as `distir.cost.band.SIZES` has them: that of a row."""

CUTS = (0.25, 0.5, 0.75)
"""Shares of rows that are on the smaller side of a cut, by their weights in the fit."""
FEWEST_SOURCES = 3
"""Sources that either side of a cut has at least: fewer tell of themselves alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """What rows that are larger than those of the fit are off by."""

    cuts: tuple[float, ...]
    """Sizes at which rows are cut."""
    rows: int
    """Larger rows, of all cuts."""
    error_within: float
    """Mean absolute relative error of the smaller rows, mean over sources and cuts."""
    error_beyond: float
    """The same of the larger ones."""
    spread: float
    """The deviation per doubling that is added in a band."""


@dataclass(frozen=True, slots=True)
class _Beyond:
    """A larger row: its residual, the band of the smaller rows, and how far beyond it is."""

    residual: RowResidual
    deviation: float
    width: float
    width95: float
    doublings: float

    def needed(self, share: float) -> float:
        """The deviation per doubling with which the row just lies in its band."""
        width = self.width if share == CENTRAL else self.width95
        total = math.expm1(abs(self.residual.value)) / width
        return math.sqrt(max(0.0, total**2 - self.deviation**2) / self.doublings)


def beyond_the_data(fitted: Fitted, cases: Sequence[Case]) -> dict[str, Extrapolation]:
    """By size of `SIZES_OF`; sizes that leave no sources on a side of any cut are not there."""
    found: dict[str, Extrapolation] = {}
    weights = row_weights(cases)
    for name, size_of in SIZES_OF.items():
        sizes = np.array([size_of(case) for case in cases], np.float64)
        judged = [_judged(fitted, cases, sizes, cut) for cut in _cuts(sizes, weights)]
        told = [each for each in judged if each is not None]
        if told:
            beyond = [row for each in told for row in each.beyond]
            own = [each.residual for each in beyond]
            found[name] = Extrapolation(
                cuts=tuple(each.cut for each in told),
                rows=len(beyond),
                error_within=float(np.mean([each.error_within for each in told])),
                error_beyond=float(np.mean([each.error_beyond for each in told])),
                spread=max(
                    share_quantile(own, [row.needed(share) for row in beyond], share)
                    for share in (CENTRAL, NEARLY_ALL)
                ),
            )
    return found


def _cuts(sizes: Vector, weights: Vector) -> list[float]:
    """The sizes at the quartiles of weighted rows, each once, without the largest."""
    order = np.argsort(sizes)
    ends: Vector = np.cumsum(weights[order])
    wanted: Vector = np.array(CUTS) * ends[-1] * (1 - 1e-9)  # sums are rounded
    found = sizes[order[ends.searchsorted(wanted)]]
    return sorted({float(size) for size in found} - {float(sizes.max())})


@dataclass(frozen=True, slots=True)
class _Cut:
    cut: float
    error_within: float
    error_beyond: float
    beyond: list[_Beyond]


def _judged(fitted: Fitted, cases: Sequence[Case], sizes: Vector, cut: float) -> _Cut | None:
    """Larger rows as the smaller ones foretell them; None where either has few sources."""
    small = sizes <= cut
    unseen = _unseen(fitted, cases, small)
    rows = [RowResidual(case, float(value)) for case, value in zip(cases, unseen, strict=True)]
    near = [row for row, is_small in zip(rows, small, strict=True) if is_small]
    far = [
        (row, float(size))
        for row, is_small, size in zip(rows, small, sizes, strict=True)
        if not is_small and not row.case.stated_spread
    ]
    beyond = [row for row, _ in far]
    if min(len(by_source(near)), len(by_source(beyond))) < FEWEST_SOURCES:
        return None
    band = spreads_of(near, ())
    return _Cut(
        cut,
        mean_error(near),
        mean_error(beyond),
        [
            _Beyond(
                row,
                math.hypot(band.deviation, row.hardware),
                band.width,
                band.width95,
                doublings_beyond(size, cut),
            )
            for row, size in far
        ],
    )


def _unseen(fitted: Fitted, cases: Sequence[Case], small: Mask) -> Vector:
    """Residuals by constants fitted to the smaller rows of other sources."""
    sources = np.array([case.row.group for case in cases])
    residuals = fitted.residuals.copy()
    for source in dict.fromkeys(sources.tolist()):
        own = sources == source
        residuals[own] = residuals_by(fitted, fit_to(fitted, cases, small & ~own), own)
    return residuals
