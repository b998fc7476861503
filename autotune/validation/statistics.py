"""How near predictions come to measurements. Pure functions of numbers; None where undefined."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

__all__ = [
    "Choice",
    "Statistics",
    "mean_or_none",
    "precision_of",
    "ranks",
    "recall_of",
    "regret_of",
    "spearman",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The figures of a table's row. Fractions; None where there is nothing to tell them from."""

    rows_used: int
    rows_excluded: dict[str, int] = field(default_factory=dict[str, int])
    """Count by reason."""
    mape: float | None
    """Mean of |predicted / measured − 1| over the rows with a time."""
    median_ape: float | None
    bias: float | None
    """Mean of predicted / measured − 1: below 0, predictions are too fast."""
    spearman: float | None
    """Rank correlation of predicted and measured seconds."""
    band_coverage: float | None
    """The share of rows whose measured seconds lie in the band of the prediction."""
    band95_coverage: float | None
    """The same of the wider band, of nineteen runs in twenty."""
    regret: float | None
    """How much slower the configuration with the best prediction is than the best measured, mean
    over groups of rows that compete."""
    memory_mape: float | None
    oom_rows: int
    """Rows that out of memory is judged on: those that say themselves what is recomputed, and what
    is sharded where something can be. Of another row that did not fit, or did, nothing is learned
    about the simulator: what was assumed of it decides."""
    oom_recall: float | None
    """Of the runs that ran out of memory, the fraction that was foreseen."""
    oom_precision: float | None
    """Of the runs foreseen to run out of memory, the fraction that did."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Choice:
    """One configuration that competes with those of equal `group`."""

    group: Hashable
    predicted: float
    measured: float


def mean_or_none(values: Iterable[float]) -> float | None:
    """The mean, or None of nothing."""
    listed = list(values)
    return fmean(listed) if listed else None


def median_or_none(values: Iterable[float]) -> float | None:
    """The median, or None of nothing."""
    listed = list(values)
    return median(listed) if listed else None


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in range(start, end + 1):
            found[order[position]] = 1 + (start + end) / 2
        start = end + 1
    return found


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Correlation of ranks (Spearman 1904); None for fewer than three, or where all are equal."""
    if len(first) < 3:
        return None
    a, b = ranks(first), ranks(second)
    mean = (len(first) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    variances = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return covariance / variances**0.5 if variances else None


def regret_of(choices: Iterable[Choice]) -> float | None:
    """Mean over groups of at least two of `measured time of the choice / best measured − 1`.

    The choice is the least predicted time; where several are predicted alike, their mean counts.
    """
    groups: dict[Hashable, list[Choice]] = {}
    for choice in choices:
        groups.setdefault(choice.group, []).append(choice)
    return mean_or_none(_regret(group) for group in groups.values() if len(group) > 1)


def _regret(group: Sequence[Choice]) -> float:
    least = min(choice.predicted for choice in group)
    chosen = fmean(c.measured for c in group if c.predicted <= least * (1 + 1e-9))
    return chosen / min(choice.measured for choice in group) - 1.0


def recall_of(happened: Sequence[bool], foreseen: Sequence[bool]) -> float | None:
    """Of what happened, the fraction foreseen."""
    return mean_or_none(float(f) for h, f in zip(happened, foreseen, strict=True) if h)


def precision_of(happened: Sequence[bool], foreseen: Sequence[bool]) -> float | None:
    """Of what was foreseen, the fraction that happened, also where nothing did; None where nothing
    was foreseen."""
    return mean_or_none(float(h) for h, f in zip(happened, foreseen, strict=True) if f)
