"""What a stage takes and holds as numbers, at many points at once.

Stages that have the same kinds of blocks in the same order differ in how often the longest run of
equal ones repeats. Few lengths of it are evaluated; what lies between follows (`between`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distir.schedules import BACKWARD, COST_KINDS, WEIGHT_PART
from distir.simulation.block_cost import drain
from distir.simulation.fast import StageCost
from distir.simulation.tied import Elsewhere
from distir.strategies import Places

Floats = NDArray[np.float64]

FIRST = 5
"""Length of a run of equal blocks from which on one more block adds what the next one does: one at
either end is different, and a rhythm shows after two more."""

TOLERANCE = 1e-11
"""Relative difference up to which a stage's numbers are taken to lie on a line."""

_KINDS = range(COST_KINDS)

AFFINE = (
    *(f"seconds {kind}" for kind in _KINDS),
    *(f"exposed {kind}" for kind in _KINDS),
    *(f"delta {kind}" for kind in _KINDS),
    "optimizer",
    "refresh",
    "state",
    "settling",
)
"""Numbers of a stage that grow by as much with every further equal block, by kind of action."""

PEAKS: dict[str, tuple[str, str | None]] = {
    **{f"peak {kind}": (f"delta {kind}", None) for kind in _KINDS},
    f"settled {BACKWARD}": ("settling", f"seconds {BACKWARD}"),
    f"settled {WEIGHT_PART}": ("settling", f"seconds {WEIGHT_PART}"),
}
"""Numbers that are the larger of two such, with the numbers that these grow as (None: not at all).
"settled" is when the gradients of all blocks would be settled if nothing kept their stream busy."""

NAMES = (*AFFINE, *PEAKS)
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
        ends = zip(each.block_ends, each.seconds, strict=True)
        put("settling", sum(count * seconds for (_, _, count), seconds in ends))
        put(f"settled {kind}", drain(each.block_ends, each.seconds))
    put("optimizer", cost.optimizer)
    put("refresh", cost.refresh)
    put("state", cost.state.total)
    return found


@dataclass(frozen=True, slots=True)
class Template:
    """Runs of equal blocks `(kind, what is charged for elsewhere, count)`; the count of the
    longest is left open."""

    runs: tuple[tuple[int, Elsewhere, int], ...]
    longest: int

    @property
    def key(self) -> object:
        """What makes it the same."""
        return self.runs


def between(
    low: NDArray[np.float64], following: NDArray[np.float64], high: NDArray[np.float64], most: int
) -> tuple[Any, NDArray[np.bool_]]:
    """The numbers of stages between the lengths FIRST and `most`, and at which points they lie on
    a line: there the number at FIRST + 1 does too."""
    slope = (high - low) / (most - FIRST)
    affine = slice(0, len(AFFINE))
    missed = np.abs(low[affine] + slope[affine] - following[affine])
    exact = np.all(missed <= TOLERANCE * np.abs(high[affine]), axis=0)
    growth = {
        name: [slope[PLACE[each]] if each else np.zeros(low.shape[1]) for each in names]
        for name, names in PEAKS.items()
    }

    def at(lengths: Places, points: Places) -> NDArray[np.float64]:
        found = low[:, points] + (lengths - FIRST) * slope[:, points]
        for name, both in growth.items():
            # The one that grows less is the larger at the low end, if it ever is.
            less, more = np.minimum(*both)[points], np.maximum(*both)[points]
            place = PLACE[name]
            found[place] = np.maximum(
                low[place, points] + (lengths - FIRST) * less,
                high[place, points] - (most - lengths) * more,
            )
        return found

    return at, np.asarray(exact)
