"""Where the stages of one plan begin. `many.py` says it of many plans, by the same functions;
tests/laws/test_batch.py holds the two to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distir.plan import BlockProgram
from distir.schedules import WEIGHT_PART, PeakInFlight
from distir.simulation.cutting.fitting import Chain, Flights, Plans, fitted_bounds
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
    """The first block of every stage but the first: stages balanced by time as far as memory
    allows. `flight` is what the schedule has in flight on its ranks; `room_bytes` what tensors may
    hold on a device."""
    weights = np.array([[pricer.weight(program, pricing) for program in programs]])
    rounded, alone = rounded_weights(weights), np.zeros(1, np.int64)
    shape = (flight.stages_of_ranks, chunks)
    (bounds,) = partitions.bounds(rounded, [shape], alone, alone)
    different = list(dict.fromkeys(programs))
    kinds = [different.index(program) for program in programs]
    held = pricer.block_bytes(programs, kinds, WEIGHT_PART in flight.cost_kinds)
    chain = Chain(np.array(kinds), rounded.astype(np.float64), held, np.array([room_bytes]))
    plans = Plans(np.array([bounds]), alone, alone, Flights.of([flight]), alone)
    ((_, fitted),) = fitted_bounds(chain, [plans])
    return tuple(fitted[0].tolist() if len(fitted) else bounds)[1:-1]


__all__ = ["balanced_stages"]
