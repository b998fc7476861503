"""A policy gradient (REINFORCE, Williams 1992) over the tree of choices.

The policy walks down the tree. At every level it prefers values by learned numbers: one for the
value itself and one for each pair of the value and an earlier choice, so that what is learned in
one branch helps in the others. After each trial the preferences move along the gradient of the
log-probability of its choices, times how much better than the baseline it was. Subtrees that have
been tried in full are closed, so no strategy is proposed twice.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator

from distir.strategy import Strategy
from search_spaces import SearchSpace, Value

LEARNING_RATE = 0.6
BASELINE_DECAY = 0.7
"""Share of the old baseline that is kept by each trial."""

Feature = tuple[object, ...]


class ReinforceSampler:
    """Learns where in the tree good strategies are."""

    def __init__(self, space: SearchSpace, seed: int):
        self._space = space
        self._free = frozenset(name for name in space.names if space.is_free(name))
        self._rng = random.Random(seed)
        self._preference: defaultdict[Feature, float] = defaultdict(float)
        self._tried_below: defaultdict[tuple[Value, ...], int] = defaultdict(int)
        self._closed: set[Strategy] = set()
        self._rewards = _Advantage()

    def ask(self) -> Strategy | None:
        """A strategy drawn from the policy, among those not proposed before."""
        if self._tried_below[()] == self._space.count():
            return None
        chosen: dict[str, Value] = {}
        for name in self._space.names:
            values, weights = zip(*self._policy(name, chosen), strict=True)
            chosen[name] = self._rng.choices(values, weights)[0]
        strategy = Strategy.from_dict(chosen)
        self._close(strategy)
        return strategy

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Moves the preferences towards choices that did better than the baseline."""
        self._close(strategy)
        advantage = self._rewards.of(cost, violation)
        chosen: dict[str, Value] = {}
        for name in self._space.names:
            taken: Value = getattr(strategy, name)
            if name in self._free:
                self._learn(name, chosen, taken, advantage)
            chosen[name] = taken

    def _learn(self, name: str, chosen: dict[str, Value], taken: Value, advantage: float) -> None:
        branches = [branch.value for branch in self._space.branches(chosen)]
        probabilities = _softmax([self._score(name, value, chosen) for value in branches])
        told = [other for other in chosen if other in self._free]
        for value, probability in zip(branches, probabilities, strict=True):
            step = LEARNING_RATE * advantage * ((value == taken) - probability)
            for feature in self._features(name, value, chosen):
                self._preference[feature] += step / (1 + len(told))

    def _policy(self, name: str, chosen: dict[str, Value]) -> Iterator[tuple[Value, float]]:
        """Values that lead somewhere new, with their probabilities."""
        prefix = tuple(chosen.values())
        values = [
            branch.value
            for branch in self._space.branches(chosen)
            if self._tried_below[(*prefix, branch.value)] < branch.leaves
        ]
        return zip(values, _softmax([self._score(name, v, chosen) for v in values]), strict=True)

    def _score(self, name: str, value: Value, chosen: dict[str, Value]) -> float:
        return sum(self._preference[feature] for feature in self._features(name, value, chosen))

    def _features(self, name: str, value: Value, chosen: dict[str, Value]) -> Iterator[Feature]:
        """A value alone, and beside every earlier one that was a choice."""
        yield (name, value)
        for other, earlier in chosen.items():
            if other in self._free:
                yield (name, value, other, earlier)

    def _close(self, strategy: Strategy) -> None:
        """Counts `strategy` as tried in every subtree that holds it."""
        if strategy in self._closed:
            return
        self._closed.add(strategy)
        path = tuple(getattr(strategy, name) for name in self._space.names)
        for depth in range(len(path) + 1):
            self._tried_below[path[:depth]] += 1


class _Advantage:
    """Rewards relative to a moving baseline, in units of their own spread."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._spread = 0.0
        self._worst = 0.0

    def of(self, cost: float | None, violation: float) -> float:
        """How much better than usual a trial was, between -2 and 2; infeasible and failed ones
        were worse.
        """
        if cost is None or violation > 0:
            return -1.0
        reward = -math.copysign(math.log1p(abs(cost)), cost)
        if self._mean is None:
            self._mean = reward
            return 0.0
        difference = reward - self._mean
        self._mean += (1 - BASELINE_DECAY) * difference
        self._spread = BASELINE_DECAY * self._spread + (1 - BASELINE_DECAY) * abs(difference)
        return max(-2.0, min(2.0, difference / self._spread)) if self._spread else 0.0


def _softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]
