"""Parameters that several blocks use: which of them a stage holds already, and whose gradients
several stages must add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.cost import CostModel
from distir.ir.core import Value
from distir.plan import Plan
from distir.plan.grid import RANKS
from distir.workload import Workload


@dataclass(frozen=True, slots=True)
class TiedGradients:
    """Gradients of the parameters that the same stages hold, all-reduced between their ranks as
    one bucket once all of them are settled."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    size_bytes: int
    """Of one device's part."""
    seconds: float


def sharing_blocks(workload: Workload) -> frozenset[int]:
    """Blocks with a parameter that another block uses too."""
    return workload.program.sharing_blocks


def repeated_uses(plan: Plan, stage: int, *, later: bool = False) -> tuple[tuple[int, ...], ...]:
    """Per block of a stage the positions of its parameters that an earlier block of the stage
    uses too, or a `later` one.

    Their state is held, and they are updated, with the earliest block; their gradients are settled
    with the last in the order of the pass: the earliest in a backward pass, the latest in `W`.
    """
    workload = plan.workload
    sharing = sharing_blocks(workload)
    seen: set[Value] = set()
    found: list[tuple[int, ...]] = []
    blocks = plan.stages[stage].blocks
    for index in reversed(blocks) if later else blocks:
        parameters: Sequence[Value] = ()
        if index in sharing:
            parameters = workload.program.blocks.blocks[index].parameters
        found.append(tuple(i for i, value in enumerate(parameters) if value in seen))
        seen.update(parameters)
    return tuple(reversed(found) if later else found)


def tied_gradients(plan: Plan, cost: CostModel) -> list[TiedGradients]:
    """The gradients that ranks add up between them at the end of a step, in order."""
    blocks = plan.workload.program.blocks.blocks
    sharing = sharing_blocks(plan.workload)
    holders: dict[Value, tuple[dict[int, None], int]] = {}
    for stage in plan.stages:
        for index, program in zip(stage.blocks, stage.programs, strict=True):
            if index not in sharing:
                continue
            for value, use in zip(blocks[index].parameters, program.parameters, strict=True):
                if use.gradient is not None:
                    size = use.owned_type.num_elements * plan.workload.types.gradient.itemsize
                    stages, _ = holders.setdefault(value, ({}, size))
                    stages[stage.index] = None
    sizes: dict[tuple[int, ...], int] = {}
    for stages, size in holders.values():
        sizes[tuple(stages)] = sizes.get(tuple(stages), 0) + size
    found: list[TiedGradients] = []
    for stages, size in sizes.items():
        ranks = [
            rank
            for rank, own in enumerate(plan.schedule.stages_of_ranks)
            if not set(own).isdisjoint(stages)
        ]
        if len(ranks) > 1:
            apart = (ranks[-1] - ranks[0]) // (len(ranks) - 1)
            group = cost.cluster.group(len(ranks), apart * plan.grid.stride(RANKS))
            seconds = float(cost.collective_seconds("all_reduce", size, group))
            found.append(TiedGradients(stages, tuple(ranks), size, seconds))
    return found


__all__ = ["TiedGradients", "repeated_uses", "sharing_blocks", "tied_gradients"]
