"""The costs of the stages of many strategies: a row per stage and program size.

Strategies that differ only in their schedule have the same program size, and share rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from distir.arrays import Floats, Indices
from distir.plan.grid import DeviceGrid
from distir.schedules.compiled.costs import Pairs
from distir.simulation.cutting.fitting import Runs
from distir.simulation.cutting.partition import Shape, num_stages
from distir.simulation.cutting.together import Arrangements
from distir.simulation.ranks.many import ArrangementGroup

Between = tuple[tuple[int, ...], ...]
"""Groups of ranks; the ranks of a group add up gradients."""


NO_PAIRS = 0
"""The number of the schedules without overlapped pairs among those with all sets of pairs."""


class StageRows:
    """Rows of the stages of all program sizes, and the rows of each arrangement's stages and,
    behind them, of the overlapped pairs of its schedule.

    An arrangement is a program size with a shape. A row has the numbers of `NAMES`, then per level
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
        stages = np.array([num_stages(ranks) for ranks, _ in arrangements.shapes], np.int64)
        overlapped = np.array([*map(len, pairs)], np.int64)
        of_stages, of_pairs = stages[arrangements.shape], overlapped[pairs_of_arrangement]
        both = Runs.of_counts(of_stages + of_pairs)
        self._stages = Runs(both.first, of_stages)
        self._pairs = Runs(both.first + of_stages, of_pairs)
        """The stages of all arrangements, and the overlapped pairs behind those of each."""
        self._rows = np.zeros(int(both.count.sum()), np.int32)
        """The rows of these."""
        self._seconds: dict[int, list[Floats]] = {}
        """By the number of groups of ranks, parts of the seconds in which they add up gradients."""
        self._place = np.zeros(count, np.int64)
        """The place of each arrangement among these seconds."""
        self.pairs, self.pairs_of_arrangement = pairs, pairs_of_arrangement

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
        for number, parts in self._seconds.items():
            self._seconds[number] = [np.concatenate(parts, axis=1)]

    def ranking(self, grid: DeviceGrid) -> int:
        """The number of the positions of a grid's pipeline ranks."""
        key = (grid.ranks.stride, grid.ranks.degree, grid.devices)
        if key not in self._ranking_numbers:
            self._ranking_numbers[key] = len(self.rankings)
            self.rankings.append(grid)
        return self._ranking_numbers[key]

    def describe(self, arrangements: Indices, rows: Indices) -> None:
        """Records the rows of the stages of arrangements, one arrangement after the other."""
        at, _ = self._stages.of(arrangements)
        self._rows[at] = rows

    def describe_pairs(self, arrangements: Indices, rows: Indices) -> None:
        """Records the rows of the overlapped pairs of arrangements that have the same ones, of
        shape (pairs, arrangements)."""
        at, _ = self._pairs.of(arrangements)
        self._rows[at] = rows.T.ravel()

    def tie(self, arrangements: Indices, tied: Mapping[tuple[int, ...], Floats]) -> None:
        """Records the seconds in which groups of ranks add up gradients in arrangements."""
        number = self._tied.setdefault(tuple(tied), len(self._tied))
        self.tied_of_arrangement[arrangements] = number
        if tied:
            parts = self._seconds.setdefault(number, [])
            first = sum(part.shape[1] for part in parts)
            self._place[arrangements] = first + np.arange(len(arrangements))
            parts.append(np.array([*tied.values()]))

    def group(self, arrangements: Indices) -> ArrangementGroup:
        """The arrangements of plans, all of one shape, with the same overlapped pairs and the same
        groups of ranks that add up gradients."""
        one = int(arrangements[0])
        rows = np.arange(int(self._stages.count[one] + self._pairs.count[one]))
        number = int(self.tied_of_arrangement[one])
        between = list(self._tied)[number]
        seconds = self._seconds[number][0][:, self._place[arrangements]] if between else ()
        return ArrangementGroup(
            self._rows[self._stages.first[arrangements] + rows[:, None]].astype(np.int64),
            self.ranking_of_arrangement[arrangements],
            dict(zip(between, seconds, strict=True)),
        )


__all__ = ["NO_PAIRS", "Shape", "StageRows"]
