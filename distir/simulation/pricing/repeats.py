"""A chain of blocks as runs: what comes again and again is written down once.

A *word* is a few blocks in a row, and a run is how often it comes, one after the other: layers that
are all alike are words of one block, those of which every fourth is another are words of four.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Block = TypeVar("Block")
Other = TypeVar("Other")
Like = TypeVar("Like", bound=Hashable)

Count = Any
"""How often a word comes: a number, or an array of numbers, one per plan."""

Run = tuple[tuple[Block, ...], Count]
"""A word, and how often it comes."""


class Uneven(Exception):  # noqa: N818  no error: a way to go on
    """Plans whose runs are of different lengths have to be looked at apart: where some copies are
    left, and elsewhere."""

    def __init__(self, where: NDArray[np.bool_]) -> None:
        super().__init__("runs end in some plans and go on in others")
        self.where = where


def runs_of(blocks: Sequence[Like]) -> list[Run[Like]]:
    """A chain as runs: from the first block on, always the word whose copies reach farthest, the
    shortest of these."""
    known: dict[Like, int] = {}
    numbers = [known.setdefault(block, len(known)) for block in blocks]
    found: list[Run[Like]] = []
    begin, end = 0, len(blocks)
    while begin < end:
        period, copies = 1, 1
        for shift in range(1, (end - begin) // 2 + 1):
            again = 1 + _alike(numbers, begin, shift) // shift
            if again > 1 and again * shift > period * copies:
                period, copies = shift, again
        found.append((tuple(blocks[begin : begin + period]), copies))
        begin += period * copies
    return found


def _alike(numbers: Sequence[int], begin: int, shift: int) -> int:
    """How many blocks from `begin` on are like those so much further on, one after the other."""
    place = begin
    while place + shift < len(numbers) and numbers[place] == numbers[place + shift]:
        place += 1
    return place - begin


def mapped(
    runs: Sequence[Run[Block]], function: Callable[[Sequence[Block]], Sequence[Other]]
) -> list[Run[Other]]:
    """What a function makes of the blocks of a chain, one of each, as runs. What it makes of a
    block may depend on the blocks beside it, no others: so the first and the last copy of a word
    are looked at apart from those between."""
    copies = [3 if isinstance(count, np.ndarray) else min(count, 3) for _, count in runs]
    short = [each for (word, _), some in zip(runs, copies, strict=True) for each in word * some]
    made = iter(function(short))
    found: list[Run[Other]] = []
    for (word, count), some in zip(runs, copies, strict=True):
        words = [tuple(next(made) for _ in word) for _ in range(some)]
        counts = [1, count - 2, 1] if some == 3 else [1] * some
        for own, group in groupby(zip(words, counts, strict=True), lambda each: each[0]):
            found.append((own, sum(times for _, times in group)))
    return found


def is_left(copies: Count) -> bool:
    """Whether any copies are left; raises `Uneven` where they are in some plans only."""
    if not isinstance(copies, np.ndarray):
        return copies > 0
    where = copies > 0
    some = bool(where.any())
    if some and not where.all():
        raise Uneven(where)
    return some


__all__ = ["Count", "Run", "Uneven", "is_left", "mapped", "runs_of"]
