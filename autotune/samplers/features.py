"""Strategies as points of which alike ones are near each other: what models of samplers read.

A doubling of a degree is one step, whatever the space, the model and the cluster, so that what was
learned in one study says something in another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from distir.arrays import Floats, Indices, Integers
from distir.strategies import Strategies

DOUBLING = ("dp", "tp", "pp", "cp", "ep", "microbatches", "chunks", "recompute_every")
"""Choices that count something: a factor of two is a step."""
NAMED = (
    *("schedule", "recompute", "keep_gathered", "cp_exchange", "placement", "axes", "offload"),
    *("sync_every", "outer_optimizer"),
)
"""Choices among names, or few values: any two are one step apart."""


class Features:
    """Columns of numbers for strategies."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        """`names`: the values of the choices in `NAMED` that are told apart."""
        self._names = {name: tuple(names[name]) for name in NAMED if len(names[name]) > 1}

    @property
    def groups(self) -> Indices:
        """Per feature, 0 for what says where work is done, and 1 for how."""
        where = len(DOUBLING) + 1
        how = 4 + sum(len(known) for known in self._names.values())
        return np.repeat([0, 1], [where, how])

    def rows(self, table: Strategies, samples: Integers) -> Floats:
        """The features of each strategy, an array [strategies, features]; `samples` are those of
        its microbatches."""
        columns = [np.log2(table.column(name)) for name in DOUBLING]
        zero, degree = table.column("zero"), table.column("zero_degree")
        shared_by = np.where(degree > 0, degree, table.column("dp"))
        columns += [np.log2(samples), zero, np.log2(shared_by) * (zero > 0)]
        columns.append(np.log2(1 + table.column("recompute_layers")))
        columns.append(table.column("sequence_parallel"))
        for name, known in self._names.items():
            column = table.column(name)
            columns += [(column == value) / np.sqrt(2.0) for value in known]
        return np.stack(columns, axis=1).astype(np.float64)


def samples_of(table: Strategies, batch_size: int) -> Integers:
    """The samples of a microbatch of each strategy."""
    return np.maximum(batch_size // (table.column("dp") * table.column("microbatches")), 1)


__all__ = ["Features", "samples_of"]
