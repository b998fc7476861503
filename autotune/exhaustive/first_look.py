"""A good strategy at once: what is usual, tried before a large space is searched.

Certified search rules out what is worse than the best that it has found, so that it should find
something good before it bounds much. The look is at the strategies of a space whose finer choices
are usual ones; of these, at the ones that promise most of each layout; and then at neighbours of
the best of them, which differ in finer choices (`neighbours.py`), as long as one is better.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np

from autotune.exhaustive.chunks import evaluated_chunk
from autotune.exhaustive.collect import Collector
from autotune.exhaustive.neighbours import FINER, neighbours
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.study.trial import LAYOUT, Trial, rank
from distir.arrays import Indices
from distir.simulation.bounds import Bounds
from distir.strategies import Strategies
from distir.strategy import Strategy
from search_spaces import SearchSpace, Value
from search_spaces.columns import SpaceColumns
from search_spaces.named import DEFAULTS
from search_spaces.parameters import Dimension

OF_LAYOUT = 3
"""Strategies of a layout that are tried at a time."""
TRIED, ROUNDS = 24, 4
"""Strategies that are tried at a time, and how often others are tried if none has fitted."""

USUAL: dict[str, tuple[Value, ...]] = {
    "sequence_parallel": (True,),
    "zero": (1, 3),
    "recompute": ("none", "selective"),
    "schedule": ("1f1b", "interleaved"),
    "chunks": (1, 2),
    **{
        name: (DEFAULTS[name],)
        for name in (
            "recompute_every",
            "recompute_layers",
            "keep_gathered",
            "zero_degree",
            "cp_exchange",
            "placement",
            "axes",
        )
    },
}
"""Values that are looked at; of other choices all values."""


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What a first look has found."""

    best: Trial | None
    """None where no usual strategy is valid, and where none of those that were tried fits."""
    tried: int
    """Strategies that were evaluated."""


def first_look(
    problem: Problem, objective: Objective, bounds: Bounds, end: float = inf
) -> FirstLook:
    """The best of some usual strategies and of their neighbours, which are tried until `end`, by
    `time.perf_counter`."""
    space, tried = problem.space, 0
    table = promising(problem, bounds)
    for places in _rounds(table):
        tried += len(places)
        best = _best(space, objective, table.taken(places))
        if best is not None:
            return _best_beside(space, objective, FirstLook(best, tried), end)
    return FirstLook(None, tried)


def promising(problem: Problem, bounds: Bounds) -> Strategies:
    """The usual strategies of a space that may fit, those first that promise to be the fastest."""
    columns = SpaceColumns(_usual(problem.space))
    if not len(columns):
        return Strategies.of(())
    table = columns.taken(0, len(columns))[1]
    found, expected = bounds.ordered_and_expected(table, roughly=True)
    fits = bounds.cost.fits(found.size, table.communicators)
    return table.taken(np.flatnonzero(fits)[np.argsort(expected[fits], kind="stable")])


def _best_beside(
    space: SearchSpace, objective: Objective, look: FirstLook, end: float
) -> FirstLook:
    """The best that is reached from a strategy, by neighbours that differ in finer choices."""
    best, tried = look.best, look.tried
    seen: set[Strategy] = set()
    while best is not None and time.perf_counter() < end:
        seen.add(best.strategy)
        every = chain.from_iterable(neighbours(space, best.strategy, FINER))
        beside = dict.fromkeys(each for each in every if each not in seen)
        found = _best(space, objective, Strategies.of(list(beside))) if beside else None
        seen.update(beside)
        tried += len(beside)
        if found is None or rank(found) >= rank(best):
            break
        best = found
    return FirstLook(best, tried)


def _usual(space: SearchSpace) -> SearchSpace:
    return SearchSpace([_preferring(each) for each in space.dimensions], space.rules)


def _preferring(dimension: Dimension) -> Dimension:
    """The dimension with its usual values alone, or the first one where it has none of these."""
    wanted = USUAL.get(dimension.name)
    if wanted is None:
        return dimension

    def domain(*choices: Value) -> list[Value]:
        values = list(dimension.domain(*choices))
        return [value for value in values if value in wanted] or values[:1]

    return Dimension(dimension.name, domain, dimension.reads)


def _rounds(table: Strategies) -> list[Indices]:
    """The strategies to be tried together, from those in order: some of each layout."""
    _, layout = table.distinct(LAYOUT)
    by_layout = np.argsort(layout, kind="stable")
    nth = np.empty(len(table), np.int64)
    nth[by_layout] = np.arange(len(table)) - np.searchsorted(layout[by_layout], layout[by_layout])
    rounds: list[Indices] = []
    for number in range(ROUNDS):
        own = np.flatnonzero((nth >= number * OF_LAYOUT) & (nth < (number + 1) * OF_LAYOUT))
        rounds.append(own[:TRIED])
    return [each for each in rounds if len(each)]


def _best(space: SearchSpace, objective: Objective, table: Strategies) -> Trial | None:
    numbers = np.array([space.index(strategy) for strategy in table], np.int64)
    order = np.argsort(numbers)
    collector = Collector(objective, 1)
    collector.add(evaluated_chunk(objective, numbers[order], table.taken(order)))
    return collector.ranked[0] if collector.ranked else None


__all__ = ["FirstLook", "first_look", "promising"]
