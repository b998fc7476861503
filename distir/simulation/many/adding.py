"""Prices the stages of program kinds, many kinds together, and adds their rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from distir.arrays import Flags
from distir.cost.amounts import Divergence
from distir.simulation.cutting.many import (
    refine,
)
from distir.simulation.cutting.refine import KnownCuts
from distir.simulation.many.kind_rows import KindRows, Unpriced
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.many.program_sizes import SIZES_TOGETHER, ProgramSizes, SizesOfKind
from distir.simulation.many.stage_rows import StageRows
from distir.simulation.pricing.stages import StagePricer, ToPrice, price_together


class StageAdder:
    """Adds the rows of the stages of program kinds to `rows`."""

    def __init__(
        self,
        rows: StageRows,
        pricer: StagePricer,
        known_cuts: KnownCuts,
        sizes: ProgramSizes,
        *,
        holds: bool = False,
    ) -> None:
        """`sizes` are those of all kinds. If the adder `holds`, rows have nothing but bytes until
        `price` replaces them."""
        self.rows = rows
        self._pricer, self._known_cuts, self._sizes = pricer, known_cuts, sizes
        self._cut: list[KindRows] = []
        """What is cut, and not yet priced."""
        self._held: list[KindRows] | None = [] if holds else None
        """What has rows with nothing but bytes."""
        self._known_priced: tuple[object, dict[object, PricedPrograms]] | None = None

    def add(self, kinds: Sequence[SizesOfKind]) -> None:
        """Adds the rows of program sizes of kinds that share programs, and in parts if the sizes of
        a kind turn out to lead to different programs."""
        self._cut += [own for each in kinds for own in self._begun(each)]
        if sum(len(own.of.which) for own in self._cut) >= SIZES_TOGETHER:
            self._add_cut()

    def finish(self) -> None:
        """Adds what is left, and joins all rows."""
        self._add_cut()
        self._known_priced = None
        self.rows.join()

    def price(self, wanted: Flags) -> None:
        """Gives those arrangements that are `wanted` rows with all that stages cost in place of
        rows with bytes."""
        held, self._held, self.rows.wanted = self._held or [], None, wanted
        self._price([own for own in held if own.wanted.any()])
        self.finish()

    def _add_cut(self) -> None:
        """Adds the rows of what was cut."""
        while self._cut:
            cut, self._cut = self._cut, []
            refine(self._known_cuts, [own.found for own in cut])
            if self._held is None:
                self._price(cut)
                continue
            for own in cut:
                try:
                    own.add_held()
                    self._held.append(own)
                except Divergence as divergence:
                    self._part(own, divergence)

    def _part(self, kind: KindRows, divergence: Divergence) -> None:
        """Cuts a kind again, in parts, as its sizes turned out to lead to different programs."""
        parts = kind.of.parted(divergence)
        self._cut += [own for part in parts for own in self._begun(part)]

    def _price(self, kinds: Sequence[KindRows]) -> None:
        """Adds the rows of kinds, whose stages and overlapped pairs are priced together."""
        alike: dict[int, list[KindRows]] = {}
        for own in kinds:
            alike.setdefault(id(own.pricer), []).append(own)
        asked = [each for own in alike.values() for each in self._to_price(own)]
        for (own, _), costs in zip(asked, price_together([each for _, each in asked]), strict=True):
            stages, pairs = iter(costs[0]), iter(costs[1])
            for kind, unpriced in own:
                kind.add(
                    unpriced,
                    list(islice(stages, len(unpriced.stages))),
                    list(islice(pairs, len(unpriced.overlapped))),
                )

    def _to_price(
        self, kinds: Sequence[KindRows]
    ) -> list[tuple[list[tuple[KindRows, Unpriced]], ToPrice]]:
        """What is to be priced of kinds with the same pricer: together, or each apart."""
        try:
            own = [(kind, kind.unpriced()) for kind in kinds]
            stages = [stage for _, each in own for _, stage in each.stages]
            pairs = [pair for _, each in own for pair in each.overlapped]
            return [(own, kinds[0].pricer.to_price(stages, pairs, kinds[0].pricing))]
        except Divergence as divergence:
            if len(kinds) > 1:
                return [each for kind in kinds for each in self._to_price([kind])]
            self._part(kinds[0], divergence)
            return []

    def _begun(self, of: SizesOfKind) -> list[KindRows]:
        """The program sizes of a kind, cut but for refining, as one or in parts."""
        if not len(of.which):
            return []
        try:
            return [
                KindRows(
                    self.rows, self._known_cuts, self._priced(of), of, self._sizes.taken(of.which)
                )
            ]
        except Divergence as divergence:
            parts = of.parted(divergence)
            return [own for part in parts for own in self._begun(part)]

    def _priced(self, of: SizesOfKind) -> PricedPrograms:
        """The programs of a kind, shared with those before that have the same sizes and blocks; if
        there are none, new ones with a pricer of their own, as what it keeps depends on the
        sizes."""
        sharing = (of.kind.sharing, of.placement)
        if self._known_priced is None or self._known_priced[0] != sharing:
            self._known_priced = sharing, {}
        known, key = self._known_priced[1], of.shared.key
        if key not in known:
            own = self._pricer.of_many(len(of.shared))
            known[key] = PricedPrograms(own, of.kind, of.placement, of.shared)
        return known[key]


__all__ = ["StageAdder"]
