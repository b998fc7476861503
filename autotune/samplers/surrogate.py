"""A learned surrogate over the pool of valid strategies.

Extremely randomised trees predict the cost of every untried strategy; the one with the lowest mean
minus one standard deviation between trees is tried next. A space too large to predict in full is
represented by a random part of it, drawn afresh for every fit and joined by the best strategies
known.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from autotune.samplers.encoding import Encoding, steadied
from autotune.samplers.random import RandomSampler
from distir.errors import DistirError
from distir.strategy import Strategy
from search_spaces import SearchSpace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STARTUP_TRIALS = 10
"""Random strategies that the first fit is made of."""
POOL_SIZE = 4096
"""Most strategies that one fit predicts, unless told otherwise."""
NUM_TREES = 50


class SurrogateSampler:
    """Tries next what the trees think may be best."""

    def __init__(self, space: SearchSpace, seed: int, pool_size: int = POOL_SIZE):
        self._space = space
        self._seed = seed
        self._pool_size = pool_size
        self._rng = random.Random(seed)
        self._startup = RandomSampler(space, seed)
        self._encoding = Encoding(space)
        self._told: dict[Strategy, tuple[float, float]] = {}
        self._proposed: set[Strategy] = set()
        whole = space.count() <= pool_size
        self._whole_pool = list(space.enumerate()) if whole else None

    def ask(self) -> Strategy | None:
        """A random strategy at first, then the one with the lowest optimistic prediction."""
        strategy = self._random() if len(self._told) < STARTUP_TRIALS else self._promising()
        if strategy is not None:
            self._proposed.add(strategy)
        return strategy

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Adds an observation to what the next fit learns from."""
        self._proposed.add(strategy)
        if cost is not None:
            self._told[strategy] = (cost, violation)

    def _random(self) -> Strategy | None:
        while (strategy := self._startup.ask()) is not None:
            if strategy not in self._proposed:
                return strategy
        return None

    def _promising(self) -> Strategy | None:
        pool = self._pool()
        if not pool:
            return self._random()
        forest = _forest(self._seed)
        forest.fit(self._rows(list(self._told)), _targets(list(self._told.values())))
        scores = _optimistic(forest, self._rows(pool))
        return pool[int(scores.argmin())]

    def _pool(self) -> list[Strategy]:
        pool = self._whole_pool
        if pool is None:
            pool = self._space.samples(self._rng, self._pool_size)
        return [strategy for strategy in pool if strategy not in self._proposed]

    def _rows(self, strategies: list[Strategy]) -> NDArray[np.float32]:
        import numpy as np

        return np.array([self._encoding.row(each) for each in strategies], dtype=np.float32)


def _targets(known: list[tuple[float, float]]) -> list[float]:
    """Costs on a steady scale; infeasible strategies lie above every feasible one, by their
    violation.
    """
    feasible = [cost for cost, violation in known if violation <= 0]
    scaled = iter(steadied(feasible))
    targets = [next(scaled) if violation <= 0 else None for _, violation in known]
    usable = [target for target in targets if target is not None]
    ceiling = max(usable, default=0.0)
    spread = (ceiling - min(usable)) if len(usable) > 1 else 1.0
    return [
        ceiling + spread * (0.1 + min(violation, 10.0)) if target is None else target
        for target, (_, violation) in zip(targets, known, strict=True)
    ]


def _optimistic(forest: Any, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean minus one standard deviation of the trees' predictions."""
    import numpy as np

    votes = np.stack([tree.predict(rows) for tree in forest.estimators_])
    return votes.mean(axis=0) - votes.std(axis=0)


def _forest(seed: int) -> Any:
    try:
        from sklearn.ensemble import (  # pyright: ignore[reportMissingTypeStubs]
            ExtraTreesRegressor,
        )
    except ImportError as error:
        raise DistirError(
            "the surrogate needs scikit-learn; try: pip install scikit-learn"
        ) from error
    return ExtraTreesRegressor(n_estimators=NUM_TREES, random_state=seed)
