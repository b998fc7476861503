"""Fits what the rows can tell, refuses the rest, and judges the fit on what it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.calibration.constants import Constant, known_constants
from autotune.calibration.fit import Fitted, fit, row_weights
from autotune.calibration.folds import Unseen, leave_sources_out, pinning_source
from autotune.calibration.pricing import Priced, Vector, jacobian, log_ratios, price
from autotune.calibration.spreads import RowResidual, spreads_of
from autotune.validation.cases import Case
from autotune.validation.statistics import Choice, mean_or_none, regret_of
from distir.errors import DistirError

__all__ = ["Calibration", "ConstantFit", "SourceFit", "calibrate", "calibrate_priced"]

IDENTIFIED = 0.3
"""By which fraction the rows must narrow a prior for its constant to be fitted."""

HALF_WIDTH = 1.645
"""Standard deviations either side of an interval that holds nine tenths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantFit:
    """One constant: fitted, or kept where the rows cannot tell it."""

    name: str
    value: float
    prior: float
    because: str
    """The reason for the prior's value."""
    fitted: bool
    interval: tuple[float, float] | None
    """The interval that holds the constant with a probability of 0.9, given rows and prior."""
    without_sources: tuple[float, float] | None
    """The smallest and the largest value fitted when one source is left out."""
    identified: float
    """By which fraction the rows narrow the prior's standard deviation."""
    pinned_by: str | None
    """The one source that determines the constant, if there is such a source."""
    told_by: dict[str, float]
    """Each source's share of the information about the constant, the largest first."""
    rows: tuple[str, ...]
    """The rows with most information about the constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFit:
    """The errors of one source, by constants fitted with it and by constants fitted without it."""

    rows: int
    mape: float
    bias: float
    regret: float | None
    unseen_mape: float
    unseen_bias: float
    unseen_regret: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `autotune calibrate` finds."""

    constants: tuple[ConstantFit, ...]
    sources: dict[str, SourceFit]
    cases: tuple[Case, ...]
    residuals: Vector
    """Logarithm of predicted over measured, row by row."""
    unseen: Vector
    """Logarithm of predicted over measured, row by row, by constants fitted without the row's
    source."""
    fitted: Fitted
    """Where the fit ended."""

    @property
    def mean_mape(self) -> float:
        """Mean of the sources' mean errors."""
        return float(np.mean([each.mape for each in self.sources.values()]))

    @property
    def mean_unseen_mape(self) -> float:
        """Mean of the sources' mean errors, each by constants that have not seen it."""
        return float(np.mean([each.unseen_mape for each in self.sources.values()]))

    @property
    def residuals_unseen(self) -> list[RowResidual]:
        """Row by row, what constants that were fitted without the row's source are off by."""
        return [
            RowResidual(case, float(value))
            for case, value in zip(self.cases, self.unseen, strict=True)
        ]

    @property
    def source_spread(self) -> float:
        """How far sources as a whole are off: root mean square of their mean errors, by constants
        that have not seen them."""
        return spreads_of(self.residuals_unseen, ()).source

    @property
    def values(self) -> dict[str, float]:
        """All constants by name."""
        return {each.name: each.value for each in self.constants}

    @property
    def of_software(self) -> dict[str, float]:
        """The constants of software by name; the others belong to devices."""
        return {name: value for name, value in self.values.items() if ":" not in name}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        from dataclasses import asdict

        return {
            "constants": {each.name: asdict(each) for each in self.constants},
            "sources": {name: asdict(each) for name, each in self.sources.items()},
            "mean_mape": self.mean_mape,
            "mean_unseen_mape": self.mean_unseen_mape,
            "source_spread": self.source_spread,
        }


