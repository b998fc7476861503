"""What is expected of strategies before any of them is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autotune.samplers.experience import Experience
from autotune.samplers.sampler import Outcome
from distir.arrays import Floats, Indices
from distir.strategies import FIELDS, Strategies
from distir.strategy import DEGREES, Strategy


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected cost and memory of the strategies that a sampler chooses from, column by column."""

    table: Strategies
    log_cost: Floats
    """Logarithm of the time that each is expected to take, in any unit, or of another cost."""
    log_fill: Floats
    """Logarithm of the memory that each is expected to need, over what a device has: above 0 it
    does not fit."""
    log_least: Floats | None = None
    """Logarithm of the least cost that each can have, where there is a bound."""

    def __len__(self) -> int:
        return len(self.log_cost)

    def taken(self, which: Indices) -> Expectation:
        """Some of the strategies."""
        least = None if self.log_least is None else self.log_least[which]
        table = self.table.taken(which)
        return Expectation(table, self.log_cost[which], self.log_fill[which], least)

    def joined(self, other: Expectation) -> Expectation:
        """These strategies, and those of `other` that are not among them."""
        table = Strategies.joined(self.table, other.table)
        first, _ = table.distinct(FIELDS)
        whole = Expectation(
            table,
            np.concatenate([self.log_cost, other.log_cost]),
            np.concatenate([self.log_fill, other.log_fill]),
            None
            if self.log_least is None or other.log_least is None
            else np.concatenate([self.log_least, other.log_least]),
        )
        return whole.taken(np.sort(first))

    def layouts(self) -> Indices:
        """The number of each strategy's layout, an array [strategies]."""
        return self.table.distinct(DEGREES)[1]


def unexpected(strategies: Sequence[Strategy]) -> Expectation:
    """Strategies of which nothing is known: all are expected alike, and to fit."""
    count = len(strategies)
    return Expectation(Strategies.of(strategies), np.zeros(count), np.full(count, -1.0))


class Pool(Protocol):
    """Strategies with bounds, part by part."""

    @property
    def metric(self) -> str:
        """The metric that is bounded and expected."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether the pool begins with the whole space."""
        ...

    def start(self) -> Expectation:
        """The strategies that it begins with, with the least that each may cost."""
        ...

    def around(self, strategy: Strategy) -> Expectation:
        """Strategies that are like one."""
        ...

    def log_fill(self, outcome: Outcome) -> float | None:
        """Logarithm of the memory that a strategy was found to need, over what there is."""
        ...


class Prospects(Protocol):
    """What is known of a space before anything in it is tried."""

    @property
    def batch_size(self) -> int:
        """Samples per step over all devices."""
        ...

    @property
    def noise(self) -> float:
        """Relative spread of a trial that is repeated."""
        ...

    @property
    def between_layouts(self) -> float:
        """Relative error of plans with different layouts, beside what they share."""
        ...

    @property
    def experience(self) -> Experience:
        """What other studies have learned of their expectations."""
        ...

    def simulated(self) -> Expectation:
        """The best strategies as the simulator expects them, and the best of every layout."""
        ...

    def bounded(self) -> Pool | None:
        """Strategies with bounds; None where nothing bounds the objective."""
        ...


__all__ = ["Expectation", "Pool", "Prospects", "unexpected"]
