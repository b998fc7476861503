"""The costs of the stages of many strategies: a row per stage and program size.

Strategies that differ only in their schedule have the same program size, and share rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats, Indices
from distir.plan.grid import DeviceGrid
from distir.schedules.compiled.costs import Pairs
from distir.simulation.cutting.partition import Shape
from distir.simulation.cutting.together import Arrangements
from distir.simulation.pricing.tied import (
    StagesOfRanks,
)
from distir.simulation.ranks.many import ArrangementGroup

Between = tuple[tuple[int, ...], ...]
"""Groups of ranks; the ranks of a group add up gradients."""


NO_PAIRS = 0
"""The number of the schedules without overlapped pairs among those with all sets of pairs."""


class StageRows:
    """Rows of the stages of all program sizes, and the rows of each arrangement's stages and,
    behind them, of the overlapped pairs of its schedule.

    A arrangement is a program size with a shape. A row has the numbers of `NAMES`, then per level
    of the cluster the seconds of the messages that the stage sends to the next and to the previous
    one."""

    def __init__(
        self, arrangements: Arrangements, pairs: Sequence[Pairs], pairs_of_arrangement: Indices
    ) -> None:
        """`pairs` are the different sets of overlapped pairs."""
        self.arrangements = arrangements
        count = len(arrangements.size)
        self.rankings: list[DeviceGrid] = []
        """The different positions of pipeline ranks on the cluster, numbered."""
        self.ranking_of_arrangement = np.zeros(count, np.int64)
        self.tied_of_arrangement = np.zeros(count, np.int64)
        self.padding = np.zeros(int(arrangements.size[-1]) + 1 if count else 0)
        self.pool: Floats = np.empty((0, 0))
        self._parts: list[Floats] = []
        self._count = 0
        self._ranking_numbers: dict[tuple[int, ...], int] = {}
        self._tied: dict[Between, int] = {}
        # Per shape the rows and the seconds of tied gradients, by position among its arrangements.
        self._place = np.zeros(count, np.int64)
        self._rows: list[NDArray[np.int32]] = []
        for number, (ranks, _) in enumerate(arrangements.shapes):
            own = np.flatnonzero(arrangements.shape == number)
            self._place[own] = np.arange(len(own))
            self._rows.append(np.zeros((_num_stages(ranks), len(own)), np.int32))
        self._seconds: dict[tuple[int, int], Floats] = {}
        self.pairs, self.pairs_of_arrangement = pairs, pairs_of_arrangement
        self._pair_rows: dict[tuple[int, int], Indices] = {}

    def add_rows(self, values: Floats) -> int:
        """Adds rows, the columns of `values`; returns the number of the first."""
        self._parts.append(values)
        self._count += values.shape[1]
        return self._count - values.shape[1]

    def join(self) -> None:
        """Joins all rows in `pool`."""
        if self._parts:
            self.pool = np.empty((len(self._parts[0]), self._count))
        end = self._count
        while self._parts:  # each part is freed once it is copied
            part = self._parts.pop()
            self.pool[:, end - part.shape[1] : end] = part
            end -= part.shape[1]

    def ranking(self, grid: DeviceGrid) -> int:
        """The number of the positions of a grid's pipeline ranks."""
        key = (grid.ranks.stride, grid.ranks.degree, grid.devices)
        if key not in self._ranking_numbers:
            self._ranking_numbers[key] = len(self.rankings)
            self.rankings.append(grid)
        return self._ranking_numbers[key]

    def describe(
        self, shape: int, arrangements: Indices, rows: Indices, tied: dict[tuple[int, ...], Floats]
    ) -> None:
        """Records the rows of the stages of arrangements, of shape (stages, arrangements), and the
        seconds in which groups of ranks add up gradients."""
        places = self._place[arrangements]
        self._rows[shape][:, places] = rows
        number = self._tied.setdefault(tuple(tied), len(self._tied))
        self.tied_of_arrangement[arrangements] = number
        if tied:
            key = (shape, number)
            if key not in self._seconds:
                self._seconds[key] = np.zeros((len(tied), self._rows[shape].shape[1]))
            self._seconds[key][:, places] = list(tied.values())

    def describe_pairs(self, shape: int, number: int, arrangements: Indices, rows: Indices) -> None:
        """Records the rows of the overlapped pairs of arrangements with the set `number` of pairs,
        of shape (pairs, arrangements)."""
        key = (shape, number)
        if key not in self._pair_rows:
            self._pair_rows[key] = np.zeros((len(rows), self._rows[shape].shape[1]), np.int64)
        self._pair_rows[key][:, self._place[arrangements]] = rows

    def group(self, arrangements: Indices) -> ArrangementGroup:
        """The arrangements of plans, all of one shape, with the same overlapped pairs and the same
        groups of ranks that add up gradients."""
        shape, number = (
            self.arrangements.shape[arrangements[0]],
            int(self.tied_of_arrangement[arrangements[0]]),
        )
        places = self._place[arrangements]
        between = next(ranks for ranks, each in self._tied.items() if each == number)
        seconds = self._seconds[int(shape), number][:, places] if between else ()
        rows, pairs = (
            self._rows[shape][:, places].astype(np.int64),
            self.pairs_of_arrangement[arrangements[0]],
        )
        if pairs != NO_PAIRS and (int(shape), int(pairs)) in self._pair_rows:
            rows = np.concatenate([rows, self._pair_rows[int(shape), int(pairs)][:, places]])
        return ArrangementGroup(
            rows,
            self.ranking_of_arrangement[arrangements],
            dict(zip(between, seconds, strict=True)),
        )


def _num_stages(ranks: StagesOfRanks) -> int:
    return 1 + max(stage for own in ranks for stage in own)


__all__ = ["NO_PAIRS", "Shape", "StageRows"]