def calibrate(
    cases: Sequence[Case],
    constants: Sequence[Constant] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Fits the constants that the cases determine; raises `DistirError` if they determine none."""
    timed = [case for case in cases if case.measured.seconds is not None]
    return calibrate_priced(price(timed, progress)[0], constants, progress)


def calibrate_priced(
    rows: Sequence[Priced],
    constants: Sequence[Constant] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """`calibrate` for cases that have a measured time and are planned already."""
    if not rows:
        raise DistirError("no row has a measured time that can be predicted: nothing to fit to")
    asked = known_constants() if constants is None else tuple(constants)
    fitted, told, chosen = _fit_what_is_told(rows, asked, progress)
    if not chosen:
        raise DistirError(
            "the rows tell none of the constants "
            f"{', '.join(each.name for each in asked)}: they hardly depend on them; expected "
            "runs of more kinds"
        )
    own = [row.case for row in rows]
    unseen = leave_sources_out(fitted, own)
    return Calibration(
        tuple(_constant_fit(each, fitted, told, chosen, own, unseen) for each in asked),
        _source_fits(own, fitted.residuals, unseen.residuals),
        tuple(own),
        fitted.residuals,
        unseen.residuals,
        fitted,
    )


def _fit_what_is_told(
    rows: Sequence[Priced], asked: Sequence[Constant], progress: Callable[[str], None]
) -> tuple[Fitted, dict[str, float], list[Constant]]:
    """Fits, drops the constant that the rows determine least, and fits again until all are
    determined."""
    chosen = list(asked)
    told: dict[str, float] = {}
    start = np.zeros(len(chosen))
    while True:
        fitted = _fit(rows, chosen, asked, start, progress)
        identified = fitted.identified
        told.update({each.name: float(by) for each, by in zip(chosen, identified, strict=True)})
        kept = [index for index, by in enumerate(identified) if by >= IDENTIFIED]
        if len(kept) == len(chosen) or not kept:
            return fitted, told, chosen if kept else []
        progress("not told: " + ", ".join(c.name for c in chosen if told[c.name] < IDENTIFIED))
        chosen, start = [chosen[index] for index in kept], fitted.x[kept]


def _fit(
    rows: Sequence[Priced],
    chosen: Sequence[Constant],
    asked: Sequence[Constant],
    start: Vector,
    progress: Callable[[str], None],
) -> Fitted:
    kept = {each.name: each.prior for each in asked}

    def values(x: Vector) -> Mapping[str, float]:
        moved = {
            each.name: each.prior * math.exp(float(by)) for each, by in zip(chosen, x, strict=True)
        }
        return {**kept, **moved}

    return fit(
        lambda x: log_ratios(rows, values(x)),
        lambda x, at: jacobian(rows, chosen, values(x), at),
        row_weights([row.case for row in rows]),
        np.array([each.spread for each in chosen]),
        start,
        progress,
        _limits_of(chosen),
    )


def _limits_of(chosen: Sequence[Constant]) -> tuple[Vector, Vector]:
    """The least and the largest logarithm of each constant relative to its prior."""
    ends = np.array([each.limits for each in chosen]).reshape(-1, 2)
    priors = np.array([each.prior for each in chosen])
    with np.errstate(divide="ignore"):  # 0 has a logarithm of minus infinity
        least, most = np.log(ends.T / priors)
    return least, most


def _constant_fit(
    constant: Constant,
    fitted: Fitted,
    told: Mapping[str, float],
    chosen: Sequence[Constant],
    cases: Sequence[Case],
    unseen: Unseen,
) -> ConstantFit:
    if constant not in chosen:
        return ConstantFit(
            name=constant.name,
            value=constant.prior,
            prior=constant.prior,
            because=constant.because,
            fitted=False,
            interval=None,
            without_sources=None,
            identified=told[constant.name],
            pinned_by=None,
            told_by={},
            rows=(),
        )
    column = list(chosen).index(constant)
    sources = [case.row.group for case in cases]
    middle, deviation = fitted.x[column], math.sqrt(fitted.covariance[column, column])
    others = [constant.prior * math.exp(float(x[column])) for x in unseen.fits.values()]
    information = fitted.information[:, column]
    by_source: dict[str, float] = {}
    for source, amount in zip(sources, information, strict=True):
        by_source[source] = by_source.get(source, 0.0) + float(amount)
    total = sum(by_source.values()) or 1.0
    shares = sorted(by_source.items(), key=lambda item: -item[1])
    best = np.argsort(-information)[:3]
    low, high = (
        constant.prior * math.exp(float(middle + deviations * deviation))
        for deviations in (-HALF_WIDTH, HALF_WIDTH)
    )
    least, most = constant.limits
    return ConstantFit(
        name=constant.name,
        value=constant.prior * math.exp(float(middle)),
        prior=constant.prior,
        because=constant.because,
        fitted=True,
        interval=(max(low, least), min(high, most)),
        without_sources=(min(others), max(others)),
        identified=told[constant.name],
        pinned_by=pinning_source(fitted, sources, column),
        told_by={name: amount / total for name, amount in shares if amount > 0.01 * total},
        rows=tuple(cases[int(index)].row.id for index in best),
    )


def _source_fits(cases: Sequence[Case], residuals: Vector, unseen: Vector) -> dict[str, SourceFit]:
    found: dict[str, SourceFit] = {}
    for source in sorted({case.row.group for case in cases}):
        own = [index for index, case in enumerate(cases) if case.row.group == source]
        seen, other = (_errors(cases, each, own) for each in (residuals, unseen))
        found[source] = SourceFit(
            rows=len(own),
            mape=seen[0],
            bias=seen[1],
            regret=seen[2],
            unseen_mape=other[0],
            unseen_bias=other[1],
            unseen_regret=other[2],
        )
    return found


def _errors(
    cases: Sequence[Case], residuals: Vector, own: Sequence[int]
) -> tuple[float, float, float | None]:
    """Mean error, bias and regret of some rows."""
    errors = [math.expm1(float(residuals[index])) for index in own]
    choices = [
        Choice(cases[index].choice_group, (1 + error) * measured, measured)
        for index, error in zip(own, errors, strict=True)
        for measured in [cases[index].measured.seconds or math.nan]
    ]
    mape = mean_or_none(abs(error) for error in errors) or 0.0
    return mape, mean_or_none(errors) or 0.0, regret_of(choices)
