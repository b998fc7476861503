"""Array version of `stage_cost.py`: what the stages of many plans take and hold, as columns of
numbers. tests/laws/test_batch.py holds the two to each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats, Indices
from distir.schedules import BACKWARD, COST_KINDS, WEIGHT_PART
from distir.simulation.pricing.stage_cost import StageCost

Numbers = NDArray[np.int32]

SAME_LENGTH = 2.0**-48
"""Relative difference below which two durations count as equal: what rounding may make of them."""

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


class StageTable:
    """What stages take and hold, a column each, of shape (`NAMES`, then messages, stages)."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._lengths: dict[tuple[int, ...], Numbers] = {}
        self._messages = np.zeros((0, 0), np.int32)

    def lengths(self, kinds: tuple[int, ...]) -> Numbers:
        """Per stage a number that it shares with those whose actions of these kinds are as long."""
        if kinds not in self._lengths:
            timed = self.values[[PLACE[f"seconds {kind}"] for kind in kinds]]
            self._lengths[kinds] = numbered_columns(timed)
        return self._lengths[kinds]

    def message(self, levels: Indices, back: Indices, stages: Indices) -> Floats:
        """Seconds of messages of stages to the next, or `back` to the previous one."""
        return self.values[len(NAMES) :].take(self._place(levels, back, stages))

    def message_lengths(self, levels: Indices, back: Indices, stages: Indices) -> Numbers:
        """Numbers that messages share that are as long."""
        if not len(self._messages):
            messages = [numbered_columns(each[None]) for each in self.values[len(NAMES) :]]
            self._messages = np.stack(messages)
        return self._messages.take(self._place(levels, back, stages))

    def _place(self, levels: Indices, back: Indices, stages: Indices) -> Indices:
        return (2 * levels + back) * self.values.shape[1] + stages


def numbered_columns(values: NDArray[np.generic]) -> Numbers:
    """Numbers of columns; equal ones have one, to rounding."""
    weights = np.random.default_rng(0).random(len(values))
    marks = np.zeros(values.shape[1])
    for weight, row in zip(weights, values, strict=True):
        marks += weight * row
    _, first, found = np.unique(marks, return_index=True, return_inverse=True)
    like, other = first.take(found), np.zeros(len(found), np.bool_)
    for row in values:
        other |= np.abs(row - row.take(like)) > SAME_LENGTH * np.abs(row)
    found[other] = len(first) + np.arange(other.sum())
    return found.astype(np.int32)


__all__ = ["NAMES", "PLACE", "Numbers", "StageTable", "numbered_columns", "numbers_of"]
