"""Chains of blocks as repeated patterns, so that equal layers are written down once.

A *pattern* is a few consecutive blocks. If all layers are alike, the pattern is one block; if every
fourth layer differs, it has four blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from distir.arrays import Flags

_Block = TypeVar("_Block")
_Pattern = TypeVar("_Pattern")
_Result = TypeVar("_Result")
_Hashable = TypeVar("_Hashable", bound=Hashable)

Count: TypeAlias = Any
"""How often a pattern is repeated: a number, or an array with a number per stage."""

RepeatedBlocks: TypeAlias = tuple[tuple[_Block, ...], Count]
"""A pattern of blocks, and how often it is repeated in a row."""


class Uneven(Exception):  # noqa: N818  no error: a way to go on
    """Raised where copies of a pattern are left in some stages and not in others.

    `where` marks the stages in which copies are left. The caller treats both groups apart.
    """

    def __init__(self, where: Flags) -> None:
        super().__init__("copies of a pattern are left in some stages and not in others")
        self.where = where


def repeated_blocks(blocks: Sequence[_Hashable]) -> list[RepeatedBlocks[_Hashable]]:
    """A chain of blocks as repeated patterns.

    From the first block on, the pattern is always the one whose copies reach farthest; of several
    such patterns the shortest.
    """
    known: dict[_Hashable, int] = {}
    numbers = [known.setdefault(block, len(known)) for block in blocks]
    chain: list[RepeatedBlocks[_Hashable]] = []
    begin, end = 0, len(blocks)
    while begin < end:
        period, copies, reach = 1, 1, 1
        for shift in range(1, (end - begin) // 2 + 1):
            # Where the pattern breaks off, one a little longer does, too: the blocks before that
            # are `period` apart from equal ones.
            if shift <= reach - period and reach // shift * shift <= period * copies:
                continue
            equal = _equal_blocks(numbers, begin, shift)
            shift_copies = 1 + equal // shift
            if shift_copies > 1 and shift_copies * shift > period * copies:
                period, copies, reach = shift, shift_copies, shift + equal
        chain.append((tuple(blocks[begin : begin + period]), copies))
        begin += period * copies
    return chain


def _equal_blocks(numbers: Sequence[int], begin: int, shift: int) -> int:
    """How many consecutive blocks from `begin` on equal the block `shift` further on."""
    end = begin
    while end + shift < len(numbers) and numbers[end] == numbers[end + shift]:
        end += 1
    return end - begin


def mapped(
    chain: Sequence[RepeatedBlocks[_Block]],
    function: Callable[[Sequence[_Block]], Sequence[_Result]],
) -> list[RepeatedBlocks[_Result]]:
    """A chain with the results of a function in place of its blocks.

    The function gets consecutive blocks and returns a result for each. A result may depend on the
    block directly before its block and on the one directly after it, on each by itself, and on no
    others. So the function is asked about at most three copies of each pattern: the first, one in
    between, and the last. Those in between may be none in some stages. Raises `Uneven` where some
    stages have one copy and others several, unless all copies are alike.
    """
    copies = [min(_most(count), 3) for _, count in chain]
    short = [
        block for (pattern, _), few in zip(chain, copies, strict=True) for block in pattern * few
    ]
    results = function(short)
    made: list[RepeatedBlocks[_Result]] = []
    begin = 0
    for (pattern, count), few in zip(chain, copies, strict=True):
        size = len(pattern)
        ends = range(begin + size, begin + size * few + 1, size)
        patterns = [tuple(results[end - size : end]) for end in ends]
        begin = ends[-1]
        if few > 1 and patterns.count(patterns[0]) == few:
            made.append((patterns[0], count))
        else:
            require_even(count - 1)
            made += zip(patterns, [1, count - 2, 1] if few == 3 else [1] * few, strict=True)
    return joined(made)


def joined(chain: Iterable[tuple[_Pattern, Count]]) -> list[tuple[_Pattern, Count]]:
    """The same chain, in which equal patterns in a row are one."""
    found: list[tuple[_Pattern, Count]] = []
    for pattern, count in chain:
        if found and found[-1][0] == pattern:
            found[-1] = pattern, found[-1][1] + count
        else:
            found.append((pattern, count))
    return found


def _most(copies: Count) -> int:
    """The largest number of copies in any stage."""
    return copies if isinstance(copies, int) else int(np.maximum.reduce(copies))


def any_left(copies: Count) -> bool:
    """Whether copies of a pattern are left in any stage."""
    return bool((copies > 0).any()) if isinstance(copies, np.ndarray) else copies > 0


def require_even(copies: Count) -> None:
    """Raises `Uneven` if copies of a pattern are left in some stages only."""
    if isinstance(copies, np.ndarray):
        where = copies > 0
        if 0 < np.count_nonzero(where) < len(where):
            raise Uneven(where)


__all__ = [
    "Count",
    "RepeatedBlocks",
    "Uneven",
    "any_left",
    "joined",
    "mapped",
    "repeated_blocks",
    "require_even",
]
