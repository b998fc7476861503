"""Many strategies as columns: per field its distinct values, and per strategy a code for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Codes, Floats, Indices, codes_of, distinct_codes
from distir.strategy import DEGREES, Strategy, further_axes

FIELDS = tuple(field.name for field in fields(Strategy))


class Strategies(Sequence[Strategy]):
    """A sequence of strategies, stored as columns; a `Strategy` is made when it is asked for."""

    __slots__ = ("codes", "length", "values")

    def __init__(
        self, values: Mapping[str, Sequence[Any]], codes: Mapping[str, Codes], length: int
    ) -> None:
        """`values[field]` are a field's distinct values, and `codes[field]` the index among them
        for each of `length` strategies. A field without codes has one value for all."""
        self.values = {name: tuple(values[name]) for name in FIELDS}
        self.codes = dict(codes)
        self.length = length

    @classmethod
    def of(cls, strategies: Iterable[Strategy]) -> Strategies:
        """The columns of these strategies."""
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
                codes[name] = codes_of(column)
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
        """The strategies at these indices, or where a mask is true."""
        codes = {name: column[which] for name, column in self.codes.items()}
        return Strategies(self.values, codes, len(which))

    def joined(self, other: Strategies) -> Strategies:
        """These strategies and, behind them, other ones."""
        values: dict[str, tuple[Any, ...]] = {}
        codes: dict[str, Codes] = {}
        for name in FIELDS:
            values[name] = tuple(dict.fromkeys([*self.values[name], *other.values[name]]))
            if len(values[name]) > 1:
                both = [each.codes_among(name, values[name]) for each in (self, other)]
                codes[name] = np.concatenate(both)
        return Strategies(values, codes, len(self) + len(other))

    def codes_among(self, name: str, values: Sequence[Any]) -> Codes:
        """The place of each strategy's value of a field among `values`; -1 where it is not."""
        place = {value: number for number, value in enumerate(values)}
        places = codes_of([place.get(value, -1) for value in self.values[name]])
        codes = self.codes.get(name)
        return np.repeat(places[:1], self.length) if codes is None else places[codes]

    def find(self, strategy: Strategy) -> int | None:
        """The first place of a strategy, None if it is not among these."""
        same = np.ones(self.length, np.bool_)
        for name in FIELDS:
            wanted = getattr(strategy, name)
            if wanted not in self.values[name]:
                return None
            if name in self.codes:
                same &= self.codes[name] == self.values[name].index(wanted)
        return int(same.argmax()) if same.any() else None

    def column(self, name: str) -> NDArray[Any]:
        """The values of a field, one per strategy."""
        values = np.array(self.values[name])
        codes = self.codes.get(name)
        return np.repeat(values, self.length) if codes is None else values[codes]

    @property
    def communicators(self) -> Floats:
        """`Strategy.communicators`, one per strategy."""
        above_one = [(self.column(name) > 1).astype(np.float64) for name in DEGREES]
        of_text = {axes: further_axes(axes) for axes in self.values["axes"]}
        if any(of_text.values()):
            above_one.append(np.array([of_text[axes] for axes in self.column("axes")], np.float64))
        return np.stack(above_one).sum(axis=0)

    def choices(self, names: Sequence[str], indices: Indices) -> list[dict[str, Any]]:
        """The values of some fields, by field, of each strategy at some indices."""
        columns = [self._values_at(name, indices) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _values_at(self, name: str, indices: Indices) -> list[Any]:
        values, codes = self.values[name], self.codes.get(name)
        if codes is None:
            return list(values[:1]) * len(indices)
        return [values[code] for code in codes[indices].tolist()]

    def distinct(self, names: Iterable[str]) -> tuple[Indices, Indices]:
        """Groups strategies that agree in these fields. Returns the index of the first strategy of
        each group, and per strategy the number of its group."""
        columns = [
            (self.codes[name], len(self.values[name])) for name in names if name in self.codes
        ]
        return distinct_codes(columns, self.length)


__all__ = ["FIELDS", "Strategies"]
