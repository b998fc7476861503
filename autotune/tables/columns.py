"""Evaluated strategies as the columns of a table: number, choices, state, reason, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.strategies import FIELDS, Strategies

if TYPE_CHECKING:
    from autotune.exhaustive.chunks import Chunk

STATES = ("failed", "feasible", "infeasible")


@dataclass(frozen=True, slots=True)
class Coded:
    """A column of few different values: the values, and each row's index into them."""

    values: Sequence[Any]
    codes: NDArray[np.integer[Any]]

    def __len__(self) -> int:
        return len(self.codes)


TableColumn: TypeAlias = "Coded | NDArray[Any]"
"""A column: coded, or one value per row."""


def columns(chunk: Chunk, batch_size: int, metrics: Sequence[str]) -> dict[str, TableColumn]:
    """A chunk as columns, by name. Metrics that it does not have are NaN."""
    found = chunk.evaluations
    unknown = np.full(len(chunk), np.nan)
    strategies = Strategies.of(chunk.strategies)
    same = np.zeros(len(chunk), np.int16)
    chosen = {
        name: Coded(strategies.values[name], strategies.codes.get(name, same)) for name in FIELDS
    }
    samples = batch_size // (strategies.column("dp") * strategies.column("microbatches"))
    sizes, size = np.unique(samples, return_inverse=True)
    return {
        "number": chunk.numbers,
        **chosen,
        "micro_batch": Coded(sizes.tolist(), size.reshape(-1)),
        "state": Coded(STATES, np.where(found.failed, 0, np.where(found.feasible, 1, 2))),
        "reason": _reasons(found.reasons, len(chunk)),
        **{name: found.metrics.get(name, unknown) for name in metrics},
    }


def _reasons(reasons: Mapping[int, str], rows: int) -> Coded:
    """Reasons by row, None where there is none."""
    known: dict[str | None, int] = {None: 0}
    codes = np.zeros(rows, np.int64)
    codes[list(reasons)] = [known.setdefault(each, len(known)) for each in reasons.values()]
    return Coded(list(known), codes)


__all__ = ["Coded", "TableColumn", "columns"]
