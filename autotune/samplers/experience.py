"""What trials said about expectations, as a value that can be kept and carried to another study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distir.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Observation:
    """One trial beside what was expected of it. Ratios say the same of another model or cluster,
    where seconds and bytes do not."""

    strategy: Strategy
    samples: int
    """In a microbatch of one replica."""
    log_ratio: float | None
    """Logarithm of the cost found over the one expected; None if none was found."""
    log_fill: float
    """Logarithm of the memory expected over what there is."""
    ran: bool | None
    """Whether the memory was enough; None if that was not learned."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "strategy": self.strategy.to_dict(),
            "samples": self.samples,
            "log_ratio": self.log_ratio,
            "log_fill": self.log_fill,
            "ran": self.ran,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Observation:
        """The inverse of `to_dict`."""
        others = {name: value for name, value in plain.items() if name != "strategy"}
        return cls(Strategy.from_dict(plain["strategy"]), **others)


Experience = tuple[Observation, ...]
"""All that a study has learned, in the order of its trials."""


def experience_of(plain: Iterable[Mapping[str, Any]]) -> Experience:
    """From plain JSON values."""
    return tuple(Observation.from_dict(each) for each in plain)


__all__ = ["Experience", "Observation", "experience_of"]
