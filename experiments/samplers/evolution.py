"""Regularised evolution (Real et al., "Regularized evolution for image classifier architecture
search", AAAI 2019) over the tree of choices, as a plug-in sampler to compare others with.

    python -m experiments.samplers --samplers bounds,experiments.samplers.evolution:regularised

The best of a few strategies drawn from the population is changed in one choice; what came of the
child joins the population, and the oldest member leaves it, however good it is. Choices depend on
earlier ones: behind the changed choice the parent's values are kept where they are offered, and
drawn where they are not. What does not fit ranks behind all that does, by how far it is from
fitting. No strategy is proposed twice.
"""

from __future__ import annotations

import random
from collections import deque

from autotune.samplers.random import RandomSampler
from distir.strategy import Strategy
from search_spaces import SearchSpace, Value

POPULATION = 16
"""Members of the population. The paper has 100, for 20,000 trials."""
CONTENDERS = 4
"""Members of which the best becomes a parent: a quarter of the population, as in the paper."""
CHANGES_TRIED = 20
"""Children in a row that were proposed before, after which a strategy is drawn."""

Score = tuple[int, float]
"""Whether a trial failed or did not fit (0 if it did), and its cost or how far it is from
fitting."""


class RegularisedEvolution:
    """Keeps the youngest, and has the best of them reproduce."""

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        population: int = POPULATION,
        contenders: int = CONTENDERS,
    ) -> None:
        self._space, self._rng = space, random.Random(seed)
        self._free = [name for name in space.names if space.is_free(name)]
        self._drawn = RandomSampler(space, seed)
        self._living: deque[tuple[Score, Strategy]] = deque(maxlen=population)
        self._contenders = contenders
        self._tried: set[Strategy] = set()

    def ask(self) -> Strategy | None:
        """A child, or a drawn strategy until the population is full."""
        if len(self._living) == self._living.maxlen:
            for _ in range(CHANGES_TRIED):
                child = self._child()
                if child not in self._tried:
                    self._tried.add(child)
                    return child
        drawn = self._drawn.ask()
        while drawn is not None and drawn in self._tried:
            drawn = self._drawn.ask()
        if drawn is not None:
            self._tried.add(drawn)
        return drawn

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Has a strategy join the population."""
        self._tried.add(strategy)
        score = (2, 0.0) if cost is None else (1, violation) if violation > 0 else (0, cost)
        self._living.append((score, strategy))

    def _child(self) -> Strategy:
        contenders = self._rng.sample(list(self._living), self._contenders)
        _, parent = min(contenders, key=lambda each: each[0])
        changed = self._rng.choice(self._free)
        chosen: dict[str, Value] = {}
        for name in self._space.names:
            offered = [branch.value for branch in self._space.branches(chosen)]
            kept: Value = getattr(parent, name)
            others = [value for value in offered if value != kept]
            is_kept = kept in offered and (name != changed or not others)
            chosen[name] = kept if is_kept else self._rng.choice(others)
        return Strategy.from_dict(chosen)


def regularised(space: SearchSpace, seed: int) -> RegularisedEvolution:
    """With the numbers of this file."""
    return RegularisedEvolution(space, seed)
