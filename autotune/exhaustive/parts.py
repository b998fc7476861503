"""Parts of a space: strategies, or beginnings of them, with their bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Indices, distinct_codes
from distir.simulation.bounds import ManyBounds
from distir.strategies import FIELDS, Strategies

DEGREES = ("dp", "tp", "cp", "ep")
"""Degrees of which strategies bounded together at first have the same ones above 1."""


class Stage(IntEnum):
    """What the bounds of a part are made of."""

    PRODUCTS = 0
    RELAXED = 1
    UNSHARDED = 2
    BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the space: beginnings of strategies, each with the node of the tree that may
    follow it, or (past `PRODUCTS`) whole strategies; and their bounds."""

    stage: Stage
    table: Strategies
    bounds: ManyBounds
    leaves: Indices
    """Strategies that each stands for."""
    nodes: Indices

    def taken(self, chosen: NDArray[Any]) -> Part:
        """The rows at these places, or where the mask is true."""
        which = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return Part(
            self.stage,
            self.table.taken(which),
            self.bounds.taken(which),
            self.leaves[which],
            self.nodes[which],
        )


def joined(parts: Sequence[Part]) -> Part:
    """Parts of one stage as one; all strategies of a search have the same values."""
    if len(parts) == 1:
        return parts[0]
    values = parts[0].table.values
    codes = {
        name: np.concatenate([part.table.codes_among(name, values[name]) for part in parts])
        for name in FIELDS
        if any(name in part.table.codes for part in parts)
    }
    leaves = np.concatenate([part.leaves for part in parts])
    bounds = [part.bounds for part in parts]
    return Part(
        parts[0].stage,
        Strategies(values, codes, len(leaves)),
        ManyBounds(
            *(
                np.concatenate([getattr(each, field.name) for each in bounds])
                for field in fields(ManyBounds)
            )
        ),
        leaves,
        np.concatenate([part.nodes for part in parts]),
    )


def split_over(table: Strategies) -> list[NDArray[np.bool_]]:
    """By degree whether each strategy has it above 1."""
    return [table.column(name) > 1 for name in DEGREES]


def alike_rows(by: Sequence[NDArray[Any]]) -> tuple[Indices, Indices]:
    """The distinct rows (`distinct_codes`) of a table with these columns of numbers, which are not
    negative."""
    columns = ((each, 1 + int(each.max(initial=0))) for each in by)
    return distinct_codes(columns, len(by[0]))


def split(part: Part, by: Sequence[NDArray[Any]]) -> Iterator[Part]:
    """Splits a part into groups of strategies that have equal numbers in all of `by`, which are not
    negative."""
    if not len(part.table):
        return
    first, which = alike_rows(by)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    for own in np.split(order, ends[:-1]):
        yield part.taken(own)


__all__ = ["DEGREES", "Part", "Stage", "alike_rows", "joined", "split", "split_over"]
