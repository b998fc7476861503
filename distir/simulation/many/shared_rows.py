"""Makes the rows of program kinds with one mesh, which are priced together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from distir.simulation.many.kind_rows import KindRows
from distir.simulation.many.shared_stages import SharedStages
from distir.simulation.pricing.stage_table import columns_of_pairs
from distir.simulation.pricing.to_price import ToPrice

if TYPE_CHECKING:
    from distir.arrays import Indices
    from distir.simulation.many.shared_stages import OverlappedPair
    from distir.simulation.pricing.chains_many import ChainColumns


class SharedRows:
    """The rows of kinds with the same priced programs."""

    def __init__(self, kinds: Sequence[KindRows]) -> None:
        self.kinds = kinds
        self._rows, self._priced = kinds[0].rows, kinds[0].priced
        self._stages = SharedStages(self._priced)
        self._described = [kind.described(self._stages) for kind in kinds]
        self._unpriced = self._stages.unpriced()

    @property
    def to_price(self) -> ToPrice:
        """All that is to be priced."""
        stages, pairs = self._unpriced.passes.stages, self._stages.overlapped
        return self._priced.pricer.to_price(stages, pairs, self._priced.pricing)

    def add(self, columns: Sequence[ChainColumns]) -> None:
        """Adds the rows of all stages and of what overlaps, given what their chains cost: by cost
        kind, and then those of what overlaps."""
        *of_stages, of_pairs = columns
        first = self._rows.add_rows(self._unpriced.priced(of_stages))
        row_of_stage = first + self._unpriced.row_of
        for kind, described in zip(self.kinds, self._described, strict=True):
            kind.add(described, row_of_stage)
        levels = len(self._priced.pricer.cost.cluster.levels)
        values = columns_of_pairs(of_pairs, levels)
        row_of: dict[OverlappedPair, Indices] = {}
        first = self._rows.add_rows(values)
        for pair, wanted in self._stages.pairs:
            row_of[pair] = first - 1 + np.cumsum(wanted)
            first += int(wanted.sum())
        for kind, described in zip(self.kinds, self._described, strict=True):
            kind.add_pairs(described, row_of)


__all__ = ["SharedRows"]
