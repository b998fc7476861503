"""Strategies as numbers, for samplers that think in numbers.

A degree is encoded by its place among the values that its dimension takes in the space, so that
neighbouring divisors are one step apart: for powers of two this is the logarithm. Dimensions that
follow from the others (dp, once tp and pp are chosen) are left out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from distir.arrays import Codes, Floats
from distir.strategies import Strategies
from distir.strategy import Strategy
from search_spaces import SearchSpace, Value

LARGEST = math.log(sys.float_info.max)
"""Logarithm of the largest number."""


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


class Scale(NamedTuple):
    """A scale on which costs are steady: logarithms where all have one sign, otherwise parts of the
    largest. The order stays."""

    sign: int
    """1 or -1, or 0 where signs are mixed."""
    largest: float
    """The largest cost, whatever its sign."""

    @classmethod
    def of(cls, costs: Sequence[float]) -> Scale:
        """That of these costs; logarithms where there are none."""
        signs = (sign for sign in (1, -1) if all(sign * cost > 0 for cost in costs))
        sign = next(signs, 0)
        return cls(sign, max((abs(cost) for cost in costs), default=1.0) or 1.0)

    def steadied(self, costs: Sequence[float]) -> Floats:
        """Costs on this scale."""
        values = np.array(costs, np.float64)
        return self.sign * np.log(self.sign * values) if self.sign else values / self.largest

    def cost(self, value: float) -> float:
        """The cost of a value on this scale; one that is too large for a number is infinite."""
        if not self.sign:
            return value * self.largest
        logarithm = self.sign * value
        return self.sign * (math.exp(logarithm) if logarithm < LARGEST else math.inf)


def relative(logarithm: float) -> float:
    """How much more something is than 1, by its logarithm; infinite if that is no number."""
    return math.expm1(logarithm) if logarithm < LARGEST else math.inf


__all__ = ["Encoding", "Scale", "relative"]
