"""What an objective says about a strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, cast

VALUE = "value"
"""Name of the metric of an objective that returns a bare number."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of one strategy. Infeasible is an answer, with a reason and whatever metrics
    there are.
    """

    metrics: Mapping[str, float]
    feasible: bool = True
    reason: str | None = None
    """Why the strategy is not feasible."""
    violation: float = 0.0
    """How far from feasible, as a fraction of the limit: 0.25 is a quarter more memory than
    there is.
    """
    failed: bool = field(default=False, kw_only=True)
    """Whether evaluating went wrong, so that nothing is known about the strategy."""

    @classmethod
    def failure(cls, reason: str) -> Evaluation:
        """Of a trial that raised, timed out or gave something that is no number."""
        return cls({}, feasible=False, reason=reason, failed=True)


def as_evaluation(raw: object) -> Evaluation:
    """What an objective returned (a number, numbers by name, or an `Evaluation`) as one."""
    if isinstance(raw, Evaluation):
        measured = _from_mapping(raw.metrics)
        return measured if measured.failed else replace(raw, metrics=measured.metrics)
    if isinstance(raw, Mapping):
        return _from_mapping(cast("Mapping[Any, Any]", raw))
    if isinstance(raw, Real) and math.isfinite(raw):
        return Evaluation({VALUE: float(raw)})
    if isinstance(raw, Real):
        return Evaluation.failure(f"the objective returned {raw}")
    return Evaluation.failure(
        f"the objective returned {type(raw).__name__} {raw!r:.60}; expected a number, a dict of "
        "numbers or an Evaluation"
    )


def _from_mapping(raw: Mapping[Any, Any]) -> Evaluation:
    wrong = [name for name, value in raw.items() if not isinstance(value, Real)]
    if wrong:
        return Evaluation.failure(
            f"the objective's {wrong[0]!r} is {raw[wrong[0]]!r:.60}; expected a number"
        )
    return Evaluation({str(name): float(value) for name, value in raw.items()})


def finite(value: float | None) -> bool:
    """Whether `value` is a number that can be compared."""
    return value is not None and math.isfinite(value)
