"""Parameters that several blocks use: which block is charged for them, and which ranks add up their
gradients.

A rank stores and updates a parameter once, however many blocks use it. A stage has one gradient
buffer of the parameter for each layout in which the gradient is made, and settles each buffer once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from distir.cost import CostModel
from distir.cost.amounts import Amount
from distir.plan import BlockProgram, Plan, Stage
from distir.plan.grid import DeviceGrid
from distir.plan.positions import positions_of
from distir.program import Program
from distir.workload import Workload

StagesOfRanks: TypeAlias = tuple[tuple[int, ...], ...]
"""The stages that each rank holds, in pipeline order."""


class ChargedElsewhere(NamedTuple):
    """Positions of a block's parameters for which other blocks are charged."""

    held: tuple[int, ...] = ()
    """Parameters that an earlier block of the rank stores and updates."""
    added: tuple[int, ...] = ()
    """Parameters whose gradients are added to those of an earlier block of the stage. That block's
    backward pass comes later, and settles them."""
    added_late: tuple[int, ...] = ()
    """Parameters whose gradients `W` adds to those of a later block of the stage. That block's `W`
    comes later, and settles them."""
    adds_up: tuple[int, ...] = ()
    """See `BlockProgram.adds_up`: the block's program in its stage."""


NOTHING_ELSEWHERE = ChargedElsewhere()


@dataclass(frozen=True, slots=True)
class TiedGradients:
    """Gradients that the same ranks hold. The ranks all-reduce them as one bucket at the end of a
    step, when all of them are settled."""

    ranks: tuple[int, ...]
    size_bytes: int
    """Bytes that one device of each rank contributes."""
    seconds: float


def charged_elsewhere(plan: Plan, index: int) -> tuple[ChargedElsewhere, ...]:
    """Per block of a stage, the parameters for which other blocks are charged."""
    program, ranks = plan.workload.program, plan.schedule.stages_of_ranks
    return charged_elsewhere_in_stage(program, ranks, plan.stages, index)


def charged_elsewhere_in_stage(
    program: Program, stages_of_ranks: StagesOfRanks, stages: Sequence[Stage], index: int
) -> tuple[ChargedElsewhere, ...]:
    """`charged_elsewhere` of the stage `stages[index]`, given the stages of every rank."""
    of_rank = next(held for held in stages_of_ranks if index in held)
    earlier = (block for stage in of_rank if stage < index for block in stages[stage].blocks)
    return charged_to_earlier(program, stages[index], earlier)


def charged_to_earlier(
    program: Program, stage: Stage, earlier: Iterable[int]
) -> tuple[ChargedElsewhere, ...]:
    """`charged_elsewhere` of a stage whose rank holds these `earlier` blocks, of which only those
    that share parameters matter."""
    sharing, blocks = program.sharing_blocks, program.blocks.blocks
    if sharing.isdisjoint(stage.blocks):
        return (NOTHING_ELSEWHERE,) * len(stage.blocks)
    shared = program.shared_parameters
    seen = {
        blocks[block].parameters[position]
        for block in sharing.intersection(earlier)
        for position in shared[block]
    }
    held: dict[int, list[int]] = {}
    buffers: dict[object, list[tuple[int, int]]] = {}
    for index, (block, local) in enumerate(zip(stage.blocks, stage.programs, strict=True)):
        if block not in sharing:
            continue
        dims = local.placed.step.axes.dims
        for position in shared[block]:
            value, use = blocks[block].parameters[position], local.parameters[position]
            if value in seen:
                held.setdefault(index, []).append(position)
            seen.add(value)
            if use.gradient is not None:
                layout = positions_of(use.gradient.layout, dims[use.gradient.value])
                buffers.setdefault((value, layout), []).append((index, position))
    added, late = ([use for uses in buffers.values() for use in uses[part]]
                   for part in (slice(1, None), slice(0, -1)))  # fmt: skip
    charged = [NOTHING_ELSEWHERE] * len(stage.blocks)
    summed = {index for index, local in enumerate(stage.programs) if local.adds_up}
    for index in {*held, *(index for index, _ in added), *(index for index, _ in late), *summed}:
        charged[index] = ChargedElsewhere(
            tuple(held.get(index, ())),
            _positions(added, index),
            _positions(late, index),
            stage.programs[index].adds_up,
        )
    return tuple(charged)


