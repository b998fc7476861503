"""A search space: a tree of choices whose domains depend on earlier choices.

Level `i` of the tree is dimension `i`. Branches that lead to no valid point are never shown, so a
walk cannot fail. What hangs below a node depends only on the choices that deeper dimensions and
rules read; prefixes that agree on those are one node (`search_spaces.tree`). Counting is
therefore a sum over few distinct nodes, and the `index`-th point is found without visiting the
others: spaces of many millions of points are counted and sampled at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from distir.rules import Rule, explain, listed
from distir.strategy import Strategy
from search_spaces.named import DEFAULTS
from search_spaces.parameters import Choices, Dimension, Value
from search_spaces.tree import Tree

DRAWN = 64
"""Strategies that are drawn to learn why none has a certain value."""

_build: Callable[..., Strategy] = Strategy


class Branch(NamedTuple):
    """A value that may be chosen next and the number of valid points behind it."""

    value: Value
    leaves: int


class SearchSpace:
    """All valid strategies, in a fixed order.

    Choices of the dimensions are made in order; a field of `Strategy` that is no dimension keeps
    its default.
    """

    def __init__(self, dimensions: Sequence[Dimension], rules: Sequence[Rule] = ()):
        self.dimensions = tuple(dimensions)
        self.rules = tuple(rules)
        self.names = tuple(dimension.name for dimension in dimensions)

    # The tree

    @cached_property
    def tree(self) -> Tree:
        """All choices, found when they are asked for first."""
        fixed = {name: value for name, value in DEFAULTS.items() if name not in self.names}
        return Tree(self.dimensions, self.rules, fixed)

    def branches(self, chosen: Choices) -> tuple[Branch, ...]:
        """What may come after `chosen`, the values of the first `len(chosen)` dimensions."""
        node = self.tree.node(chosen)
        if node is None:
            return ()
        steps = self.tree.steps(len(chosen), node)
        return tuple([Branch(value, step.leaves) for value, step in steps.items()])

    # Points

    def count(self) -> int:
        """Number of valid strategies."""
        return self.tree.leaves

    def enumerate(self, first: int = 0) -> Iterator[Strategy]:
        """Every valid strategy once, in the order of the tree, made as they are asked for; without
        the first `first` ones, which are not visited.
        """
        return self._walk({}, 0, first)

    def _walk(self, chosen: Choices, node: int, skipped: int) -> Iterator[Strategy]:
        if len(chosen) == len(self.names):
            yield _build(**chosen)
            return
        name = self.names[len(chosen)]
        for value, step in self.tree.steps(len(chosen), node).items():
            if skipped < step.leaves:
                yield from self._walk({**chosen, name: value}, step.node, skipped)
            skipped = max(0, skipped - step.leaves)

    def below(self, chosen: Choices) -> Iterator[Strategy]:
        """Every valid strategy that begins with `chosen`, values of the first dimensions."""
        node = self.tree.node(chosen)
        return iter(()) if node is None else self._walk(chosen, node, 0)

    def at(self, index: int) -> Strategy:
        """The strategy that `enumerate` gives at `index`, found without enumerating."""
        if not 0 <= index < self.count():
            raise IndexError(f"index {index} is outside a space of {self.count()} strategies")
        chosen: dict[str, Value] = {}
        node = 0
        for depth, name in enumerate(self.names):
            for value, step in self.tree.steps(depth, node).items():
                if index < step.leaves:
                    chosen[name], node = value, step.node
                    break
                index -= step.leaves
        return _build(**chosen)

    def index(self, strategy: Strategy) -> int:
        """The number under which `at` gives `strategy`; raises `ValueError` if it is not in the
        space.
        """
        before = node = 0
        for depth, name in enumerate(self.names):
            wanted = getattr(strategy, name)
            for value, step in self.tree.steps(depth, node).items():
                if value == wanted:
                    node = step.node
                    break
                before += step.leaves
            else:
                raise ValueError(f"{strategy.label} is not in the space")
        return before

    def sample(self, rng: random.Random) -> Strategy:
        """A strategy drawn uniformly from all valid ones."""
        return self.at(rng.randrange(self.count()))

    def samples(self, rng: random.Random, count: int) -> list[Strategy]:
        """`count` different strategies (or all, if there are fewer), every subset equally
        likely.
        """
        size = self.count()
        return [self.at(index) for index in rng.sample(range(size), min(count, size))]

    def values(self, name: str) -> tuple[Value, ...]:
        """Every value that dimension `name` takes in some valid strategy, in order."""
        codes = np.unique(self.tree.levels[self.names.index(name)].codes)
        reachable: list[Value] = [self.tree.values[name][code] for code in codes.tolist()]
        return tuple(sorted(reachable, key=lambda value: (isinstance(value, str), value)))

    def is_free(self, name: str) -> bool:
        """Whether dimension `name` is ever a choice, rather than what earlier choices leave
        over.
        """
        return bool((self.tree.levels[self.names.index(name)].counts > 1).any())

    # Answers

    def impossible(self, strategy: Strategy) -> str | None:
        """The reason why no plan can follow from `strategy`, or `None`."""
        return explain(self.rules, strategy)

    def explain(self, strategy: Strategy) -> str | None:
        """Why `strategy` is not in the space and what would do; `None` if it is in it."""
        return self.impossible(strategy) or self._not_searched(strategy.to_dict())

    def _not_searched(self, values: Choices) -> str | None:
        for name, default in DEFAULTS.items():
            if name not in self.names and values[name] != default:
                return f"{name} = {values[name]} is not searched here; it stays {default}"
        chosen: dict[str, Value] = {}
        for name in self.names:
            offered = [branch.value for branch in self.branches(chosen)]
            if not offered:  # nothing valid begins like this: what was asked for says more
                offered = list(self.dimensions[len(chosen)].values({**DEFAULTS, **chosen}))
            if values[name] not in offered:
                found = f"{name} = {values[name]} is not searched{_after(chosen)}"
                return f"{found}; {listed(offered)} would do" if offered else found
            chosen[name] = values[name]
        return None

    def why_never(self, name: str, value: Value) -> str | None:
        """Why no strategy has a value of dimension `name`, as far as a rule says so of every
        strategy that was drawn and has this value put in; `None` if some strategy has it, or if it
        only makes plans that another value makes too."""
        if not self.count() or value in self.values(name):
            return None
        drawn = self.samples(random.Random(0), DRAWN)
        reasons = [self.impossible(self._with(each, name, value)) for each in drawn]
        return None if None in reasons else Counter(reasons).most_common(1)[0][0]

    def _with(self, strategy: Strategy, name: str, value: Value) -> Strategy:
        """A strategy with another value of a dimension; the later dimensions take the first value
        of their domains."""
        place = self.names.index(name)
        chosen = {**DEFAULTS, **{each: getattr(strategy, each) for each in self.names[:place]}}
        chosen[name] = value
        for dimension in self.dimensions[place + 1 :]:
            chosen[dimension.name] = next(iter(dimension.values(chosen)), DEFAULTS[dimension.name])
        return _build(**chosen)

    def __contains__(self, strategy: object) -> bool:
        return isinstance(strategy, Strategy) and self.explain(strategy) is None

    def restricted(self, **allowed: Sequence[Value]) -> SearchSpace:
        """The part of the space whose choices lie in `allowed`, such as `tp=(1, 2),
        schedule=("1f1b",)`.
        """
        unknown = sorted(set(allowed) - set(self.names))
        if unknown:
            raise ValueError(
                f"unknown dimension {unknown[0]!r}; expected one of {', '.join(self.names)}"
            )
        dimensions = [
            dimension.restricted(allowed[dimension.name])
            if dimension.name in allowed
            else dimension
            for dimension in self.dimensions
        ]
        return SearchSpace(dimensions, self.rules)


def _after(chosen: Choices) -> str:
    """The choices made before, without those that say nothing."""
    telling = [f"{name} = {value}" for name, value in chosen.items() if value != DEFAULTS.get(name)]
    return f" with {', '.join(telling)}" if telling else ""
