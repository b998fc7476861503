"""The cuts of one plan. `many.py` is the version for many plans, with the same functions;
tests/laws/test_batch.py holds the two to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distir.plan import BlockProgram
from distir.schedules import WEIGHT_PART, PeakInFlight
from distir.simulation.cutting.fitting import BlocksToCut, InFlight, PlansToFit, fitted_bounds
from distir.simulation.cutting.partition import Partitions, rounded_weights
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.stages import StagePricer


def balanced_stages(
    pricer: StagePricer,
    partitions: Partitions,
    programs: Sequence[BlockProgram],
    flight: PeakInFlight,
    chunks: int,
    pricing: Pricing,
    room_bytes: float,
) -> tuple[int, ...]:
    """The first block of every stage but the first: stages are balanced by time as far as memory
    allows.

    `flight` are the microbatches that the schedule has in flight on its ranks, and `room_bytes` are
    the bytes that tensors may take on a device.
    """
    weights = np.array([[pricer.weight(program, pricing) for program in programs]])
    rounded, alone = rounded_weights(weights), np.zeros(1, np.int64)
    shape = (flight.stages_of_ranks, chunks)
    (bounds,) = partitions.bounds(rounded, [shape], alone, alone)
    different = list(dict.fromkeys(programs))
    kinds = [different.index(program) for program in programs]
    held = pricer.block_bytes(programs, kinds, WEIGHT_PART in flight.cost_kinds)
    model = BlocksToCut(np.array(kinds), rounded.astype(np.float64), held, np.array([room_bytes]))
    plans = PlansToFit(np.array([bounds]), alone, alone, InFlight.of([flight]), alone)
    ((_, fitted),) = fitted_bounds(model, [plans])
    return tuple(fitted[0].tolist() if len(fitted) else bounds)[1:-1]


__all__ = ["balanced_stages"]
