"""Everything, in the order of the space."""

from __future__ import annotations

from distir.strategy import Strategy
from search_spaces import SearchSpace


class GridSampler:
    """Proposes every strategy once."""

    def __init__(self, space: SearchSpace, seed: int):
        self._strategies = space.enumerate()

    def ask(self) -> Strategy | None:
        """The next strategy in order."""
        return next(self._strategies, None)

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Learns nothing."""
