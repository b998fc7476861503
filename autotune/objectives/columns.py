"""Evaluations of many strategies, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autotune.objectives.evaluation import Evaluation
from distir.arrays import Flags

MetricColumn = NDArray[np.float64]
"""One number per strategy."""


@dataclass(frozen=True, slots=True)
class Evaluations:
    """What an objective says of several strategies, in their order."""

    metrics: Mapping[str, MetricColumn]
    """By name; NaN where a metric was not measured."""
    feasible: Flags
    failed: Flags
    violation: MetricColumn
    """As in `Evaluation`."""
    reasons: Mapping[int, str] = field(default_factory=dict[int, str])
    """Why a strategy is not feasible, by position, as far as that is at hand."""

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation]) -> Evaluations:
        """Single evaluations side by side."""
        names = dict.fromkeys(name for each in evaluations for name in each.metrics)
        return cls(
            {
                name: _column(each.metrics.get(name, np.nan) for each in evaluations)
                for name in names
            },
            np.array([each.feasible for each in evaluations], np.bool_),
            np.array([each.failed for each in evaluations], np.bool_),
            _column(each.violation for each in evaluations),
            {at: each.reason for at, each in enumerate(evaluations) if each.reason is not None},
        )

    def __len__(self) -> int:
        return len(self.feasible)

    def __getitem__(self, index: int) -> Evaluation:
        values = {name: float(column[index]) for name, column in self.metrics.items()}
        return Evaluation(
            {name: value for name, value in values.items() if not np.isnan(value)},
            bool(self.feasible[index]),
            self.reasons.get(index),
            float(self.violation[index]),
            failed=bool(self.failed[index]),
        )


def _column(values: Iterable[float]) -> MetricColumn:
    return np.fromiter(values, np.float64)
