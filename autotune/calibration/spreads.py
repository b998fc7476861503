"""How far predictions are off, taken apart: by source, by layout, by schedule and microbatches.

Residuals are logarithms of predicted over measured seconds, by constants that have not seen the
row's source. Every source counts alike. A component needs rows that share everything else: the mean
of a source tells what its rows share, rows of one problem with different layouts tell the layout's
part, and rows that differ in schedule and microbatches alone tell the rest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.calibration.fit import ROWS_PER_SOURCE
from autotune.validation.cases import Case
from distir.cost import Band

__all__ = [
    "CENTRAL",
    "NEARLY_ALL",
    "RowResidual",
    "by_source",
    "coverage",
    "mean_error",
    "share_quantile",
    "spreads_of",
]

CENTRAL, NEARLY_ALL = 0.68, 0.95
"""The shares of runs within a band, and within its wider one: those of one and of two standard
deviations of a normal distribution."""


@dataclass(frozen=True, slots=True)
class RowResidual:
    """The logarithm of predicted over measured seconds of a row."""

    case: Case
    value: float

    @property
    def hardware(self) -> float:
        """The part of its band that the device's data state."""
        return self.case.hardware.cluster.device.rate_spread


def spreads_of(
    dense: Sequence[RowResidual],
    mixtures: Sequence[RowResidual],
    unknown: Sequence[RowResidual] = (),
) -> Band:
    """The band of residuals, without the part of the hardware: all of its deviations, and its
    widths such that the mean of sources has the shares `CENTRAL` and `NEARLY_ALL` within them.
    `unknown` are residuals of rows that do not say which software they were measured with.

    Sources that say themselves that their times may be off tell nothing of it.
    """
    own = [each for each in dense if not each.case.stated_spread]
    layouts, plans = _within(own, _layout), _within(own, lambda case: case.row.id)
    band = Band(
        source=_root_mean_square(fmean(values) for values in by_source(own).values()),
        layout=math.sqrt(layouts),
        repeat=math.sqrt(plans),
    )
    width, width95 = (
        _quantile(own, lambda each: _of_row(band, each).deviation, share)
        for share in (CENTRAL, NEARLY_ALL)
    )
    band = replace(band, width=width, width95=max(width, width95))
    told = [each for each in mixtures if each.case.dispatcher_known]
    silent = [each for each in mixtures if not each.case.dispatcher_known]
    band = replace(band, model=_added(told or silent, band))
    if told:
        band = replace(band, dispatcher=_added(silent, band))
    doubtless = [each for each in unknown if not each.case.stated_spread]
    return replace(band, software=_added(doubtless, band))


def _added(residuals: Sequence[RowResidual], band: Band) -> float:
    """What is added to the band's deviation of some rows, so that both shares of them lie within
    its widths. Few sources tell it, so they weigh what they weigh in the fit: the rows they have,
    up to `ROWS_PER_SOURCE`."""
    if not residuals:
        return 0.0
    weights = _weights(residuals, ROWS_PER_SOURCE)
    shared = sum(
        weight * _of_row(band, each).deviation ** 2
        for weight, each in zip(weights, residuals, strict=True)
    )
    errors = [math.expm1(abs(each.value)) for each in residuals]
    needed = [
        _weighted_quantile(errors, weights, share) / width
        for share, width in ((CENTRAL, band.width), (NEARLY_ALL, band.width95))
    ]
    return math.sqrt(max(0.0, max(needed) ** 2 - shared))


def coverage(residuals: Iterable[RowResidual], band: Band, *, wide: bool) -> dict[str, float]:
    """By source: the share of rows within the band, or within its wider one."""
    inside: dict[str, list[float]] = defaultdict(list)
    for each in residuals:
        own = _of_row(band, each)
        within = own.deviation * (own.width95 if wide else own.width)
        inside[each.case.row.group].append(float(abs(each.value) <= math.log1p(within)))
    return {source: fmean(found) for source, found in inside.items()}


