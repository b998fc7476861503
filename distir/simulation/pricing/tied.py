"""Parameters with several users: which uses a stage is charged for, and whose gradients several
ranks must add up.

A rank stores and updates a parameter once, whatever uses it. Every stage has one buffer per layout
in which gradients of the parameter are made, and settles each of them once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distir.cost import CostModel
from distir.cost.amounts import Amount
from distir.plan import BlockProgram, Plan, Stage
from distir.plan.grid import Grid
from distir.plan.positions import positions_of
from distir.program import Program
from distir.workload import Workload

Ranks = tuple[tuple[int, ...], ...]
"""The stages of every rank."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Positions of a block's parameters that other uses are charged for.

    `held`: an earlier block of the rank stores and updates them. `added`: their gradients are added
    to those of an earlier block of the stage, the last to have its backward pass, which settles
    them; `added_late` to those of a later one, which is the last in `W`.
    """

    held: tuple[int, ...] = ()
    added: tuple[int, ...] = ()
    added_late: tuple[int, ...] = ()


NOWHERE = Elsewhere()


@dataclass(frozen=True, slots=True)
class TiedGradients:
    """Gradients that the same ranks have, all-reduced between them as one bucket once all of them
    are settled."""

    ranks: tuple[int, ...]
    size_bytes: int
    """Of one device's part."""
    seconds: float


def elsewhere(plan: Plan, index: int) -> tuple[Elsewhere, ...]:
    """Per block of a stage what other uses of its parameters are charged for."""
    program, ranks = plan.workload.program, plan.schedule.stages_of_ranks
    return charged_elsewhere(program, ranks, plan.stages, index)


def charged_elsewhere(
    program: Program, stages_of_ranks: Ranks, stages: Sequence[Stage], index: int
) -> tuple[Elsewhere, ...]:
    """`elsewhere` of a stage among those of a plan, which are on these ranks."""
    own = next(own for own in stages_of_ranks if index in own)
    earlier = (block for each in own if each < index for block in stages[each].blocks)
    return charged_to_earlier(program, stages[index], earlier)


def charged_to_earlier(
    program: Program, stage: Stage, earlier: Iterable[int]
) -> tuple[Elsewhere, ...]:
    """`elsewhere` of a stage whose rank has these `earlier` blocks; of them only those that share
    parameters matter."""
    sharing, blocks = program.sharing_blocks, program.blocks.blocks
    if sharing.isdisjoint(stage.blocks):
        return (NOWHERE,) * len(stage.blocks)
    shared = program.shared_parameters
    seen = {
        blocks[block].parameters[position]
        for block in sharing.intersection(earlier)
        for position in shared[block]
    }
    held: dict[int, list[int]] = {}
    buffers: dict[object, list[tuple[int, int]]] = {}
    for place, (block, local) in enumerate(zip(stage.blocks, stage.programs, strict=True)):
        if block not in sharing:
            continue
        dims = local.placed.step.axes.dims
        for position in shared[block]:
            value, use = blocks[block].parameters[position], local.parameters[position]
            if value in seen:
                held.setdefault(place, []).append(position)
            seen.add(value)
            if use.gradient is not None:
                layout = positions_of(use.gradient.layout, dims[use.gradient.value])
                buffers.setdefault((value, layout), []).append((place, position))
    added, late = ([use for uses in buffers.values() for use in uses[part]]
                   for part in (slice(1, None), slice(0, -1)))  # fmt: skip
    found = [NOWHERE] * len(stage.blocks)
    for place in {*held, *(place for place, _ in added), *(place for place, _ in late)}:
        found[place] = Elsewhere(
            tuple(held.get(place, ())), _positions(added, place), _positions(late, place)
        )
    return tuple(found)


def _positions(uses: list[tuple[int, int]], place: int) -> tuple[int, ...]:
    return tuple(position for other, position in uses if other == place)


def tied_gradients(plan: Plan, cost: CostModel) -> list[TiedGradients]:
    """The gradients that ranks add up between them at the end of a step, in order."""
    return [
        TiedGradients(ranks, size, float(tied_seconds(plan.grid, cost, ranks, size)))
        for ranks, size in tied_bytes(
            plan.workload, plan.schedule.stages_of_ranks, plan.stages
        ).items()
    ]


GradientBytes = tuple[tuple[int, int], ...]
"""Bytes of the gradients of a block's parameters, with the position of each that is used elsewhere
too; those of all others together, at the place of the first, with `OWN`."""

OWN = -1


def _gradient_bytes(
    workload: Workload, program: BlockProgram, shared: tuple[int, ...]
) -> GradientBytes:
    found: dict[int, int] = {}
    for position, use in enumerate(program.parameters):
        if use.gradient is not None:
            size = use.owned_type.num_elements * workload.types.gradient.itemsize
            key = position if position in shared else OWN
            found[key] = found.get(key, 0) + size
    return tuple(found.items())


KnownGradients = dict[tuple[BlockProgram, tuple[int, ...]], GradientBytes]
"""By program and the positions of parameters that are used elsewhere too."""


def tied_bytes(
    workload: Workload,
    stages_of_ranks: Ranks,
    stages: Sequence[Stage],
    known: KnownGradients | None = None,
) -> dict[tuple[int, ...], int]:
    """By the ranks that add them up the bytes of gradients: of parameters that stages on several
    ranks use, and of all parameters of a stage that is on several ranks. What is found out about
    programs is added to what is `known`."""
    known = {} if known is None else known
    blocks, positions = workload.program.blocks.blocks, workload.program.shared_parameters
    homes: list[list[int]] = [[] for _ in stages]
    for rank, own in enumerate(stages_of_ranks):
        for index in own:
            homes[index].append(rank)
    shared: dict[object, tuple[set[int], int]] = {}
    for stage, ranks in zip(stages, homes, strict=True):
        keys = [
            (program, positions[block])
            for block, program in zip(stage.blocks, stage.programs, strict=True)
        ]
        alike = Counter(keys if len(ranks) > 1 else ())
        for block, key in zip(stage.blocks, keys, strict=True):
            if key not in known:
                known[key] = _gradient_bytes(workload, *key)
            for position, size in known[key]:
                if position != OWN:
                    value = blocks[block].parameters[position]
                    shared.setdefault(value, (set(), size))[0].update(ranks)
                elif key in alike:
                    shared[stage.index, key] = (set(ranks), alike.pop(key) * size)
    sizes: dict[tuple[int, ...], int] = {}
    for ranks, size in shared.values():
        if len(ranks) > 1:
            between = tuple(sorted(ranks))
            sizes[between] = sizes.get(between, 0) + size
    return sizes


def tied_seconds(grid: Grid, cost: CostModel, ranks: tuple[int, ...], size_bytes: Amount) -> Amount:
    """Seconds to add up gradients between ranks."""
    group = cost.cluster.group_across(tuple(grid.senders(rank) for rank in ranks))
    return cost.collective_seconds("all_reduce", size_bytes, group)


__all__ = [
    "NOWHERE",
    "Elsewhere",
    "KnownGradients",
    "Ranks",
    "TiedGradients",
    "charged_elsewhere",
    "charged_to_earlier",
    "elsewhere",
    "tied_bytes",
    "tied_gradients",
    "tied_seconds",
]
