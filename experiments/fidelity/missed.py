"""What targets are missed by, what the residuals follow, and what factors chosen in hindsight would
leave: the least that a constant could reach if it were fitted to the very rows it is judged on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from autotune.calibration.spreads import RowResidual
from autotune.validation import Case

__all__ = ["MISSED_BY", "by_source", "hindsight", "mean_size", "missed"]

MISSED_BY: Mapping[str, Callable[[Case], float]] = {
    "nodes": lambda case: case.nodes,
    "microbatches": lambda case: case.strategy.microbatches,
    "samples per microbatch": lambda case: (
        case.batch_size / case.strategy.dp / case.strategy.microbatches
    ),
    "tp": lambda case: case.strategy.tp,
    "billions of parameters": lambda case: case.model.parameters / 1e9,
}
"""What residuals are told apart by; rows go together within a factor of the square root of 2."""


def missed(
    wanted: Mapping[str, float],
    mean_wanted: float,
    dense: Sequence[RowResidual],
    mixtures: Sequence[RowResidual],
    mixtures_wanted: float,
) -> list[str]:
    """The section of the report on targets that are missed, in Markdown.

    `wanted` are mean absolute relative errors by source of dense models, whose residuals `dense`
    are by constants that have not seen the source; `mixtures` are residuals of mixtures of experts.
    """
    own, experts = by_source(dense), by_source(mixtures)
    of_mean = {name: mean_size(rows) for name, rows in own.items()}
    targets = [
        *((name, own[name], most) for name, most in wanted.items() if name in own),
        *((f"{name}, mixtures", rows, mixtures_wanted) for name, rows in experts.items()),
    ]
    lines = [
        "## Targets that are missed",
        "",
        "A factor in hindsight multiplies all predictions of the rows named, and is the one that",
        "makes their mean error least: no constant that acts on these rows alike could do better,",
        "whatever it stood for. What is left then differs within rows that are alike. What this",
        "shows, source by source, is in [README.md](README.md).",
        "",
    ]
    if fmean(of_mean.values()) > mean_wanted:
        best = {name: hindsight(rows, lambda _: 0.0) for name, rows in own.items()}
        lines += _of_the_mean(of_mean, best, mean_wanted)
    for name, rows, most in targets:
        if mean_size(rows) > most:
            lines += _of_source(name, rows, most)
    return lines


def by_source(rows: Sequence[RowResidual]) -> dict[str, list[RowResidual]]:
    """Rows by source group."""
    found: dict[str, list[RowResidual]] = {}
    for each in rows:
        found.setdefault(each.case.row.group, []).append(each)
    return found


def mean_size(rows: Sequence[RowResidual]) -> float:
    """Mean absolute relative error."""
    return fmean(abs(math.expm1(each.value)) for each in rows)


def hindsight(rows: Sequence[RowResidual], key: Callable[[Case], float]) -> float:
    """Mean absolute relative error that is left if the rows of each key are multiplied by the
    factor that suits them best."""
    groups: dict[float, list[float]] = {}
    for each in rows:
        groups.setdefault(key(each.case), []).append(math.exp(each.value))
    left: list[float] = []
    for own in groups.values():
        factor = best_factor(own)
        left += [abs(factor * ratio - 1.0) for ratio in own]
    return fmean(left)


def best_factor(ratios: Sequence[float]) -> float:
    """The factor that makes the mean distance of the products from 1 least.

    That distance is piecewise linear in the factor, with corners where a product is 1.
    """
    return min(
        (1.0 / ratio for ratio in ratios),
        key=lambda factor: sum(abs(factor * ratio - 1.0) for ratio in ratios),
    )


def binned(of: Callable[[Case], float]) -> Callable[[Case], float]:
    """A size of a case, rounded to a power of two."""
    return lambda case: 2.0 ** round(math.log2(of(case)))


def _of_the_mean(
    errors: Mapping[str, float], best: Mapping[str, float], wanted: float
) -> list[str]:
    """Which sources the mean over sources owes its miss to."""
    mean = fmean(errors.values())
    ordered = sorted(errors, key=lambda name: -errors[name])

    def without(name: str) -> str:
        others = [error for other, error in errors.items() if other != name]
        return _share(fmean(others)) if others else "–"

    return [
        f"### The mean over dense sources: {_share(mean)} of {_share(wanted)}",
        "",
        f"With a factor of its own for each source in hindsight {_share(fmean(best.values()))};",
        f"half of the sources are off by less than {_share(median(errors.values()))}.",
        "",
        "| source | error | with a factor in hindsight | the mean of the others |",
        "|---|---|---|---|",
        *(
            f"| {name} | {_share(errors[name])} | {_share(best[name])} | {without(name)} |"
            for name in ordered
        ),
        "",
    ]


def _of_source(name: str, rows: Sequence[RowResidual], wanted: float) -> list[str]:
    """What a source's residuals depend on, and what factors would leave."""
    left = {
        "one factor for the source": hindsight(rows, lambda _: 0.0),
        **{f"one by {what}": hindsight(rows, binned(of)) for what, of in MISSED_BY.items()},
    }
    return [
        f"### {name}: {_share(mean_size(rows))} of {_share(wanted)}",
        "",
        "| factors in hindsight | error left |",
        "|---|---|",
        *(f"| {what} | {_share(value)} |" for what, value in left.items()),
        "",
        "| by | about | rows | bias | error |",
        "|---|---|---|---|---|",
        *(line for what, of in MISSED_BY.items() for line in _bins(what, rows, of)),
        "",
    ]


def _bins(what: str, rows: Sequence[RowResidual], of: Callable[[Case], float]) -> list[str]:
    bins: dict[float, list[RowResidual]] = {}
    for each in rows:
        bins.setdefault(binned(of)(each.case), []).append(each)
    return [
        f"| {what} | {middle:g} | {len(own)} "
        f"| {_share(fmean(math.expm1(each.value) for each in own))} | {_share(mean_size(own))} |"
        for middle, own in sorted(bins.items())
    ]


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
