"""Many strategies at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from distir.simulation.result import METRICS
from distir.simulation.table import SimulationTable
from distir.strategy import Strategy

if TYPE_CHECKING:
    from distir.simulation.fast import Simulator


def simulate_many(simulator: Simulator, strategies: Sequence[Strategy]) -> SimulationTable:
    """The metrics of strategies as columns, equal to simulating them one by one."""
    count = len(strategies)
    metrics = {name: np.full(count, np.nan) for name in METRICS}
    feasible = np.zeros(count, np.bool_)
    invalid: dict[int, str] = {}
    for index, strategy in enumerate(strategies):
        reason = simulator.explain(strategy)
        if reason is not None:
            invalid[index] = reason
            continue
        result = simulator.simulate(strategy)
        feasible[index] = result.feasible
        for name, value in result.metrics.items():
            metrics[name][index] = value
    return SimulationTable(strategies, metrics, feasible, invalid, simulator.simulate)
