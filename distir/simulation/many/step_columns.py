"""What stages do and hold once per step: sums over their blocks, as columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distir.arrays import Floats, Indices, product
from distir.cost.amounts import Amount
from distir.schedules import BACKWARD, COMPLETING, WEIGHT_PART
from distir.simulation.many.numbered_stages import NumberedBlocks, StagesOfBlocks
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.pricing.stage_cost import StepEnd
from distir.simulation.pricing.stage_table import ROW

STEP_NAMES = (
    f"settling {BACKWARD}",
    f"settling {WEIGHT_PART}",
    "optimizer",
    "refresh",
    "state",
    "state inputs",
    "host",
    "hosted",
)
"""Names of the numbers of a stage that are sums over its blocks, or have such a sum as a part."""


def step_columns(
    priced: PricedPrograms, every: StagesOfBlocks, stage: Indices, size: Indices
) -> Floats:
    """The sums over the blocks of stages at program sizes, of shape (`STEP_NAMES`, rows), where
    `stage` and `size` have the numbers of each row's."""
    counts = _counts(every.stages, len(every.blocks))
    ends = priced.pricer.step_ends(every.blocks, priced.pricing)
    own = [_amounts(end) for end in ends]
    found = np.zeros((len(STEP_NAMES), len(stage)))
    table = np.empty((len(ends), priced.num_sizes))
    for name, amounts in enumerate(zip(*own, strict=True)):
        for row, amount in zip(table, amounts, strict=True):
            row[:] = amount
        if table.any():
            found[name] = product(counts, table)[stage, size]
    return found


def _amounts(end: StepEnd) -> tuple[Amount, ...]:
    """The numbers of a block, in the order of `STEP_NAMES`."""
    state = end.state
    settling = (end.settling_seconds[kind] for kind in (BACKWARD, WEIGHT_PART))
    at_rest = (state.total, state.inputs, state.host, state.hosted)
    return (*settling, end.optimizer_seconds, end.refresh_seconds, *at_rest)


def _counts(stages: Sequence[NumberedBlocks], num_blocks: int) -> Floats:
    """How often stages have each block, of shape (stages, blocks)."""
    places: list[int] = []
    counts: list[int] = []
    for number, patterns in enumerate(stages):
        first = number * num_blocks
        for pattern, count in patterns:
            places += [first + block for block in pattern]
            counts += [count] * len(pattern)
    found = np.zeros(len(stages) * num_blocks)
    np.add.at(found, np.array(places, np.int64), np.array(counts, np.float64))
    return found.reshape(len(stages), num_blocks)


def add_step_columns(values: Floats, steps: Floats, *, overlaps: bool) -> None:
    """Adds the sums of stages to rows of what they do and hold in their actions, given as columns;
    `overlaps` says whether gradients are settled as soon as they are computed."""
    values[[ROW[name] for name in STEP_NAMES]] += steps
    if not overlaps:
        for kind in COMPLETING:
            values[ROW[f"settled {kind}"]] += steps[STEP_NAMES.index(f"settling {kind}")]


__all__ = ["STEP_NAMES", "add_step_columns", "step_columns"]