def _positions(uses: list[tuple[int, int]], index: int) -> tuple[int, ...]:
    return tuple(position for block, position in uses if block == index)


def tied_gradients(plan: Plan, cost: CostModel) -> list[TiedGradients]:
    """The gradients that several ranks add up at the end of a step, in order."""
    return [
        TiedGradients(ranks, size, float(tied_seconds(plan.grid, cost, ranks, size)))
        for ranks, size in tied_bytes(
            plan.workload, plan.schedule.stages_of_ranks, plan.stages
        ).items()
    ]


GradientBytes: TypeAlias = tuple[tuple[int, int], ...]
"""Bytes of the gradients of a block's parameters, each with the position of its parameter if that
has other users. The bytes of all other parameters are one entry with `UNSHARED`, which stands where
the first of them would."""

UNSHARED = -1


def _gradient_bytes(
    workload: Workload, program: BlockProgram, shared: tuple[int, ...]
) -> GradientBytes:
    """`shared` are the positions of parameters that have other users."""
    sizes: dict[int, int] = {}
    for position, use in enumerate(program.parameters):
        if use.gradient is not None:
            size = use.owned_type.num_elements * workload.types.gradient.itemsize
            key = position if position in shared else UNSHARED
            sizes[key] = sizes.get(key, 0) + size
    return tuple(sizes.items())


KnownGradients: TypeAlias = dict[tuple[BlockProgram, tuple[int, ...]], GradientBytes]
"""Gradient bytes by program and the positions of parameters that have other users."""


def tied_bytes(
    workload: Workload,
    stages_of_ranks: StagesOfRanks,
    stages: Sequence[Stage],
    known: KnownGradients | None = None,
) -> dict[tuple[int, ...], int]:
    """Gradient bytes to all-reduce, by rank group.

    These are gradients of parameters that are used by stages of several ranks, and all gradients
    of a stage that several ranks hold. `known` keeps the gradient bytes of programs for the next
    call.
    """
    known = {} if known is None else known
    blocks, positions = workload.program.blocks.blocks, workload.program.shared_parameters
    ranks_of_stages: list[list[int]] = [[] for _ in stages]
    for rank, held in enumerate(stages_of_ranks):
        for index in held:
            ranks_of_stages[index].append(rank)
    shared: dict[object, tuple[set[int], int]] = {}
    for stage, ranks in zip(stages, ranks_of_stages, strict=True):
        keys = [
            (program, positions[block])
            for block, program in zip(stage.blocks, stage.programs, strict=True)
        ]
        alike = Counter(keys if len(ranks) > 1 else ())
        for block, key in zip(stage.blocks, keys, strict=True):
            if key not in known:
                known[key] = _gradient_bytes(workload, *key)
            for position, size in known[key]:
                if position != UNSHARED:
                    value = blocks[block].parameters[position]
                    shared.setdefault(value, (set(), size))[0].update(ranks)
                elif key in alike:
                    shared[stage.index, key] = (set(ranks), alike.pop(key) * size)
    sizes: dict[tuple[int, ...], int] = {}
    for ranks, size in shared.values():
        if len(ranks) > 1:
            group = tuple(sorted(ranks))
            sizes[group] = sizes.get(group, 0) + size
    return sizes


def tied_seconds(
    grid: DeviceGrid, cost: CostModel, ranks: tuple[int, ...], size_bytes: Amount
) -> Amount:
    """Seconds of an all-reduce of gradients between ranks: one device of each rank contributes
    `size_bytes`."""
    group = cost.cluster.group_across(tuple(grid.senders(rank) for rank in ranks))
    return cost.collective_seconds("all_reduce", size_bytes, group)


__all__ = [
    "NOTHING_ELSEWHERE",
    "ChargedElsewhere",
    "KnownGradients",
    "StagesOfRanks",
    "TiedGradients",
    "charged_elsewhere",
    "charged_elsewhere_in_stage",
    "charged_to_earlier",
    "tied_bytes",
    "tied_gradients",
    "tied_seconds",
]
