"""A space as columns, made without visiting its points one by one.

The first choices of a strategy (its *head*) end with the last of those that decide which program
devices run; heads with equal programs are neighbours here, and so are those whose programs have
blocks in common, so that a stretch of the table shares what is found out about them. What may
follow a head depends on few of its choices: such *tails* are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distir.arrays import Codes, Indices
from distir.strategies import FIELDS, Strategies
from distir.strategy import KEEPS_ACTIVATIONS, KEEPS_PARAMETERS
from search_spaces.named import DEFAULTS
from search_spaces.parameters import Value
from search_spaces.space import SearchSpace


@dataclass(frozen=True, slots=True)
class Trait:
    """What matters of a choice: what `of` says of its value."""

    name: str
    of: Callable[[Any], Value] = lambda value: value

    def column(self, values: Sequence[Value], codes: Codes) -> Codes:
        """Equal numbers for equal traits, given the codes of values."""
        numbers: dict[Value, int] = {}
        found = [numbers.setdefault(self.of(value), len(numbers)) for value in values]
        return np.array(found, codes.dtype)[codes]


def _splits(degree: int) -> bool:
    return degree > 1


SHARED = (
    Trait("axes"),
    Trait("sequence_parallel"),
    Trait("cp_exchange"),
    Trait("expert_order"),
    Trait("etp"),
    *(Trait(name, _splits) for name in ("tp", "cp", "dp", "ep", "zero_degree")),
    Trait("zero"),
    Trait("keep_gathered", lambda kept: kept in KEEPS_PARAMETERS),
    Trait("offload"),
    Trait("sync_every"),
    Trait("outer_optimizer"),
)
"""What decides which program devices run, but for its sizes and for what is kept: strategies that
agree in it have programs of blocks in common."""

KEPT = (
    Trait("recompute"),
    Trait("recompute_every"),
    Trait("recompute_layers"),
    Trait("keep_gathered", lambda kept: kept in KEEPS_ACTIVATIONS),
)
"""What decides which results of the forward pass are kept for the backward pass."""


class SpaceColumns:
    """The strategies of a space in an order of their own, each with its number in the space."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        tree, names = space.tree, space.names
        shared, kept = ([each for each in of if each.name in names] for of in (SHARED, KEPT))
        width = 1 + max((names.index(each.name) for each in (*shared, *kept)), default=-1)
        ends = np.zeros(1, np.int64)
        _, ends, heads = tree.below(ends, 0, width)
        nodes, tail_of_heads = np.unique(ends, return_inverse=True)
        which, _, self._tails = tree.below(nodes, width, len(names))
        sizes = np.bincount(which, minlength=len(nodes))
        counts = sizes[tail_of_heads]
        starts = np.cumsum(counts) - counts
        alike, apart = (
            [each.column(tree.values[each.name], heads[each.name]) for each in of]
            for of in (shared, kept)
        )
        order = np.lexsort((starts, *reversed([*alike, *apart])))
        self._heads = {name: codes[order] for name, codes in heads.items()}
        last = np.ones(len(order), np.bool_)
        last[:-1] = np.any([codes[order[1:]] != codes[order[:-1]] for codes in alike], axis=0)
        self._starts = starts[order]
        """Numbers in the space of the first strategies of heads."""
        self._ends = np.cumsum(counts[order])
        self.borders: Indices = self._ends[last]
        """Where stretches of strategies that agree in `SHARED` end: ascending, the last of them the
        length."""
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


__all__ = ["SHARED", "SpaceColumns"]
