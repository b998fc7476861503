"""A search space: a tree of choices whose domains depend on earlier choices.

Level `i` of the tree is dimension `i`. Branches that lead to no valid point are never shown, so a
walk cannot fail. What hangs below a node depends only on the choices that deeper dimensions and
constraints read; nodes that agree on those share one entry of a memo. Counting is therefore a sum
over few distinct nodes, and the `index`-th point is found without visiting the others: spaces of
many millions of points are counted and sampled at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from distir.strategy import Strategy
from search_spaces.arithmetic import listed
from search_spaces.constraints import Constraint
from search_spaces.named import DEFAULTS
from search_spaces.parameters import Choices, Dimension, Value

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

    def __init__(self, dimensions: Sequence[Dimension], constraints: Sequence[Constraint] = ()):
        self.dimensions = tuple(dimensions)
        self.constraints = tuple(constraints)
        self.names = tuple(dimension.name for dimension in self.dimensions)
        self._fixed = {n: value for n, value in DEFAULTS.items() if n not in self.names}
        self._decided = [self._decided_at(depth) for depth in range(len(self.names))]
        self._context = [self._read_from(depth) for depth in range(len(self.names))]
        self._memo: list[dict[tuple[Value, ...], tuple[Branch, ...]]] = [{} for _ in self.names]

    def _decided_at(self, depth: int) -> tuple[Constraint, ...]:
        """Constraints whose last choice is made at `depth`."""
        place = {name: at for at, name in enumerate(self.names)}
        last = [max((place.get(n, 0) for n in rule.reads), default=0) for rule in self.constraints]
        return tuple(rule for rule, at in zip(self.constraints, last, strict=True) if at == depth)

    def _read_from(self, depth: int) -> tuple[str, ...]:
        """Choices above `depth` that anything at or below `depth` reads."""
        read = {name for dimension in self.dimensions[depth:] for name in dimension.reads}
        read |= {name for rules in self._decided[depth:] for rule in rules for name in rule.reads}
        return tuple(name for name in self.names[:depth] if name in read)

    # The tree

    def branches(self, chosen: Choices) -> tuple[Branch, ...]:
        """What may come after `chosen`, the values of the first `len(chosen)` dimensions."""
        return self._branches(len(chosen), chosen)

    def context(self, depth: int, chosen: Choices) -> tuple[Value, ...]:
        """What of the choices before `depth` matters to those from it on."""
        return tuple([chosen[name] for name in self._context[depth]])

    def _branches(self, depth: int, chosen: Choices) -> tuple[Branch, ...]:
        context = self.context(depth, chosen)
        found = self._memo[depth].get(context)
        if found is None:
            found = self._memo[depth][context] = tuple(self._grow(depth, chosen))
        return found

    def _grow(self, depth: int, chosen: Choices) -> Iterator[Branch]:
        dimension, rules = self.dimensions[depth], self._decided[depth]
        node = {**self._fixed, **chosen}
        for value in dimension.values(node):
            node[dimension.name] = value
            if any(rule.reason(node) is not None for rule in rules):
                continue
            leaves = self._leaves(depth + 1, node)
            if leaves:
                yield Branch(value, leaves)

    def _leaves(self, depth: int, chosen: Choices) -> int:
        if depth == len(self.names):
            return 1
        return sum([branch.leaves for branch in self._branches(depth, chosen)])

    # Points

    def count(self) -> int:
        """Number of valid strategies."""
        return self._leaves(0, {})

    def enumerate(self, first: int = 0) -> Iterator[Strategy]:
        """Every valid strategy once, in the order of the tree, made as they are asked for; without
        the `first` so many, which are not visited.
        """
        return self._walk({}, first)

    def _walk(self, chosen: Choices, skipped: int) -> Iterator[Strategy]:
        name = self.names[len(chosen)]
        below = self._walk if len(chosen) + 1 < len(self.names) else _leaf
        for branch in self.branches(chosen):
            if skipped < branch.leaves:
                yield from below({**chosen, name: branch.value}, skipped)
            skipped = max(0, skipped - branch.leaves)

    def below(self, chosen: Choices) -> Iterator[Strategy]:
        """Every valid strategy that begins with `chosen`, values of the first dimensions."""
        return self._walk(chosen, 0) if len(chosen) < len(self.names) else _leaf(chosen, 0)

    def at(self, index: int) -> Strategy:
        """The strategy that `enumerate` gives at `index`, found without enumerating."""
        if not 0 <= index < self.count():
            raise IndexError(f"index {index} is outside a space of {self.count()} strategies")
        chosen: dict[str, Value] = {}
        for name in self.names:
            for branch in self.branches(chosen):
                if index < branch.leaves:
                    chosen[name] = branch.value
                    break
                index -= branch.leaves
        return _build(**chosen)

    def index(self, strategy: Strategy) -> int:
        """The number under which `at` gives `strategy`; raises `ValueError` if it is not in the
        space.
        """
        values, chosen, before = strategy.to_dict(), dict[str, Value](), 0
        for name in self.names:
            for branch in self.branches(chosen):
                if branch.value == values[name]:
                    break
                before += branch.leaves
            else:
                raise ValueError(f"{strategy.label} is not in the space")
            chosen[name] = values[name]
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
        depth = self.names.index(name)
        self.count()  # visits every distinct node once
        reachable = {branch.value for found in self._memo[depth].values() for branch in found}
        return tuple(sorted(reachable, key=lambda value: (isinstance(value, str), value)))

    def is_free(self, name: str) -> bool:
        """Whether dimension `name` is ever a choice, rather than what earlier choices leave
        over.
        """
        self.count()
        return any(len(found) > 1 for found in self._memo[self.names.index(name)].values())

    # Answers

    def impossible(self, strategy: Strategy) -> str | None:
        """The reason why no plan can follow from `strategy`, or `None`."""
        chosen = strategy.to_dict()
        reasons = (rule.reason(chosen) for rule in self.constraints)
        return next((reason for reason in reasons if reason is not None), None)

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
            if values[name] not in offered:
                found = f"{name} = {values[name]} is not searched{_after(chosen)}"
                return f"{found}; {listed(offered)} would do" if offered else found
            chosen[name] = values[name]
        return None

    def __contains__(self, strategy: object) -> bool:
        return isinstance(strategy, Strategy) and self.explain(strategy) is None

    def restricted(self, **allowed: Sequence[Value]) -> SearchSpace:
        """The part of the space whose choices lie in `allowed`, such as `tp=(1, 2),
        schedule=("1f1b",)`.
        """
        unknown = sorted(set(allowed) - set(self.names))
        if unknown:
            raise ValueError(f"unknown dimension {unknown[0]!r}; known are {', '.join(self.names)}")
        dimensions = [
            dimension.restricted(allowed[dimension.name])
            if dimension.name in allowed
            else dimension
            for dimension in self.dimensions
        ]
        return SearchSpace(dimensions, self.constraints)


def _leaf(chosen: Choices, _skipped: int) -> Iterator[Strategy]:
    yield _build(**chosen)


def _after(chosen: Choices) -> str:
    """The choices made before, without those that say nothing."""
    telling = [f"{name} = {value}" for name, value in chosen.items() if value != DEFAULTS.get(name)]
    return f" with {', '.join(telling)}" if telling else ""
