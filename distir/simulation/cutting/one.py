"""The cuts of one plan. `many.py` is the version for many plans, with the same functions;
tests/laws/test_batch.py holds the two to each other."""

from __future__ import annotations

import numpy as np

from distir.plan import ModelPrograms
from distir.schedules import WEIGHT_PART, PeakInFlight
from distir.simulation.cutting.fitting import BlocksToCut, InFlight, PlansToFit, fitted_bounds
from distir.simulation.cutting.partition import Partitions, num_stages, rounded_weights
from distir.simulation.pricing.block_bytes import mixed
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.stages import StagePricer


def balanced_stages(
    pricer: StagePricer,
    partitions: Partitions,
    programs: ModelPrograms,
    flight: PeakInFlight,
    chunks: int,
    pricing: Pricing,
    room_bytes: float,
) -> tuple[int, ...]:
    """The first block of every stage but the first: stages are balanced by time as far as memory
    allows. Where stages pick which layers they recompute, a layer counts as the mean of one that is
    recomputed and one that is not: cuts are looked for before it is known which.

    `flight` are the microbatches that the schedule has in flight on its ranks, and `room_bytes` are
    the bytes that tensors may take on a device.
    """
    shape = (flight.stages_of_ranks, chunks)
    share = np.array([programs.share(num_stages(shape[0]))])
    weights = np.array([[pricer.weight(program, pricing) for program in programs.kept]])
    if programs.most:
        again = np.array([[pricer.weight(program, pricing) for program in programs.recomputed]])
        weights = mixed(weights, again, share)
    rounded, alone = rounded_weights(weights), np.zeros(1, np.int64)
    (bounds,) = partitions.bounds(rounded, [shape], alone, alone)
    kinds, splits = programs.kinds, WEIGHT_PART in flight.cost_kinds
    held = pricer.block_bytes(programs.kept, kinds, splits)
    if programs.most:
        held = held.mixed(pricer.block_bytes(programs.recomputed, kinds, splits), share)
    model = BlocksToCut(np.array(kinds), rounded.astype(np.float64), held, np.array([room_bytes]))
    plans = PlansToFit(np.array([bounds]), alone, alone, InFlight.of([flight]), alone)
    ((_, fitted),) = fitted_bounds(model, [plans])
    return tuple(fitted[0].tolist() if len(fitted) else bounds)[1:-1]


__all__ = ["balanced_stages"]