def _of_row(band: Band, each: RowResidual) -> Band:
    """The parts of a band that a row has, by what is known of it."""
    case = each.case
    silent = case.experts and not case.dispatcher_known
    return replace(
        band,
        hardware=each.hardware,
        model=band.model if case.experts else 0.0,
        dispatcher=band.dispatcher if silent else 0.0,
        software=0.0 if case.software_known else band.software,
    )


def _quantile(
    residuals: Sequence[RowResidual], unit: Callable[[RowResidual], float], share: float
) -> float:
    """The relative error, in `unit`, that the mean of sources has this share of its rows within:
    the quantile of the rows, each with its source's weight."""
    ratios = [math.expm1(abs(each.value)) / unit(each) for each in residuals]
    return share_quantile(residuals, ratios, share) if residuals else 1.0


def share_quantile(
    residuals: Sequence[RowResidual], values: Sequence[float], share: float
) -> float:
    """The smallest of the rows' values that the mean of sources has this share of its rows at or
    below."""
    return _weighted_quantile(values, _weights(residuals, 1), share)


def _weights(residuals: Sequence[RowResidual], most: int) -> list[float]:
    """The weights of rows, 1 in all, where a source counts as the rows it has, up to `most`."""
    counts = {source: len(own) for source, own in by_source(residuals).items()}
    whole = sum(min(most, count) for count in counts.values())
    sources = [each.case.row.group for each in residuals]
    return [min(most, counts[source]) / counts[source] / whole for source in sources]


def _weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The smallest of the values at or below which are values of this weight."""
    passed = 0.0
    ordered = sorted(zip(values, weights, strict=True))
    for value, weight in ordered:
        passed += weight
        if passed >= share:
            return value
    return ordered[-1][0]


def mean_error(residuals: Iterable[RowResidual]) -> float:
    """Mean over sources of their rows' mean absolute relative errors."""
    return _mean_of_sources(residuals, lambda each: abs(math.expm1(each.value)))


def _within(residuals: Sequence[RowResidual], part: Callable[[Case], Hashable]) -> float:
    """Mean over sources of the variance between the parts of a group of rows that share all else:
    layouts of a problem, or rows of a layout."""
    outer = _layout if part is not _layout else _problem
    variances: dict[str, list[tuple[float, int]]] = defaultdict(list)
    groups: dict[Hashable, dict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in residuals:
        groups[outer(each.case)][part(each.case)].append(each.value)
    sources = {outer(each.case): each.case.row.group for each in residuals}
    for group, parts in groups.items():
        means = [fmean(values) for values in parts.values()]
        if len(means) > 1:
            middle = fmean(means)
            freedom = len(means) - 1
            total = sum((mean - middle) ** 2 for mean in means)
            variances[sources[group]].append((total, freedom))
    found = [
        sum(total for total, _ in own) / sum(freedom for _, freedom in own)
        for own in variances.values()
    ]
    return fmean(found) if found else 0.0


def _problem(case: Case) -> Hashable:
    return (*case.choice_group, case.software.name, case.precision)


def _layout(case: Case) -> Hashable:
    strategy = replace(case.strategy, schedule="1f1b", chunks=1, microbatches=1)
    return _problem(case), strategy


def by_source(residuals: Iterable[RowResidual]) -> Mapping[str, list[float]]:
    """The residuals of every source."""
    found: dict[str, list[float]] = defaultdict(list)
    for each in residuals:
        found[each.case.row.group].append(each.value)
    return found


def _mean_of_sources(residuals: Iterable[RowResidual], of: Callable[[RowResidual], float]) -> float:
    found: dict[str, list[float]] = defaultdict(list)
    for each in residuals:
        found[each.case.row.group].append(of(each))
    return fmean(fmean(values) for values in found.values()) if found else 0.0


def _root_mean_square(values: Iterable[float]) -> float:
    squares = [value**2 for value in values]
    return math.sqrt(fmean(squares)) if squares else 0.0
