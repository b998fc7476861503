"""How far predicted times are from measured ones, and which differences between plans mean nothing.

Three effects, independent of each other: the hardware (its generation may hold less of its
datasheet than the fit knows), the source (release, settings and neighbours that no description
tells), and the repetition (the same run again). All plans on one system share the first two, so
that they shift every prediction alike and leave the order; what two plans do not share is the
repetition of each.
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
        """Of one time: two runs in three lie within it."""
        return math.hypot(self.hardware, self.source, self.repeat)

    @property
    def between_plans(self) -> float:
        """Of the ratio of two times on the same system."""
        return math.sqrt(2.0) * self.repeat

    def interval(self, seconds: float) -> tuple[float, float]:
        """The least and the most that two runs in three take, a prediction given."""
        return seconds / (1.0 + self.relative), seconds * (1.0 + self.relative)

    def separates(self, first: float, second: float) -> bool:
        """Whether two plans' times (or rates) differ by more than two like runs do."""
        return abs(math.log(first / second)) >= math.log1p(self.between_plans)

    def to_dict(self, seconds: float) -> dict[str, Any]:
        """Plain JSON values, for a predicted time."""
        return {
            "relative": self.relative,
            "between_plans": self.between_plans,
            "iteration_seconds": list(self.interval(seconds)),
        }
