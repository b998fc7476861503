"""Makes the rows of program kinds that share programs, which are priced together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from distir.simulation.many.kind_rows import KindRows
from distir.simulation.many.shared_stages import SharedStages
from distir.simulation.pricing.stage_table import NAMES, columns_of, columns_of_pair
from distir.simulation.pricing.to_price import ToPrice

if TYPE_CHECKING:
    from distir.arrays import Floats, Indices
    from distir.simulation.many.shared_stages import OverlappedPair
    from distir.simulation.pricing.chains import PassCost
    from distir.simulation.pricing.stage_cost import StageCost


class SharedRows:
    """The rows of kinds with the same priced programs."""

    def __init__(self, kinds: Sequence[KindRows]) -> None:
        self.kinds = kinds
        self._rows, self._priced = kinds[0].rows, kinds[0].priced
        self._stages = SharedStages(self._priced, len(kinds[0].sizes))
        self._described = [kind.described(self._stages) for kind in kinds]
        self._unpriced = self._stages.unpriced()

    @property
    def to_price(self) -> ToPrice:
        """All that is to be priced."""
        unpriced = self._unpriced
        stages = [stage for _, stage in unpriced.stages]
        return self._priced.pricer.to_price(stages, unpriced.overlapped, self._priced.pricing)

    def add(self, costs: Sequence[StageCost], costs_of_pairs: Sequence[PassCost]) -> None:
        """Adds the rows of all stages and of what overlaps, given what they cost."""
        values = self._unpriced.values
        for (rows, _), cost in zip(self._unpriced.stages, costs, strict=True):
            values[: len(NAMES), rows] = columns_of(cost, len(rows))
        first = self._rows.add_rows(values)
        for kind, (described, _) in zip(self.kinds, self._described, strict=True):
            kind.add(described, first + self._unpriced.row_of)
        levels = len(self._priced.pricer.cost.cluster.levels)
        row_of: dict[OverlappedPair, Indices] = {}
        for (pair, wanted), cost in zip(self._stages.pairs, costs_of_pairs, strict=True):
            values: Floats = np.zeros((len(NAMES) + 2 * levels, int(wanted.sum())))
            values[: len(NAMES)] = columns_of_pair(cost, values.shape[1])
            row_of[pair] = self._rows.add_rows(values) + np.cumsum(wanted) - 1
        for kind, (_, overlapping) in zip(self.kinds, self._described, strict=True):
            kind.add_pairs(overlapping, row_of)


__all__ = ["SharedRows"]
