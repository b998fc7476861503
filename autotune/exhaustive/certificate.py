"""What certified search says of a space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.exhaustive.collect import TIME
from autotune.objectives.costs import regret
from autotune.problem import Problem
from autotune.study.trial import Trial
from autotune.study.verdict import INTERRUPTED
from distir.units import counted

UNFIT = "does not fit"
"""What strategies are ruled out for that need more memory than there is."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The best of a space, and what became of all others."""

    space_size: int
    ranked: tuple[Trial, ...] = field(repr=False)
    """The best, best first: those that exhaustive search finds."""
    evaluated: int
    feasible: int
    ruled_out: Mapping[str, int]
    """Strategies that were not evaluated, by what rules them out."""
    bounds: int
    """Number of computed bounds."""
    seconds: float
    closest: Trial | None
    """Of the trials that do not fit, the one that misses by least: of those evaluated, and, where
    nothing fits, of some of those that bounds rule out, if that was asked for."""
    complete: bool = True
    """False if it ended early; then `bound` is all that is proved."""
    interrupted: bool = False
    bound: float | None = None
    """No strategy that was neither evaluated nor ruled out takes less than this, in seconds or
    bytes, whichever the objective is about; None where nothing is known of them, or none is left.
    """
    metric: str = TIME
    """What is bounded."""
    looked_at: int = 0
    """Strategies that a first look tried, for something good to compare with: also those of them
    that are ruled out then."""
    layouts: tuple[Trial, ...] = field(default=(), repr=False)
    """Of the evaluated trials the best of each layout, best first."""

    @property
    def too_large(self) -> Mapping[str, int]:
        """Strategies that were not evaluated because they do not fit, by what says so."""
        start = f"{UNFIT}: "
        return {
            said.removeprefix(start): count
            for said, count in self.ruled_out.items()
            if said.startswith(start)
        }

    @property
    def said_without_best(self) -> str:
        """The answer where there is no best."""
        return "Nothing fits." if self.complete else INTERRUPTED

    @property
    def best(self) -> Trial | None:
        """The best feasible trial."""
        return self.ranked[0] if self.ranked else None

    @property
    def proved(self) -> bool:
        """Whether nothing in the space is better than the best; what else was asked for may be left
        to be found."""
        return self.may_gain(self.best) == 0.0

    @property
    def rest(self) -> str:
        """What became of the strategies that were not evaluated, as the end of a sentence about
        those that were."""
        ruled_out = sum(self.ruled_out.values())
        look = f" after a first look at {self.looked_at:,}" if self.looked_at else ""
        by = f"ruled out by {counted(self.bounds, 'bound')}{look}"
        if self.evaluated + ruled_out < self.space_size:
            return f", {ruled_out:,} {by}, the others left"
        return f", the others {by}" if ruled_out else ""

    def summary(self, best: Trial | None, found: Trial | None, problem: Problem) -> dict[str, Any]:
        """The comparison with a study that found `found`, as plain JSON values; `best` is the best
        of all that is known."""
        lost = None
        if best is not None and found is not None and best.cost is not None:
            lost = None if found.cost is None else regret(found.cost, best.cost)
        return {
            "method": "certified",
            "complete": self.complete,
            "proved": self.may_gain(best) == 0.0,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "ruled_out": dict(self.ruled_out),
            "seconds": self.seconds,
            "best": problem.outcome(best) if best else None,
            "bound": self.bound,
            "may_gain": self.may_gain(best),
            "regret": lost,
            "rank": 1 if lost == 0 and self.may_gain(best) == 0.0 else None,
        }

    def may_gain(self, best: Trial | None) -> float | None:
        """The fraction of time (or memory) that the best of what is left might save at most
        against `best`; 0 once all is proved, None where nothing is known."""
        if self.complete:
            return 0.0
        if best is None or self.bound is None or self.metric not in best.evaluation.metrics:
            return None
        return max(0.0, 1 - self.bound / best.evaluation.metrics[self.metric])

    def to_dict(self, batch_size: int) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "space_size": self.space_size,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "seconds": self.seconds,
            "ranked": [trial.to_dict(batch_size) for trial in self.ranked],
            "certified": self.complete,
            "proved": self.proved,
            "interrupted": self.interrupted,
            "bound": self.bound,
            "ruled_out": dict(self.ruled_out),
            "bounds": self.bounds,
            "looked_at": self.looked_at,
        }
