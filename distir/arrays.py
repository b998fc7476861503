"""Array types that many modules use, the distinct values and rows of arrays, and products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from itertools import product as pairs
from math import isqrt
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Codes",
    "Flags",
    "Floats",
    "Indices",
    "Integers",
    "codes_of",
    "distinct",
    "distinct_codes",
    "distinct_rows",
    "edges",
    "grouped",
    "product",
]

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Indices: TypeAlias = NDArray[np.int64]
"""Positions in a sequence, a table or an array."""
Codes: TypeAlias = NDArray[np.signedinteger[Any]]
"""Positions in a list of different values, which mostly is short (`codes_of`)."""

LARGEST_KEY = 1 << 62
"""Numbers that stand for whole rows stay below this, so that they fit in 64 bits."""


PRODUCTS_AT_ONCE = 1 << 18
"""Products of numbers that are added up together: with more, OpenBLAS starts threads."""


Number = TypeVar("Number", bound=np.floating[Any])


def product(matrix: NDArray[Number], columns: NDArray[Number]) -> NDArray[Number]:
    """The product of a matrix and many columns, in parts that are made on one thread: several take
    longer where matrices are small."""
    rows, inner = matrix.shape
    area = max(1, PRODUCTS_AT_ONCE // max(1, inner))
    tall = min(rows, max(isqrt(area), area // max(1, columns.shape[1])))
    wide = area // max(1, tall)
    found = np.empty((rows, columns.shape[1]), matrix.dtype)
    for top, left in pairs(range(0, rows, max(1, tall)), range(0, columns.shape[1], wide)):
        here = slice(top, top + tall), slice(left, left + wide)
        np.matmul(matrix[here[0]], columns[:, here[1]], out=found[here])
    return found


def codes_of(positions: Sequence[int]) -> Codes:
    """Positions as an array, in two bytes each if all of them fit: tables are long, and most lists
    of values short."""
    short = max(positions, default=0) <= np.iinfo(np.int16).max
    return np.array(positions, np.int16 if short else np.int32)


def distinct(values: NDArray[Any]) -> tuple[Indices, Indices]:
    """The distinct values of an array of shape (n,), in ascending order: the position at which each
    is found first, and, for every value of the array, which of the distinct values it is."""
    if len(values) < 2:  # NumPy's first call takes 8 ms, a quarter of a plan's simulation
        return np.arange(len(values)), np.zeros(len(values), np.int64)
    _, first, which = np.unique(values, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def edges(values: NDArray[Any]) -> Indices:
    """Where equal values that are adjacent begin in an array of shape (n,), and n."""
    if not len(values):
        return np.zeros(1, np.int64)
    inner = np.flatnonzero(values[1:] != values[:-1]) + 1
    return np.concatenate([[0], inner, [len(values)]])


def grouped(numbers: Indices) -> Iterator[tuple[int, Indices]]:
    """The different numbers, each with its positions."""
    order = np.argsort(numbers, kind="stable")
    borders = edges(numbers[order])
    for first, end in pairwise(borders.tolist()):
        yield int(numbers[order[first]]), order[first:end]


def distinct_rows(rows: NDArray[Any]) -> tuple[Indices, Indices]:
    """The distinct rows of an array of shape (rows, columns), in lexicographic order: the position
    at which each is found first, and, for every row, which of the distinct rows it is."""
    _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def distinct_codes(columns: Iterable[tuple[Codes, int]], length: int) -> tuple[Indices, Indices]:
    """`distinct_rows` of a table of `length` rows whose columns are codes.

    Every column comes with the number of its values, so that a row of codes can be packed into one
    number.
    """
    key, num_keys = np.zeros(length, np.int64), 1
    for codes, count in columns:
        if num_keys * count > LARGEST_KEY:
            first, key = distinct(key)
            num_keys = len(first)
        key = key * count + codes
        num_keys *= max(1, count)
    return _distinct_below(num_keys, key) if num_keys <= length else distinct(key)


def _distinct_below(limit: int, values: Integers) -> tuple[Indices, Indices]:
    """`distinct` of numbers from 0 to `limit` - 1, without sorting them."""
    first = np.full(limit, -1)
    first[values[::-1]] = np.arange(len(values))[::-1]  # what comes first is written last
    occurring = np.flatnonzero(first >= 0)
    number = np.zeros(limit, np.int64)
    number[occurring] = np.arange(len(occurring))
    return first[occurring], number[values]
