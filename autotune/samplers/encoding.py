"""Strategies as numbers, for samplers that think in numbers.

A degree is encoded by its place among the values that its dimension takes in the space, so that
neighbouring divisors are one step apart: for powers of two this is the logarithm. Dimensions that
follow from the others (dp, once tp and pp are chosen) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from distir.arrays import Codes
from distir.strategies import Strategies
from distir.strategy import Strategy
from search_spaces import SearchSpace, Value


class Encoding:
    """Places of a strategy's values among all values of each free dimension."""

    def __init__(self, space: SearchSpace):
        self.space = space
        values = {name: space.values(name) for name in space.names}
        self.values: dict[str, tuple[Value, ...]] = {
            name: values[name] for name in space.names if space.is_free(name)
        }
        self._place = {name: {v: i for i, v in enumerate(known)} for name, known in values.items()}

    def encode(self, strategy: Strategy) -> dict[str, int]:
        """Place of every free choice of `strategy`."""
        return {name: self._place[name][getattr(strategy, name)] for name in self.values}

    def columns(self, table: Strategies) -> dict[str, Codes]:
        """Places of every free choice, one per strategy."""
        return {name: table.codes_among(name, values) for name, values in self.values.items()}

    def nearest(self, places: Mapping[str, int]) -> Strategy:
        """The valid strategy that choosing the nearest allowed place, dimension by dimension,
        leads to.
        """
        chosen: dict[str, Value] = {}
        for name in self.space.names:
            allowed = [branch.value for branch in self.space.branches(chosen)]
            wanted = places.get(name, 0)
            chosen[name] = min(allowed, key=lambda v, n=name, w=wanted: abs(self._place[n][v] - w))
        return Strategy.from_dict(chosen)

    def row(self, strategy: Strategy) -> list[int]:
        """All dimensions of `strategy`, derived ones included, for models that learn from any
        hint.
        """
        return [self._place[name][getattr(strategy, name)] for name in self.space.names]


def steadied(costs: Sequence[float]) -> list[float]:
    """`costs` on a logarithmic scale where they all have one sign; the order stays."""
    if all(cost > 0 for cost in costs):
        return [math.log(cost) for cost in costs]
    if all(cost < 0 for cost in costs):
        return [-math.log(-cost) for cost in costs]
    return list(costs)
