"""A space as columns, made without visiting its points one by one.

The first choices of a strategy (its *head*) end with the last of those that decide which program
devices run; heads with equal programs are neighbours here, so that a stretch of the table shares
what is found out about them. What may follow a head depends on few of its choices: such *tails* are
made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distir.strategies import FIELDS, Codes, Places, Strategies
from search_spaces.named import DEFAULTS
from search_spaces.parameters import Choices, Value
from search_spaces.space import SearchSpace

PROGRAM = (
    "axes",
    "sequence_parallel",
    "cp_exchange",
    "zero",
    "recompute",
    "recompute_every",
    "keep_gathered",
)
"""What decides which program devices run, sizes aside."""


class _Heads(NamedTuple):
    """Beginnings of strategies: codes of their choices, of shape (heads, choices); the tails that
    may follow, by number; and how many strategies that makes."""

    codes: Codes
    tails: Places
    counts: Places


class SpaceColumns:
    """The strategies of a space in an order of their own, each with its number in the space."""

    def __init__(self, space: SearchSpace, program: Sequence[str] = PROGRAM) -> None:
        self.space = space
        names = space.names
        self._width = 1 + max((names.index(name) for name in program if name in names), default=-1)
        self._values: dict[str, dict[Value, int]] = {name: {} for name in names}
        self._known: list[dict[tuple[Value, ...], _Heads]] = [{} for _ in names]
        self._tail_numbers: dict[tuple[Value, ...], int] = {}
        self._tails: list[Codes] = []
        heads = self._heads(0, {})
        starts = np.cumsum(heads.counts) - heads.counts
        shared = [heads.codes[:, names.index(name)] for name in program if name in names]
        order = np.lexsort((starts, *reversed(shared)))
        self._codes, self._tail = heads.codes[order], heads.tails[order]
        self._starts = starts[order]
        self._ends = np.cumsum(heads.counts[order])
        sizes = np.array([len(tail) for tail in self._tails], np.int64)
        self._tail_starts = np.cumsum(sizes) - sizes
        empty = np.zeros((0, len(names) - self._width), np.int16)
        self._tail_codes: Codes = np.concatenate([empty, *self._tails])
        self._known.clear()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def taken(self, first: int, count: int) -> tuple[Places, Strategies]:
        """A stretch of the table, in the order of the space: numbers in it, and strategies."""
        stop = min(first + count, len(self))
        low, high = np.searchsorted(self._ends, [first, stop - 1], side="right")
        heads = np.arange(low, high + 1 if stop > first else low)
        heads = heads[np.argsort(self._starts[heads])]
        counts = np.diff(self._ends, prepend=0)[heads]
        before = self._ends[heads] - counts
        skipped = np.maximum(first - before, 0)
        counts = np.minimum(before + counts, stop) - before - skipped
        which = np.repeat(heads, counts)
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        inside += np.repeat(skipped, counts)
        tails = self._tail_starts[self._tail[which]] + inside
        codes: dict[str, Codes] = {}
        for place, name in enumerate(self.space.names):
            if len(self._values[name]) > 1:
                late = place >= self._width
                codes[name] = (
                    self._tail_codes[tails, place - self._width]
                    if late
                    else self._codes[which, place]
                )
        values = {name: (DEFAULTS[name],) for name in FIELDS}
        values |= {name: tuple(known) for name, known in self._values.items() if known}
        return self._starts[which] + inside, Strategies(values, codes, len(which))

    # --- the tree ---------------------------------------------------------------------------------

    def _heads(self, depth: int, chosen: Choices) -> _Heads:
        context = self.space.context(depth, chosen)
        if depth == self._width:
            number = self._tail_numbers.setdefault(context, len(self._tails))
            if number == len(self._tails):
                self._tails.append(self._tail_of(depth, chosen))
            count = len(self._tails[number])
            return _Heads(
                np.zeros((1 if count else 0, 0), np.int16),
                np.full(1 if count else 0, number),
                np.full(1 if count else 0, count),
            )
        known = self._known[depth]
        if context not in known:
            parts = [
                (
                    self._code(depth, branch.value),
                    self._heads(depth + 1, self._with(depth, chosen, branch.value)),
                )
                for branch in self.space.branches(chosen)
            ]
            known[context] = _Heads(
                _stacked([(code, heads.codes) for code, heads in parts], self._width - depth),
                _joined([heads.tails for _, heads in parts]),
                _joined([heads.counts for _, heads in parts]),
            )
        return known[context]

    def _tail_of(self, depth: int, chosen: Choices) -> Codes:
        """The codes of all that may follow, of shape (strategies, choices)."""
        if depth == len(self.space.names):
            return np.zeros((1, 0), np.int16)
        parts = [
            (
                self._code(depth, branch.value),
                self._tail_of(depth + 1, self._with(depth, chosen, branch.value)),
            )
            for branch in self.space.branches(chosen)
        ]
        return _stacked(parts, len(self.space.names) - depth)

    def _with(self, depth: int, chosen: Choices, value: Value) -> Choices:
        return {**chosen, self.space.names[depth]: value}

    def _code(self, depth: int, value: Value) -> int:
        known = self._values[self.space.names[depth]]
        return known.setdefault(value, len(known))


def _stacked(parts: Sequence[tuple[int, Codes]], width: int) -> Codes:
    """Codes of later choices below each other, behind the code of the choice before them."""
    rows = [
        np.concatenate([np.full((len(below), 1), code, np.int16), below], axis=1)
        for code, below in parts
    ]
    return np.concatenate(rows) if rows else np.zeros((0, width), np.int16)


def _joined(parts: Sequence[NDArray[np.int64]]) -> Places:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


__all__ = ["PROGRAM", "SpaceColumns"]
