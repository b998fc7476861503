"""How far measured times may be from predicted ones, and which differences between plans are noise.

A prediction is off for independent reasons. All plans of a problem share most of them, which shift
all predictions alike and leave their order: the hardware (a generation may sustain less of its
datasheet than the fit knows), the source (software releases, settings and other jobs on the network
that no description mentions), the model (what mixtures of experts do beside products and exchanges
is known less well), its size, where no measured run was as large, and what nobody has said: which
software it is, how a mixture sends its tokens.
Two belong to a plan: how its layout suits kernels and links, and what changes with its schedule and
microbatches, repetition of the same run included.

Errors have heavier tails than a normal distribution. So each deviation is a root mean square, and
two widths say within how many of them two runs in three, and nineteen in twenty, lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["SIZES", "Band"]

SIZES: Mapping[str, str] = {
    "devices": "devices",
    "nodes": "nodes",
    "parameters": "parameters",
    "sequence": "tokens per sequence",
}
"""Sizes of a system and of a model beyond which less is known than within, in words."""


@dataclass(frozen=True, slots=True)
class Band:
    """Relative root mean square deviations of measured times from predicted ones."""

    hardware: float = 0.0
    source: float = 0.0
    model: float = 0.0
    software: float = 0.0
    """Where nobody says which software it is."""
    dispatcher: float = 0.0
    """Where the model is a mixture of experts and nobody says how its tokens are sent."""
    extrapolation: float = 0.0
    """Where the system or the model is larger than those of all measured runs."""
    layout: float = 0.0
    """Of plans with different layouts, beside what they share."""
    repeat: float = 0.0
    """Of plans that differ in schedule and microbatches alone, or that are run again."""
    width: float = 1.0
    """Two runs in three lie within this many deviations."""
    width95: float = 2.0
    """Nineteen runs in twenty lie within this many deviations."""
    beyond: str = ""
    """In words, in what the system or the model is larger than those of all measured runs."""

    @property
    def deviation(self) -> float:
        """The root mean square of all reasons together."""
        shared = self.hardware, self.source, self.model, self.software, self.dispatcher
        return math.hypot(*shared, self.extrapolation, self.layout, self.repeat)

    @property
    def relative(self) -> float:
        """Two runs in three are within this fraction of their prediction."""
        return self.width * self.deviation

    @property
    def between_plans(self) -> float:
        """The deviation of the ratio of two plans' times on the same system."""
        return math.sqrt(2.0) * math.hypot(self.layout, self.repeat)

    @property
    def between_like_plans(self) -> float:
        """`between_plans` of plans that differ in schedule and microbatches alone."""
        return math.sqrt(2.0) * self.repeat

    def interval(self, seconds: float) -> tuple[float, float]:
        """Bounds, in seconds, between which two runs in three lie, for a predicted time."""
        return _around(seconds, self.relative)

    def interval95(self, seconds: float) -> tuple[float, float]:
        """Bounds, in seconds, between which nineteen runs in twenty lie, for a predicted time."""
        return _around(seconds, self.width95 * self.deviation)

    def separates(self, first: float, second: float, *, alike: bool = False) -> bool:
        """Whether two plans' times (or rates) differ by more than such plans' errors do; `alike`:
        the plans differ in schedule and microbatches alone."""
        least = self.between_like_plans if alike else self.between_plans
        return abs(math.log(first / second)) >= math.log1p(least)

    def to_dict(self, seconds: float) -> dict[str, Any]:
        """The band as plain JSON values, for a predicted time."""
        return {
            "relative": self.relative,
            "between_plans": self.between_plans,
            "between_like_plans": self.between_like_plans,
            "extrapolation": self.extrapolation,
            **({"beyond": self.beyond} if self.beyond else {}),
            "iteration_seconds": list(self.interval(seconds)),
            "iteration_seconds_95": list(self.interval95(seconds)),
        }


def doublings_beyond(size: float, known: float) -> float:
    """How often what is known has to double to be as large; 0 where it is."""
    return math.log2(size / known) if size > known else 0.0


def extrapolated(
    sizes: Mapping[str, float], known: Mapping[str, float], spreads: Mapping[str, float]
) -> tuple[float, str]:
    """The deviation of sizes beyond the known ones, and these in words. Each doubling adds an error
    of its own, so the deviation grows with the square root of their number; sizes grow together, so
    the one that adds most counts. Sizes of which nothing is known are left out."""
    beyond = {
        name: doublings_beyond(size, known[name])
        for name, size in sizes.items()
        if size > known[name]
    }
    added = max((spreads[name] * math.sqrt(times) for name, times in beyond.items()), default=0.0)
    said = ", ".join(
        f"{sizes[name]:,.0f} {SIZES[name]} (of measured runs at most {known[name]:,.0f})"
        for name in beyond
    )
    return added, said


def _around(seconds: float, relative: float) -> tuple[float, float]:
    return seconds / (1.0 + relative), seconds * (1.0 + relative)
