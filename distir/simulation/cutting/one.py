"""The cuts of one plan. `many.py` is the version for many plans, with the same functions;
tests/laws/test_batch.py holds the two to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.plan import BlockProgram, ModelPrograms
from distir.schedules import COST_KINDS, WEIGHT_PART, PeakInFlight
from distir.simulation.cutting.fitting import (
    BlocksToCut,
    InFlight,
    PlansToFit,
    fit_as_cut,
    fitted_bounds,
)
from distir.simulation.cutting.partition import Bounds, num_stages, rounded_weights
from distir.simulation.cutting.ranges import LAUNCHES, LINKS, STREAMS
from distir.simulation.cutting.refine import SPARE_BYTES, KnownCuts, Order, rounded_passes
from distir.simulation.pricing.block_bytes import mixed
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.stages import StagePricer


class BalancedStages(NamedTuple):
    """Stages that are balanced by time as far as memory allows."""

    bounds: Bounds
    fits: bool
    """Whether these fit."""
    moved: bool
    """Whether they do, and those that time alone has do not."""


@dataclass(frozen=True, slots=True)
class StageCut:
    """Cuts the blocks of one plan into stages. Where stages pick which layers they recompute, a
    layer counts as the mean of one that is recomputed and one that is not: cuts are looked for
    before it is known which."""

    pricer: StagePricer
    programs: ModelPrograms
    flight: PeakInFlight
    """Microbatches that the schedule has in flight on its ranks."""
    chunks: int
    pricing: Pricing
    room_bytes: float
    """Bytes that tensors may take on a device."""

    def bounds(self, known: KnownCuts, order: Order | None) -> Bounds:
        """The bounds of stages: balanced by time as far as memory allows, and refined by the order
        of the schedule, if there is one, as far as memory allows."""
        bounds, fits, moved = self.balanced(known)
        if order is None or not fits:
            return bounds
        alone = np.zeros(1, np.int64)
        plan = rounded_passes(self._passes()), [order], alone, alone, [bounds]
        if not moved:
            (refined,) = known.refined.bounds(*plan)
            if refined == bounds or self._fit(alone, np.array(refined), alone).all():
                return refined
        (refined,) = known.refined.moved(*plan, self._fit)
        return refined

    def balanced(self, known: KnownCuts) -> BalancedStages:
        """The bounds of stages that are balanced by time as far as memory allows."""
        alone = np.zeros(1, np.int64)
        shape = (self.flight.stages_of_ranks, self.chunks)
        rounded = rounded_weights(self._weights())
        (bounds,) = known.balanced.bounds(rounded, [shape], alone, alone)
        fitted = fitted_bounds(self._model(), self._to_fit(np.array(bounds), alone))
        if fitted.bounds:
            return BalancedStages(fitted.bounds[0], fits=True, moved=True)
        return BalancedStages(bounds, fits=bool(len(fitted.as_cut)), moved=False)

    def _fit(self, some: Indices, bounds: Indices, begins: Indices) -> Flags:
        """Whether the plan fits with each of several bounds, and leaves `SPARE_BYTES`."""
        as_cut = fit_as_cut(self._model(1 - SPARE_BYTES), self._to_fit(bounds, begins))
        return np.isin(np.arange(len(begins)), as_cut)

    def _share(self) -> Floats:
        return np.array([self.programs.share(num_stages(self.flight.stages_of_ranks))])

    def _splits(self) -> bool:
        return WEIGHT_PART in self.flight.cost_kinds

    def _weights(self) -> Floats:
        """Seconds of blocks, of shape (1, blocks)."""

        def of(programs: Sequence[BlockProgram]) -> Floats:
            return np.array([self.pricer.weights(programs, self.pricing)])

        kept = of(self.programs.kept)
        if not self.programs.most:
            return kept
        return mixed(kept, of(self.programs.recomputed), self._share())

    def _passes(self) -> Floats:
        """What the passes of blocks take, of shape (1, 3, cost kinds, blocks)."""

        def of(programs: Sequence[BlockProgram]) -> Floats:
            found = np.zeros((3, COST_KINDS, len(programs)))
            alone = self.pricer.passes_alone(programs, self.pricing, splits=self._splits())
            for place, own in enumerate(alone):
                for kind, each in enumerate(own):
                    found[STREAMS, kind, place] = each.stream_seconds
                    found[LAUNCHES, kind, place] = each.launch_seconds
                    found[LINKS, kind, place] = each.link_seconds
            return found.reshape(1, -1)

        seconds = of(self.programs.kept)
        if self.programs.most:
            seconds = mixed(seconds, of(self.programs.recomputed), self._share())
        return seconds.reshape(1, 3, COST_KINDS, -1)

    def _model(self, part: float = 1.0) -> BlocksToCut:
        """The blocks, on devices of which only a part may be taken."""
        kinds, splits = self.programs.kinds, self._splits()
        held = self.pricer.block_bytes(self.programs.kept, kinds, self.pricing, splits=splits)
        if self.programs.most:
            again = self.pricer.block_bytes(
                self.programs.recomputed, kinds, self.pricing, splits=splits
            )
            held = held.mixed(again, self._share())
        rounded = rounded_weights(self._weights()).astype(np.float64)
        return BlocksToCut(np.array(kinds), rounded, held, np.array([self.room_bytes * part]))

    def _to_fit(self, bounds: Indices, begins: Indices) -> PlansToFit:
        """The plan with each of several bounds, one after the other; see `PlansToFit`."""
        alone = np.zeros(len(begins), np.int64)
        return PlansToFit(bounds, begins, alone, InFlight.of([self.flight]), alone)


__all__ = ["BalancedStages", "StageCut"]
