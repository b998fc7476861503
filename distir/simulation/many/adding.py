"""Prices the stages of program kinds, many kinds together, and adds their rows."""

from __future__ import annotations

from collections.abc import Sequence

from distir.cost.amounts import Divergence
from distir.simulation.cutting.parameter_uses import KnownParameterUses
from distir.simulation.cutting.refine import KnownCuts
from distir.simulation.cutting.together import cut_together
from distir.simulation.many.kind_rows import KindRows
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.many.program_sizes import SIZES_TOGETHER, ProgramSizes, SizesOfKind
from distir.simulation.many.shared_rows import SharedRows
from distir.simulation.many.stage_rows import StageRows
from distir.simulation.pricing.stages import StagePricer
from distir.simulation.pricing.to_price import ToPrice, timed_together


class StageAdder:
    """Adds the rows of the stages of program kinds to `rows`."""

    def __init__(
        self,
        rows: StageRows,
        pricer: StagePricer,
        known_cuts: KnownCuts,
        sizes: ProgramSizes,
    ) -> None:
        """`sizes` are those of all kinds."""
        self.rows = rows
        self._pricer, self._known_cuts, self._sizes = pricer, known_cuts, sizes
        self._known_uses = KnownParameterUses(pricer.workload, rows.arrangements.shapes)
        self._cut: list[KindRows] = []
        """What is cut, and not yet priced."""
        self._known_priced: dict[object, PricedPrograms] = {}

    def add(self, several: Sequence[Sequence[SizesOfKind]]) -> None:
        """Adds the rows of program sizes of kinds with one mesh, of which those that share programs
        are together, and in parts if the sizes of a kind turn out to lead to different programs."""
        self._known_priced = {}
        for kinds in several:
            self._cut += [own for each in kinds for own in self._begun(each)]
            if sum(len(own.of.which) for own in self._cut) >= SIZES_TOGETHER:
                self._add_cut()

    def finish(self) -> None:
        """Adds what is left, and joins all rows."""
        self._add_cut()
        self._known_priced = {}
        self.rows.join()

    def _add_cut(self) -> None:
        """Adds the rows of what was cut."""
        while self._cut:
            cut, self._cut = self._cut, []
            found = cut_together(
                self._known_cuts, self.rows.arrangements, [own.to_cut for own in cut]
            )
            for own, each in zip(cut, found, strict=True):
                own.found = each
            self._price(self._shared(cut))

    def _shared(self, kinds: Sequence[KindRows]) -> list[SharedRows]:
        """The rows of kinds, of which those that share prices are together."""
        alike: dict[int, list[KindRows]] = {}
        for own in kinds:
            alike.setdefault(id(own.priced), []).append(own)
        return [each for own in alike.values() for each in self._together(own)]

    def _together(self, kinds: Sequence[KindRows]) -> list[SharedRows]:
        """The rows of kinds that share prices, together or each apart."""
        try:
            return [SharedRows(kinds)]
        except Divergence as divergence:
            return self._apart(kinds, divergence)

    def _apart(self, kinds: Sequence[KindRows], divergence: Divergence) -> list[SharedRows]:
        """The rows of kinds each apart; a single one is cut again, in parts, as its sizes turned
        out to lead to different programs."""
        if len(kinds) > 1:
            return [each for kind in kinds for each in self._together([kind])]
        parts = kinds[0].of.parted(divergence)
        self._cut += [own for part in parts for own in self._begun(part)]
        return []

    def _price(self, shared: Sequence[SharedRows]) -> None:
        """Adds rows, whose stages and overlapped pairs are priced together."""
        asked = [each for own in shared for each in self._to_price(own)]
        timed = timed_together([each for _, each in asked])
        for (own, _), columns in zip(asked, timed, strict=True):
            own.add(columns)

    def _to_price(self, shared: SharedRows) -> list[tuple[SharedRows, ToPrice]]:
        """What is to be priced of rows: together, or of each kind apart."""
        try:
            return [(shared, shared.to_price)]
        except Divergence as divergence:
            apart = self._apart(shared.kinds, divergence)
            return [each for own in apart for each in self._to_price(own)]

    def _begun(self, of: SizesOfKind) -> list[KindRows]:
        """The program sizes of a kind, to be cut into stages, as one or in parts."""
        if not len(of.which):
            return []
        try:
            return [
                KindRows(
                    self.rows,
                    self._known_uses,
                    self._priced(of),
                    of,
                    self._sizes.taken(of.which),
                )
            ]
        except Divergence as divergence:
            parts = of.parted(divergence)
            return [own for part in parts for own in self._begun(part)]

    def _priced(self, of: SizesOfKind) -> PricedPrograms:
        """The programs of a kind, shared with kinds that are added with it and have the same mesh
        and sizes; if there are none, new ones with a pricer of their own, as what it keeps depends
        on the sizes."""
        known, key = self._known_priced, (of.kind.mesh, of.placement, of.shared.key)
        if key not in known:
            own = self._pricer.of_many(len(of.shared))
            known[key] = PricedPrograms(own, of.kind, of.placement, of.shared)
        return known[key]


__all__ = ["StageAdder"]
