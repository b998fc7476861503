"""How far measured times may be from predicted ones, and which differences between plans are noise.

A prediction is off for three independent reasons: the hardware (a generation may sustain less of
its datasheet than the fit knows), the source (software releases, settings and other jobs on the
network that no description mentions), and repetition (the same run takes a different time again).
All plans on one system share the first two, which therefore shift all predictions alike and do not
change their order. Only repetition is independent for every plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["Band"]


@dataclass(frozen=True, slots=True)
class Band:
    """Relative standard deviations of measured times from predicted ones."""

    hardware: float = 0.0
    source: float = 0.0
    repeat: float = 0.0

    @property
    def relative(self) -> float:
        """The deviation of one time from its prediction: two runs in three lie within it."""
        return math.hypot(self.hardware, self.source, self.repeat)

    @property
    def between_plans(self) -> float:
        """The deviation of the ratio of two plans' times on the same system."""
        return math.sqrt(2.0) * self.repeat

    def interval(self, seconds: float) -> tuple[float, float]:
        """Bounds, in seconds, between which two runs in three lie, for a predicted time."""
        return seconds / (1.0 + self.relative), seconds * (1.0 + self.relative)

    def separates(self, first: float, second: float) -> bool:
        """Whether two plans' times (or rates) differ by more than two runs of one plan do."""
        return abs(math.log(first / second)) >= math.log1p(self.between_plans)

    def to_dict(self, seconds: float) -> dict[str, Any]:
        """The band as plain JSON values, for a predicted time."""
        return {
            "relative": self.relative,
            "between_plans": self.between_plans,
            "iteration_seconds": list(self.interval(seconds)),
        }
