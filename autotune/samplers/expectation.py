"""What is expected of strategies before any of them is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

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

    def __len__(self) -> int:
        return len(self.log_cost)

    def taken(self, which: Indices) -> Expectation:
        """Some of the strategies."""
        return Expectation(self.table.taken(which), self.log_cost[which], self.log_fill[which])

    def joined(self, other: Expectation) -> Expectation:
        """These strategies, and those of `other` that are not among them."""
        table = Strategies.joined(self.table, other.table)
        first, _ = table.distinct(FIELDS)
        whole = Expectation(
            table,
            np.concatenate([self.log_cost, other.log_cost]),
            np.concatenate([self.log_fill, other.log_fill]),
        )
        return whole.taken(np.sort(first))

    def layouts(self) -> Indices:
        """The number of each strategy's layout, an array [strategies]."""
        return self.table.distinct(DEGREES)[1]


def unexpected(strategies: Sequence[Strategy]) -> Expectation:
    """Strategies of which nothing is known: all are expected alike, and to fit."""
    count = len(strategies)
    return Expectation(Strategies.of(strategies), np.zeros(count), np.full(count, -1.0))


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

    def simulated(self) -> Expectation:
        """The best strategies as the simulator expects them, and the best of every layout."""
        ...


__all__ = ["Expectation", "Prospects", "unexpected"]
