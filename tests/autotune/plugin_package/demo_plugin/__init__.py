"""A plug-in package as someone else would write it: an objective and a sampler, found by entry
points.
"""

from __future__ import annotations

from collections.abc import Callable

from autotune.objectives.evaluation import Evaluation
from distir.strategy import Strategy
from search_spaces import SearchSpace


def energy(strategy: Strategy, simulate: Callable[[Strategy], Evaluation]) -> dict[str, float]:
    """Joules per iteration, from the simulator's time and a made-up power draw."""
    metrics = simulate(strategy).metrics
    return {"joules": 400.0 * strategy.devices * metrics["iteration_seconds"], **metrics}


class LastFirst:
    """Proposes strategies from the end of the space."""

    def __init__(self, space: SearchSpace, seed: int):
        self._space = space
        self._left = space.count()

    def ask(self) -> Strategy | None:
        if not self._left:
            return None
        self._left -= 1
        return self._space.at(self._left)

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        pass
