"""What a stage takes and holds as numbers, at many points at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distir.schedules import BACKWARD, COST_KINDS, WEIGHT_PART
from distir.simulation.stage_cost import StageCost

Floats = NDArray[np.float64]

_KINDS = range(COST_KINDS)

NAMES = (
    *(f"seconds {kind}" for kind in _KINDS),
    *(f"exposed {kind}" for kind in _KINDS),
    *(f"delta {kind}" for kind in _KINDS),
    *(f"peak {kind}" for kind in _KINDS),
    f"settled {BACKWARD}",
    f"settled {WEIGHT_PART}",
    "settling",
    "optimizer",
    "refresh",
    "state",
)
"""Numbers of a stage, by kind of action. "settled" is when the gradients of all blocks would be
settled if nothing kept their stream busy, and "settling" how long it is busy with them."""

PLACE = {name: place for place, name in enumerate(NAMES)}


def numbers_of(cost: StageCost, points: int) -> NDArray[np.float64]:
    """A stage at many points, as an array of shape (names, points)."""
    found = np.zeros((len(NAMES), points))

    def put(name: str, value: Any) -> None:
        found[PLACE[name]] = value

    for kind, (each, memory) in enumerate(zip(cost.passes, cost.memory, strict=True)):
        put(f"seconds {kind}", each.seconds)
        put(f"exposed {kind}", sum(waited for _, waited in each.exposed))
        put(f"delta {kind}", memory.delta)
        put(f"peak {kind}", memory.peak)
    for kind, each in cost.settling.items():
        put("settling", each.seconds)
        put(f"settled {kind}", each.done)
    put("optimizer", cost.optimizer)
    put("refresh", cost.refresh)
    put("state", cost.state.total)
    return found


__all__ = ["NAMES", "PLACE", "numbers_of"]
