"""What stages take, whatever blocks they begin and end with, from what their blocks take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from distir.arrays import Floats, Indices, distinct
from distir.schedules import COST_KINDS

HostBound = Callable[[Any, Any], Any]
"""Seconds of a pass, from those of its streams and of its launches."""

STREAMS, LAUNCHES, LINKS = range(3)
"""The order of what passes take (see `BlockPass`)."""

RANGES_AT_ONCE = 1 << 18
"""Rows times ranges whose seconds are kept together, to bound memory."""


def whole(seconds: Floats) -> Floats:
    """Rounded away from halves: ratios of sizes often are halves, and errors would decide."""
    return np.floor(seconds + 0.4321)


class Ranges:
    """The ranges of adjacent blocks that a stage may hold, for several *rows* of what blocks take.
    Ranges of equal blocks are one range: most blocks of a model are alike."""

    def __init__(self, passes: Indices, bound: HostBound) -> None:
        """`passes` are whole numbers, of shape (rows, 3, cost kinds, blocks)."""
        self._passes, self._bound = passes, bound
        _, blocks = _different_rows(np.moveaxis(passes, -1, 0))
        self._different = _different_ranges(tuple(blocks))

    @property
    def numbers(self) -> Indices:
        """The number of the range from each bound to each other, of shape (bounds, bounds)."""
        return self._different.numbers

    def parts(self) -> Iterator[slice]:
        """Rows whose seconds can be kept together."""
        at_once = max(1, RANGES_AT_ONCE // len(self._different.begins))
        for first in range(0, len(self._passes), at_once):
            yield slice(first, min(first + at_once, len(self._passes)))

    def seconds(self, rows: slice, kinds: Sequence[int]) -> Floats:
        """What stages take, of shape (rows, ranges, cost kinds), in whole numbers; zeros in other
        cost kinds than those asked for."""
        passes = self._passes[rows]
        found = np.zeros((len(passes), len(self._different.begins), COST_KINDS))
        for kind in kinds:
            first, which = _different_rows(passes[:, :, kind])
            sums = np.zeros((len(first), 3, passes.shape[-1] + 1))
            sums[..., 1:] = passes[first, :, kind]
            np.cumsum(sums, axis=-1, out=sums)
            each = sums.take(self._different.ends, axis=-1)
            each -= sums.take(self._different.begins, axis=-1)
            bounded = whole(self._bound(each[:, STREAMS], each[:, LAUNCHES]))
            found[..., kind] = np.maximum(bounded, each[:, LINKS])[which]
        return found


def _different_rows(rows: Indices) -> tuple[list[int], list[int]]:
    """The places at which different rows come first, and which of these each row is."""
    known: dict[bytes, int] = {}
    which = [known.setdefault(each.tobytes(), len(known)) for each in rows]
    first = dict(zip(reversed(which), reversed(range(len(which))), strict=True))
    return [first[number] for number in range(len(known))], which


class _Different(NamedTuple):
    """Ranges of blocks, those that differ."""

    numbers: Indices
    """See `Ranges.numbers`; 0 where a range has no block."""
    begins: Indices
    """The bound at which each begins where it comes first; the first one is empty."""
    ends: Indices
    """The bound at which it ends there."""


@lru_cache(maxsize=16)
def _different_ranges(blocks: tuple[int, ...]) -> _Different:
    """The ranges of blocks, of which equal ones have equal numbers. A range is another one and a
    further block, so that ranges are compared by two numbers."""
    kinds, count = np.array(blocks), len(blocks)
    numbers = np.zeros((count + 1, count + 1), np.int64)
    begins, ends = [0], [0]
    shorter = np.zeros(count, np.int64)
    for length in range(1, count + 1):
        begin = np.arange(count + 1 - length)
        first, which = distinct(shorter[begin] * count + kinds[length - 1 :])
        shorter = len(begins) + which
        numbers[begin, begin + length] = shorter
        begins += first.tolist()
        ends += (first + length).tolist()
    return _Different(numbers, np.array(begins), np.array(ends))


__all__ = ["LAUNCHES", "LINKS", "STREAMS", "HostBound", "Ranges", "whole"]
