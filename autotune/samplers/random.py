"""Uniform draws without replacement."""

from __future__ import annotations

import random

from distir.strategy import Strategy
from search_spaces import SearchSpace


class RandomSampler:
    """Every order of the space's strategies is equally likely."""

    def __init__(self, space: SearchSpace, seed: int):
        self._space = space
        self._rng = random.Random(seed)
        self._left = space.count()
        self._moved: dict[int, int] = {}

    def ask(self) -> Strategy | None:
        """A strategy that was not proposed before."""
        if not self._left:
            return None
        # One step of a Fisher-Yates shuffle of all indices; only the moved ones are stored.
        self._left -= 1
        drawn = self._rng.randrange(self._left + 1)
        index = self._moved.get(drawn, drawn)
        self._moved[drawn] = self._moved.pop(self._left, self._left)
        return self._space.at(index)

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Learns nothing."""
