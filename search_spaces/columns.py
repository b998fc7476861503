"""A space as columns, made without visiting its points one by one.

The first choices of a strategy (its *head*) end with the last of those that decide which program
devices run; heads with equal programs are neighbours here, so that a stretch of the table shares
what is found out about them. What may follow a head depends on few of its choices: such *tails* are
made once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distir.arrays import Codes, Indices
from distir.strategies import FIELDS, Strategies
from search_spaces.named import DEFAULTS
from search_spaces.space import SearchSpace

PROGRAM = (
    "axes",
    "sequence_parallel",
    "cp_exchange",
    "expert_order",
    "etp",
    "zero",
    "recompute",
    "recompute_every",
    "recompute_layers",
    "keep_gathered",
    "offload",
    "sync_every",
    "outer_optimizer",
)
"""What decides which program devices run, sizes aside."""


class SpaceColumns:
    """The strategies of a space in an order of their own, each with its number in the space."""

    def __init__(self, space: SearchSpace, program: Sequence[str] = PROGRAM) -> None:
        self.space = space
        tree, names = space.tree, space.names
        width = 1 + max((names.index(name) for name in program if name in names), default=-1)
        ends = np.zeros(1, np.int64)
        _, ends, heads = tree.below(ends, 0, width)
        nodes, tail_of_heads = np.unique(ends, return_inverse=True)
        which, _, self._tails = tree.below(nodes, width, len(names))
        sizes = np.bincount(which, minlength=len(nodes))
        counts = sizes[tail_of_heads]
        starts = np.cumsum(counts) - counts
        shared = [heads[name] for name in program if name in names]
        order = np.lexsort((starts, *reversed(shared)))
        self._heads = {name: codes[order] for name, codes in heads.items()}
        last = np.ones(len(order), np.bool_)
        last[:-1] = np.any([codes[order[1:]] != codes[order[:-1]] for codes in shared], axis=0)
        self._starts = starts[order]
        """Numbers in the space of the first strategies of heads."""
        self._ends = np.cumsum(counts[order])
        self.borders: Indices = self._ends[last]
        """Where stretches of equal programs end: ascending, the last of them the length."""
        self._tail_starts = (np.cumsum(sizes) - sizes)[tail_of_heads[order]]

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def taken(self, first: int, count: int) -> tuple[Indices, Strategies]:
        """A stretch of the table, in the order of the space: numbers in it, and strategies."""
        stop = min(first + count, len(self))
        low, high = np.searchsorted(self._ends, [first, stop - 1], side="right")
        heads = np.arange(int(low), int(high) + 1 if stop > first else int(low))
        heads = heads[np.argsort(self._starts[heads])]
        counts = np.diff(self._ends, prepend=0)[heads]
        before = self._ends[heads] - counts
        skipped = np.maximum(first - before, 0)
        counts = np.minimum(before + counts, stop) - before - skipped
        which = np.repeat(heads, counts)
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        inside += np.repeat(skipped, counts)
        tails = self._tail_starts[which] + inside
        known = self.space.tree.values
        values = {name: known.get(name) or (DEFAULTS[name],) for name in FIELDS}
        codes: dict[str, Codes] = {}
        for table, rows in ((self._heads, which), (self._tails, tails)):
            for name, column in table.items():
                if len(values[name]) > 1:
                    codes[name] = column[rows]
        return self._starts[which] + inside, Strategies(values, codes, len(which))


__all__ = ["PROGRAM", "SpaceColumns"]
