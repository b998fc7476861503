"""Array version of `stage_cost.py`: the costs of many stages, one per column.

tests/laws/test_batch.py holds the two to each other: many plans at once cost what each costs alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats, Indices
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, WEIGHT_PART
from distir.simulation.pricing.chains_many import ChainColumns

ClassNumbers: TypeAlias = NDArray[np.int32]
"""Numbers of equivalence classes: what is equal has one number."""

SAME_DURATION = 2.0**-48
"""Relative difference up to which two durations count as equal, as rounding may cause it."""

_KINDS = range(COST_KINDS)

NAMES = (
    *(f"seconds {kind}" for kind in _KINDS),
    *(f"exposed {kind}" for kind in _KINDS),
    *(f"delta {kind}" for kind in _KINDS),
    *(f"peak {kind}" for kind in _KINDS),
    f"settled {BACKWARD}",
    f"settled {WEIGHT_PART}",
    f"settling {BACKWARD}",
    f"settling {WEIGHT_PART}",
    f"scattering {BACKWARD}",
    f"scattering {WEIGHT_PART}",
    "optimizer",
    "refresh",
    "first gather",
    "state",
    "state inputs",
    "host",
    "hosted",
)
"""Names of the numbers that describe a stage, most of them by cost kind.

- "seconds", "exposed": seconds of an action, and those in which compute waits for communication.
- "delta", "peak": bytes that an action leaves behind, and the most that it holds on the way.
- "settled": seconds from the start of the stage's last action until its gradients are settled.
- "settling": seconds that settling takes on the gradient stream. Which blocks settle gradients that
  several add up, and so in how many collectives, depends on the kind of the last action.
- "scattering": of these, seconds in which any action of the stage shares out gradients.
- "optimizer", "refresh": seconds of the optimizer's step, and until parameters are stored again.
- "first gather": seconds in which the first block's parameters are gathered for a forward pass.
- "state": bytes of state; "state inputs": those of them that are inputs.
- "host": bytes in the memory of the host; "hosted": those of a microbatch in flight.
"""

ROW = {name: row for row, name in enumerate(NAMES)}
"""The row of each number in a `StageTable`."""


def columns_of_pairs(found: ChainColumns, levels: int) -> Floats:
    """The columns of overlapped pairs, given what their passes cost: seconds of what is timed as
    their forward pass (`schedules/compiled/costs.py`), and nothing else."""
    columns = np.zeros((len(NAMES) + 2 * levels, len(found.seconds)))
    columns[ROW[f"seconds {FORWARD}"]] = found.seconds
    columns[ROW[f"exposed {FORWARD}"]] = found.waited
    return columns


class StageTable:
    """The costs of stages, one per column.

    The rows are the numbers of `NAMES`, then per level of the cluster the seconds of the messages
    that a stage sends over this level to the next stage and to the previous stage.
    """

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._duration_classes: dict[tuple[int, ...], ClassNumbers] = {}
        self._message_classes = np.zeros(0, np.int32)

    def duration_classes(self, cost_kinds: tuple[int, ...]) -> ClassNumbers:
        """Numbers of stages, shape (stages,): stages have the same number if their actions of these
        cost kinds take equally long."""
        if cost_kinds not in self._duration_classes:
            seconds = self.values[[ROW[f"seconds {kind}"] for kind in cost_kinds]]
            self._duration_classes[cost_kinds] = numbered_columns(seconds)
        return self._duration_classes[cost_kinds]

    def message_seconds(self, levels: Indices, back: Indices, stages: Indices) -> Floats:
        """Seconds of messages over `levels` that `stages` (columns of the table) send to the next
        stage, or where `back` is 1 to the previous stage. The arguments are broadcast."""
        return self.values[len(NAMES) :].take(self._message_index(levels, back, stages))

    def message_classes(self, levels: Indices, back: Indices, stages: Indices) -> ClassNumbers:
        """Numbers of messages, with the arguments of `message_seconds`: messages have the same
        number if they take equally long, whatever level they cross."""
        if not len(self._message_classes):
            self._message_classes = numbered_columns(self.values[len(NAMES) :].reshape(1, -1))
        return self._message_classes.take(self._message_index(levels, back, stages))

    def _message_index(self, levels: Indices, back: Indices, stages: Indices) -> Indices:
        return (2 * levels + back) * self.values.shape[1] + stages


@lru_cache
def _weights(count: int) -> Floats:
    """Numbers as if drawn at random."""
    found = np.random.default_rng(0).random(count)
    found.setflags(write=False)
    return found


def distinct_columns(values: Floats | ClassNumbers) -> tuple[Indices, Indices]:
    """The distinct columns of an array, of which those are one that are equal to rounding: the
    position of the first of each, and the number of each column's distinct one."""
    marks: Floats = np.add.reduce(_weights(len(values))[:, None] * values, axis=0)
    _, first, numbers = np.unique(marks, return_index=True, return_inverse=True)
    off = np.abs(values - values.take(first.take(numbers), axis=1))
    differing = np.flatnonzero(np.any(off > SAME_DURATION * np.abs(values), axis=0))
    if len(differing):
        numbers[differing] = len(first) + np.arange(len(differing))
        first = np.concatenate([first, differing])
    return first, numbers


def numbered_columns(values: Floats) -> ClassNumbers:
    """Numbers of the columns of an array; columns that are equal to rounding have one number."""
    return distinct_columns(values)[1].astype(np.int32)


__all__ = [
    "NAMES",
    "ROW",
    "ClassNumbers",
    "StageTable",
    "columns_of_pairs",
    "distinct_columns",
    "numbered_columns",
]
