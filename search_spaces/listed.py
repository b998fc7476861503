"""A space that is given as a list: the strategies that were measured, for example."""

from __future__ import annotations

from collections.abc import Sequence

from distir.strategy import Strategy
from search_spaces.named import DEFAULTS
from search_spaces.parameters import Dimension, Value
from search_spaces.space import SearchSpace


def listed_space(strategies: Sequence[Strategy]) -> SearchSpace:
    """The space of exactly these strategies. Its dimensions are the choices in which some of them
    differ from the defaults; each domain holds what the list has after the choices before it."""
    names = [
        name
        for name, default in DEFAULTS.items()
        if any(getattr(each, name) != default for each in strategies)
    ]
    rows = [tuple(getattr(each, name) for name in names) for each in strategies]
    return SearchSpace([_dimension(names, at, rows) for at in range(len(names))])


def _dimension(names: Sequence[str], at: int, rows: Sequence[tuple[Value, ...]]) -> Dimension:
    following: dict[tuple[Value, ...], dict[Value, None]] = {}
    for row in rows:
        following.setdefault(row[:at], {})[row[at]] = None

    def domain(*chosen: Value) -> Sequence[Value]:
        return list(following.get(chosen, ()))

    return Dimension(names[at], domain, tuple(names[:at]))


__all__ = ["listed_space"]
