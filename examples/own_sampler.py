"""A sampler of one's own: ask and tell. This one tries what is most like the best plan it knows."""

import random

from autotune import SearchSpace, tune
from distir import Strategy


class HillClimber:
    """Proposes strategies that share all but one or two choices with the best so far."""

    def __init__(self, space: SearchSpace, seed: int):
        self._space = space
        self._rng = random.Random(seed)
        self._best: Strategy | None = None
        self._least = float("inf")

    def ask(self) -> Strategy:
        drawn = [self._space.sample(self._rng) for _ in range(20)]
        return min(drawn, key=self._distance)

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        if cost is not None and violation == 0 and cost < self._least:
            self._best, self._least = strategy, cost

    def _distance(self, strategy: Strategy) -> int:
        if self._best is None:
            return 0
        best = self._best.to_dict()
        changed = sum(best[name] != value for name, value in strategy.to_dict().items())
        return changed if strategy != self._best else len(best)


if __name__ == "__main__":
    print(tune("gpt2", sampler=HillClimber, trials=30))
