"""Many simulated strategies as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distir.simulation.result import SimulationResult
from distir.strategy import Strategy

Column = NDArray[np.float64]
"""One number per strategy."""


@dataclass(frozen=True, slots=True)
class SimulationTable:
    """What simulating strategies one by one would say, one column per metric.

    A strategy that does not fit in memory has its metrics all the same; one that makes no plan has
    NaN. Neither is feasible. Reasons and reports are made for those that are asked for.
    """

    strategies: Sequence[Strategy] = field(repr=False)
    metrics: Mapping[str, Column] = field(repr=False)
    """By the names of `SimulationResult.metrics`."""
    feasible: NDArray[np.bool_] = field(repr=False)
    invalid: Mapping[int, str] = field(repr=False)
    """Why there is no plan, by position."""
    simulate: Callable[[Strategy], SimulationResult]

    def __len__(self) -> int:
        return len(self.strategies)

    def result(self, index: int) -> SimulationResult:
        """Everything about one strategy; raises `StrategyError` where there is no plan."""
        return self.simulate(self.strategies[index])

    def reason(self, index: int) -> str | None:
        """Why a strategy is not feasible, or None."""
        if self.feasible[index]:
            return None
        return self.invalid[index] if index in self.invalid else self.result(index).reason
