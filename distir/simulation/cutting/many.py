"""The blocks that the plans of a program kind are cut from, and what the cuts come to; `one.py` is
the version for one plan, and `together.py` finds the cuts of several kinds.

Plans are cut alike if they have one *arrangement*: a program size, a shape (see `partition.py`),
the microbatches in flight on the ranks, and the order of what ranks run (see `refine.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distir.arrays import Floats, Indices, distinct
from distir.plan import BlockProgram, ModelPrograms
from distir.schedules import COST_KINDS
from distir.simulation.cutting.parameter_uses import ParameterUses, PartitionUses
from distir.simulation.cutting.partition import num_stages, rounded_weights
from distir.simulation.cutting.ranges import LAUNCHES, LINKS, STREAMS
from distir.simulation.cutting.refine import rounded_passes
from distir.simulation.cutting.together import (
    NO_ORDER,
    Arrangements,
    CutArrangements,
    ToCut,
)
from distir.simulation.pricing.block_bytes import BlockBytes, mixed
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.stages import StagePricer


@dataclass(frozen=True, slots=True)
class PartitionedArrangements:
    """Arrangements of a program kind, as they are cut."""

    arrangements: Indices
    """Their numbers."""
    sizes: Indices
    """Their program sizes, numbered among those of the program kind."""
    partitions: Sequence[PartitionUses]
    """Their different partitions: the stages, and what ranks add up."""
    which: Indices
    """The number of each one's partition among these."""


class StageCuts:
    """Cuts blocks into stages, at many program sizes of one program kind."""

    def __init__(
        self,
        pricer: StagePricer,
        programs: ModelPrograms,
        pricing: Pricing,
        splits: bool,
        room_bytes: Floats,
        uses: ParameterUses,
    ) -> None:
        """`splits` says whether some schedule splits the backward pass. `room_bytes` are the bytes
        that tensors may take on a device, one number per program size; those of sizes that are not
        cut do not matter."""
        self.pricer = pricer
        self.programs, self.pricing = programs, pricing
        self.splits, self.room_bytes, self.num_sizes = splits, room_bytes, len(room_bytes)
        self.uses = uses

    def to_cut(self, every: Arrangements, which: Indices, places: Indices) -> ToCut:
        """The arrangements with the program sizes `which`, with the blocks that they are cut from;
        `places` are the numbers of these sizes here."""
        begin, end = (np.searchsorted(every.size, which, side) for side in ("left", "right"))
        counts = end - begin
        starts = np.repeat(begin - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        arrangements = np.arange(int(counts.sum())) + starts
        own = np.repeat(np.arange(len(which)), counts)
        mix, size, share = self._mixes(own, places, every, every.shape[arrangements])
        weights = self._weights(size, share)
        if (every.order[arrangements] != NO_ORDER).any():
            passes = self._passes(size, share)
        else:
            passes = np.zeros((len(size), 3, COST_KINDS, weights.shape[1]))
        return ToCut(
            arrangements,
            places[own],
            tuple(self.programs.kinds),
            mix,
            rounded_weights(weights),
            rounded_passes(passes),
            self._held(size, share),
            self.room_bytes[size],
        )

    def partitioned(self, found: CutArrangements) -> PartitionedArrangements:
        """The arrangements that are cut, with what their partitions make of shared parameters."""
        first, which = distinct(found.number)
        numbers: list[int] = found.number[first].tolist()
        partitions = [self.uses.of(found.partitions[number]) for number in numbers]
        return PartitionedArrangements(found.arrangements, found.sizes, partitions, which)

    def _mixes(
        self, own: Indices, places: Indices, every: Arrangements, shapes: Indices
    ) -> tuple[Indices, Indices, Floats]:
        """What cuts are looked for with: a program size, and the share of layers that stages
        recompute, which depends on the number of stages. `own` has the size of each arrangement
        among `places`, and `shapes` its shape. Returns the number of each arrangement's mix, and of
        each mix the size and the share."""
        if not self.programs.most:
            return own, places, np.zeros(len(places))
        shares = np.array([self.programs.share(num_stages(ranks)) for ranks, _ in every.shapes])
        _, number = distinct(shares)
        first, mix = distinct(own * len(shares) + number[shapes])
        return mix, places[own[first]], shares[shapes[first]]

    def _weights(self, size: Indices, share: Floats) -> Floats:
        """Seconds of the different blocks in mixes, of shape (mixes, kinds)."""
        kept = self._weights_of(self.programs.kept)[size]
        if not self.programs.most:
            return kept
        return mixed(kept, self._weights_of(self.programs.recomputed)[size], share)

    def _weights_of(self, programs: Sequence[BlockProgram]) -> Floats:
        """Seconds of the different blocks, of shape (sizes, kinds)."""
        kinds = dict(zip(self.programs.kinds, programs, strict=True))
        alone = list(kinds.values())
        weights = self.pricer.weights(alone, self.pricing, splits=self.splits)
        found = np.empty((self.num_sizes, len(weights)))
        for place, each in enumerate(weights):
            found[:, place] = each
        return found

    def _passes(self, size: Indices, share: Floats) -> Floats:
        """What the passes of the different blocks take in mixes, of shape
        (mixes, 3, cost kinds, kinds)."""
        kept = self._passes_of(self.programs.kept)[size]
        if not self.programs.most:
            return kept
        again = self._passes_of(self.programs.recomputed)[size]
        flat = (len(size), -1)
        return mixed(kept.reshape(flat), again.reshape(flat), share).reshape(kept.shape)

    def _passes_of(self, programs: Sequence[BlockProgram]) -> Floats:
        """What the passes of the different blocks take, of shape (sizes, 3, cost kinds, kinds)."""
        kinds = dict(zip(self.programs.kinds, programs, strict=True))
        found = np.zeros((self.num_sizes, 3, COST_KINDS, len(kinds)))
        alone = self.pricer.passes_alone(list(kinds.values()), self.pricing, splits=self.splits)
        for place, own in enumerate(alone):
            for kind, each in enumerate(own):
                found[:, STREAMS, kind, place] = each.stream_seconds
                found[:, LAUNCHES, kind, place] = each.launch_seconds
                found[:, LINKS, kind, place] = each.link_seconds
        return found

    def _held(self, size: Indices, share: Floats) -> BlockBytes:
        """Bytes of the different blocks in mixes."""
        kept = self._held_by(self.programs.kept).taken(size)
        if not self.programs.most:
            return kept
        return kept.mixed(self._held_by(self.programs.recomputed).taken(size), share)

    def _held_by(self, programs: Sequence[BlockProgram]) -> BlockBytes:
        """Bytes of the different blocks, by size."""
        return self.pricer.block_bytes(
            programs,
            self.programs.kinds,
            self.pricing,
            splits=self.splits,
            num_sizes=self.num_sizes,
        )


__all__ = ["PartitionedArrangements", "StageCuts"]
