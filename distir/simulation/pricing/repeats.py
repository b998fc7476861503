"""Chains of blocks as repeated patterns, so that equal layers are written down once.

A *pattern* is a few consecutive blocks. If all layers are alike, the pattern is one block; if every
fourth layer differs, it has four blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from distir.arrays import Flags, Floats, Indices

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
    stages have one copy and others several, unless all copies are alike; and where some have none,
    unless the other blocks are as they are where there are some.
    """
    extremes = [_extremes(count) for _, count in chain]
    some = [pattern * min(most, 3) for (pattern, _), (_, most) in zip(chain, extremes, strict=True)]
    results = iter(function([block for own in some for block in own]))
    found = [tuple(islice(results, len(own))) for own in some]
    made: list[RepeatedBlocks[_Result]] = []
    for (pattern, count), own in zip(chain, found, strict=True):
        made += _written_once(
            [own[at : at + len(pattern)] for at in range(0, len(own), len(pattern))], count
        )
    missing = {
        place: chain[place][1] == 0 for place, (least, _) in enumerate(extremes) if not least
    }
    for where, places in _together(missing):
        left = [place for place in range(len(chain)) if place not in places]
        others = function([block for place in left for block in some[place]])
        if list(others) != [each for place in left for each in found[place]]:
            raise Uneven(where)
    return joined(made)


def _written_once(
    copies: Sequence[tuple[_Result, ...]], count: Count
) -> list[RepeatedBlocks[_Result]]:
    """What comes `count` times, given the first copy of it, one in between and the last, or as many
    as there are. Raises `Uneven`."""
    if not copies:
        return []
    if copies.count(copies[0]) == len(copies):
        return [(copies[0], count)]
    require_even(count)
    require_even(count - 1)
    return list(zip(copies, [1, count - 2, 1] if len(copies) == 3 else [1, 1], strict=True))


def _together(missing: Mapping[int, Flags]) -> Iterator[tuple[Flags, Sequence[int]]]:
    """Given by its place the stages from which each pattern is missing that is so from some: the
    stages from which some patterns are missing together, and no others; and their places."""
    if not missing:
        return
    keys = sum(each.astype(np.int64) << bit for bit, each in enumerate(missing.values()))
    for key in np.unique(np.asarray(keys)).tolist():
        if key:
            yield keys == key, [place for bit, place in enumerate(missing) if key >> bit & 1]


def joined(chain: Iterable[tuple[_Pattern, Count]]) -> list[tuple[_Pattern, Count]]:
    """The same chain, in which equal patterns in a row are one."""
    found: list[tuple[_Pattern, Count]] = []
    for pattern, count in chain:
        if found and found[-1][0] == pattern:
            found[-1] = pattern, found[-1][1] + count
        else:
            found.append((pattern, count))
    return found


def _extremes(copies: Count) -> tuple[int, int]:
    """The smallest and the largest number of copies in any stage."""
    if isinstance(copies, int):
        return copies, copies
    return int(np.minimum.reduce(copies)), int(np.maximum.reduce(copies))


def copies_in(copies: Count, which: Indices | None) -> Count:
    """The numbers of copies in some of the stages; None: in all."""
    if which is None or not isinstance(copies, np.ndarray):
        return copies
    return cast("Floats", copies)[which]


def any_left(copies: Count) -> bool:
    """Whether copies of a pattern are left in any stage."""
    return bool((copies > 0).any()) if isinstance(copies, np.ndarray) else copies > 0


def is_in_all(copies: Count) -> bool:
    """Whether there are copies of a pattern in all stages."""
    return bool(copies.all()) if isinstance(copies, np.ndarray) else copies > 0


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
    "copies_in",
    "is_in_all",
    "joined",
    "mapped",
    "repeated_blocks",
    "require_even",
]
