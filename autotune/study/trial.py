"""A trial: one strategy, what the objective said of it, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from autotune.objectives.costs import regret
from autotune.objectives.evaluation import Evaluation, finite
from distir.metrics import peak_memory_bytes
from distir.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Trial:
    """One evaluated strategy."""

    number: int
    """Position in the study, from 0."""
    strategy: Strategy
    evaluation: Evaluation
    cost: float | None
    """The metric that counts, signed so that smaller is better; `None` if the trial failed."""
    started: float = 0.0
    """Seconds since the epoch."""
    seconds: float = 0.0
    """How long the evaluation took."""

    @property
    def feasible(self) -> bool:
        """Whether the strategy can be used."""
        return self.evaluation.feasible

    @property
    def failed(self) -> bool:
        """Whether evaluating went wrong."""
        return self.evaluation.failed

    @property
    def state(self) -> str:
        """`feasible`, `infeasible`, `pruned` or `failed`."""
        if self.evaluation.pruned:
            return "pruned"
        return "failed" if self.failed else "feasible" if self.feasible else "infeasible"

    @property
    def label(self) -> str:
        """The strategy's readable name."""
        return self.strategy.label

    def metric(self, name: str) -> float | None:
        """A metric by name, `None` where it was not measured."""
        return self.evaluation.metrics.get(name)

    def outcome(self, batch_size: int) -> dict[str, Any]:
        """Strategy and metrics as plain JSON values."""
        return {
            "strategy": choices(self.strategy, batch_size),
            "metrics": plain_metrics(self.evaluation),
        }

    def to_dict(self, batch_size: int) -> dict[str, Any]:
        """The trial as plain JSON values; what is not a finite number becomes null. What it has
        printed is there if it failed."""
        return {
            **self.outcome(batch_size),
            "feasible": self.feasible,
            "reason": self.evaluation.reason,
            **({"pruned": True} if self.evaluation.pruned else {}),
            **({"output": dict(self.evaluation.output)} if self.evaluation.output else {}),
        }


def choices(strategy: Strategy, batch_size: int) -> dict[str, Any]:
    """A strategy as plain JSON values, with what follows from it: the samples of a microbatch."""
    micro_batch = batch_size // (strategy.dp * strategy.microbatches)
    return {**strategy.to_dict(), "micro_batch": micro_batch}


def plain_metrics(evaluation: Evaluation) -> dict[str, float | None]:
    """Metrics with null for what JSON cannot say."""
    return {name: value if finite(value) else None for name, value in evaluation.metrics.items()}


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Feasible trials, best first; of equals, first the one that needs less memory, and then the
    one that was given first: searches number their trials each for itself."""
    usable = [trial for trial in trials if trial.feasible and trial.cost is not None]
    return sorted(usable, key=worth)


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """The best feasible trial, the first of `ranked`."""
    usable = (trial for trial in trials if trial.feasible and trial.cost is not None)
    return min(usable, key=worth, default=None)


def closest_of(trials: Iterable[Trial]) -> Trial | None:
    """The infeasible trial that misses feasibility by least."""
    missed = (trial for trial in trials if trial.state == "infeasible")
    return min(missed, key=lambda trial: trial.evaluation.violation, default=None)


def pareto_front(trials: Iterable[Trial], second: str = peak_memory_bytes.name) -> list[Trial]:
    """Feasible trials that no other one beats in both the objective and `second` (smaller is
    better).
    """
    front: list[Trial] = []
    least = float("inf")
    for trial in ranked(trials):
        value = trial.metric(second)
        if value is not None and value < least:
            least = value
            front.append(trial)
    return front


Curve: TypeAlias = "Sequence[float | None]"
"""Per trial the fraction that the best so far loses against the best known; None before anything
feasible is found."""


def regret_curve(trials: Sequence[Trial], best_cost: float) -> list[float | None]:
    """The `Curve` of a search."""
    found: list[float | None] = []
    least: float | None = None
    for trial in trials:
        if trial.feasible and trial.cost is not None and (least is None or trial.cost < least):
            least = trial.cost
        found.append(None if least is None else regret(least, best_cost))
    return found


def best_of_layouts(trials: Iterable[Trial]) -> list[Trial]:
    """The best feasible trial of each layout, best first."""
    best: dict[tuple[int, ...], Trial] = {}
    for trial in ranked(trials):
        best.setdefault(layout(trial.strategy), trial)
    return list(best.values())


LAYOUT = ("dp", "tp", "pp", "cp", "ep")
"""The degrees: which devices do what, whatever the order and the memory techniques."""


def layout(strategy: Strategy) -> tuple[int, ...]:
    """The degrees of a strategy."""
    return tuple(getattr(strategy, name) for name in LAYOUT)


def worth(trial: Trial) -> tuple[float, float]:
    """Sort key of trials: cost, then memory."""
    cost = math.inf if trial.cost is None else trial.cost
    return (cost, trial.evaluation.metrics.get(peak_memory_bytes.name, math.inf))


def rank(trial: Trial) -> tuple[float, float, int]:
    """Sort key of the trials of one search: what they are worth, then the order in which they were
    made."""
    return (*worth(trial), trial.number)
