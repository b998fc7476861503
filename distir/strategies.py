"""Many strategies as columns: per field the values that occur, and which of them each has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from distir.strategy import Strategy

Codes = NDArray[np.int16]
"""Which of a field's values each strategy has."""
Places = NDArray[np.int64]
"""Positions in some table."""

FIELDS = tuple(field.name for field in fields(Strategy))


class Strategies(Sequence[Strategy]):
    """A sequence of strategies that makes each of them when it is asked for."""

    __slots__ = ("codes", "length", "values")

    def __init__(
        self, values: Mapping[str, Sequence[Any]], codes: Mapping[str, Codes], length: int
    ) -> None:
        """`values` are those of every field, `codes` which of them a strategy has; a field without
        codes has one value."""
        self.values = {name: tuple(values[name]) for name in FIELDS}
        self.codes = dict(codes)
        self.length = length

    @classmethod
    def of(cls, strategies: Iterable[Strategy]) -> Strategies:
        """The columns of single strategies."""
        if isinstance(strategies, Strategies):
            return strategies
        listed = list(strategies)
        values: dict[str, list[Any]] = {}
        codes: dict[str, Codes] = {}
        for name in FIELDS:
            known: dict[object, int] = {}
            column = [known.setdefault(getattr(each, name), len(known)) for each in listed]
            values[name] = list(known)
            if len(known) > 1:
                codes[name] = np.array(column, np.int16)
        return cls(values, codes, len(listed))

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Strategy: ...
    @overload
    def __getitem__(self, index: slice) -> Strategies: ...
    def __getitem__(self, index: int | slice) -> Strategy | Strategies:
        if isinstance(index, slice):
            return self.taken(np.arange(self.length)[index])
        if not -self.length <= index < self.length:
            raise IndexError(f"there are {self.length} strategies; asked for number {index}")
        return Strategy(**{name: self._value(name, index) for name in FIELDS})

    def __iter__(self) -> Iterator[Strategy]:
        return (self[index] for index in range(self.length))

    def _value(self, name: str, index: int) -> Any:
        codes = self.codes.get(name)
        return self.values[name][0 if codes is None else int(codes[index])]

    def taken(self, which: NDArray[Any]) -> Strategies:
        """Those at some positions."""
        codes = {name: column[which] for name, column in self.codes.items()}
        return Strategies(self.values, codes, len(which))

    def column(self, name: str) -> NDArray[Any]:
        """The values of a field, one per strategy."""
        values = np.array(self.values[name])
        codes = self.codes.get(name)
        return np.repeat(values, self.length) if codes is None else values[codes]

    def distinct(self, names: Iterable[str]) -> tuple[Places, Places]:
        """Strategies that differ in these fields: the position of the first of each kind, and
        which kind each strategy is."""
        columns = [
            (self.codes[name], len(self.values[name])) for name in names if name in self.codes
        ]
        return distinct_rows(columns, self.length)


LARGEST = 1 << 62
"""Numbers of rows stay below."""


def distinct_rows(columns: Iterable[tuple[Codes, int]], length: int) -> tuple[Places, Places]:
    """Of a table, given as columns of codes with the number of different ones, the place where each
    distinct row is found first, in the order of the codes, and which of them each row is."""
    key, most = np.zeros(length, np.int64), 1
    for codes, count in columns:
        if most * count > LARGEST:
            first, key = distinct(key)
            most = len(first)
        key = key * count + codes
        most *= max(1, count)
    return distinct(key)


def distinct(key: NDArray[Any]) -> tuple[Places, Places]:
    """Where each number is found first, and which of them each is."""
    if len(key) < 2:  # NumPy's first answer takes 8 ms, a quarter of a plan's simulation
        return np.arange(len(key)), np.zeros(len(key), np.int64)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


__all__ = ["Codes", "Places", "Strategies", "distinct", "distinct_rows"]
