"""Upper confidence bounds for trees (UCT, Kocsis & Szepesvári 2006) over decisions.

A strategy is a path of decisions: one per choice of the space, and in axis lists one per word, each
of which adds axes to a mesh axis or stops. A list that stops is a plan already. At every node the
walk takes the decision with the largest

    value + EXPLORATION · sqrt(log(1 + visits of the node) / (1 + visits of the decision))

where the value is the best rank, among all trials, of those that lie behind the decision. The fewer
these are, the more counts the best rank of trials that make this choice alike as far as it goes,
such as lists with the same beginning, whatever the choices before it are; and the fewer those are,
how trials with the same decision rank anywhere in the tree, on average (all moves as first, Gelly &
Silver 2007; sequences of moves, Tak et al. 2012). Ranks need no scale of costs. What does not fit
ranks behind all that does, by how far it is from fitting. Subtrees that have been tried in full are
closed, so no strategy is proposed twice.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence

from distir.strategy import Strategy, parse_lists
from search_spaces import SearchSpace, Value

EXPLORATION = 1.2
"""Weight of decisions that were seldom taken. The numbers here are chosen by searches of lists for
four models (`python -m experiments.axes`)."""
EQUIVALENCE = 20.0
"""Visits of a decision at which its own trials count as much as others that have it."""
ALIKE = 2.0
"""Trials that make a choice alike at which these count as much as those with the same decision
anywhere."""

STOP = "stop"
"""The decision that ends a list."""
NOTHING = ""
"""The word of a mesh axis of a user's own that splits nothing: another mesh is another value."""

Decision = tuple[str, object]
"""A choice with its value, or with what is added to a list."""
Path = tuple[Decision, ...]
Score = tuple[int, float]
"""Whether a trial failed or did not fit (0 if it did), and its cost or how far it is from
fitting."""


def decisions_of(name: str, value: Value) -> Path:
    """The decisions that make a value of a choice: one, or for axis lists one per word."""
    if name != "axes":
        return ((name, value),)
    lists = parse_lists(value).items()
    words = ((f"{name} {user}", word) for user, own in lists for word in own or (NOTHING,))
    return (*words, (name, STOP))


class UctSampler:
    """Walks down the tree of decisions."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._rng = random.Random(seed)
        self._forks: defaultdict[Path, dict[Decision, int]] = defaultdict(dict)
        """What may be decided behind a path, with the number of strategies behind that."""
        self._values: dict[Path, Value] = {}
        """The value of a choice that is decided at the end of a path."""
        self._tried_below: defaultdict[Path, int] = defaultdict(int)
        self._visits: defaultdict[Path, int] = defaultdict(int)
        self._best: dict[Path, Score] = {}
        self._alike_best: dict[Path, Score] = {}
        self._alike: defaultdict[Path, int] = defaultdict(int)
        """By the decisions that begin one choice, the trials that make it so."""
        self._elsewhere: defaultdict[Decision, list[Score]] = defaultdict(list)
        self._scores: list[Score] = []
        self._closed: set[Strategy] = set()
        self._told: set[Strategy] = set()

    def ask(self) -> Strategy | None:
        """The strategy at the end of the walk."""
        if self._tried_below[()] == self._space.count():
            return None
        path: Path = ()
        chosen: dict[str, Value] = {}
        begin = 0
        while len(chosen) < len(self._space.names):
            leaves = self._leaves(path, chosen)
            left = [d for d, n in leaves.items() if self._tried_below[(*path, d)] < n]
            path = (*path, self._decision(path, begin, left))
            if path in self._values:
                chosen[self._space.names[len(chosen)]] = self._values[path]
                begin = len(path)
        strategy = Strategy.from_dict(chosen)
        self._close(strategy)
        return strategy

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Counts a trial on all decisions that led to it."""
        self._close(strategy)
        if strategy in self._told:
            return
        self._told.add(strategy)
        score = (2, 0.0) if cost is None else (1, violation) if violation > 0 else (0, cost)
        insort(self._scores, score)
        path = self._path(strategy)
        for depth in range(len(path) + 1):
            before = path[:depth]
            self._visits[before] += 1
            self._best[before] = min(score, self._best.get(before, score))
        for decision in path:
            self._elsewhere[decision].append(score)
        for name in self._space.names:
            own = decisions_of(name, getattr(strategy, name))
            for depth in range(1, len(own) + 1):
                same = own[:depth]
                self._alike[same] += 1
                self._alike_best[same] = min(score, self._alike_best.get(same, score))

    # --- the tree ---------------------------------------------------------------------------------

    def _leaves(self, path: Path, chosen: Mapping[str, Value]) -> Mapping[Decision, int]:
        """What may be decided behind a path on which the choices before this one are `chosen`."""
        if path not in self._forks:
            name = self._space.names[len(chosen)]
            start = path[: self._length(chosen)]
            for branch in self._space.branches(chosen):
                here = start
                for decision in decisions_of(name, branch.value):
                    behind = self._forks[here]
                    behind[decision] = behind.get(decision, 0) + branch.leaves
                    here = (*here, decision)
                self._values[here] = branch.value
        return self._forks[path]

    @staticmethod
    def _length(chosen: Mapping[str, Value]) -> int:
        """The number of decisions that make some choices."""
        return sum(len(decisions_of(name, value)) for name, value in chosen.items())

    def _path(self, strategy: Strategy) -> Path:
        return tuple(
            decision
            for name in self._space.names
            for decision in decisions_of(name, getattr(strategy, name))
        )

    def _close(self, strategy: Strategy) -> None:
        """Counts `strategy` as tried in every subtree that holds it."""
        if strategy in self._closed:
            return
        self._closed.add(strategy)
        path = self._path(strategy)
        for depth in range(len(path) + 1):
            self._tried_below[path[:depth]] += 1

    # --- choosing ---------------------------------------------------------------------------------

    def _decision(self, path: Path, begin: int, left: Sequence[Decision]) -> Decision:
        """One of the decisions that are `left` behind a path, whose choice begins there."""
        if len(left) == 1:
            return left[0]
        visits = math.log(1 + self._visits[path])
        self._rng.shuffle(order := list(left))

        def promise(decision: Decision) -> float:
            behind = (*path, decision)
            value = self._value_elsewhere(behind[begin:])
            count = self._visits[behind]
            if count:
                share = EQUIVALENCE / (EQUIVALENCE + count)
                value = share * value + (1 - share) * self.rank_behind(behind)
            return value + EXPLORATION * math.sqrt(visits / (1 + count))

        return max(order, key=promise)

    def _value_elsewhere(self, made: Path) -> float:
        """What trials that make a choice so, as far as it goes, say of its last decision, whatever
        was chosen before."""
        value, count = self._mean_rank(made[-1]), self._alike[made]
        if not count:
            return value
        share = ALIKE / (ALIKE + count)
        return share * value + (1 - share) * self._rank(self._alike_best[made])

    def rank_behind(self, path: Path) -> float:
        """The best rank of the trials behind some decisions."""
        return self._rank(self._best[path])

    def _rank(self, score: Score) -> float:
        """The share of all trials that are no better."""
        return 1 - bisect_left(self._scores, score) / len(self._scores)

    def _mean_rank(self, decision: Decision) -> float:
        """How trials with a decision rank on average, whatever was decided before; 1 if there are
        none, so that every decision is tried."""
        known = self._elsewhere[decision]
        return sum(map(self._rank, known)) / len(known) if known else 1.0


__all__ = ["UctSampler", "decisions_of"]
