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
    seen = {value for block in sharing.intersection(earlier) for value in blocks[block].parameters}
    held: dict[int, list[int]] = {}
    buffers: dict[object, list[tuple[int, int]]] = {}
    for place, (block, local) in enumerate(zip(stage.blocks, stage.programs, strict=True)):
        if block not in sharing:
            continue
        dims = local.placed.step.axes.dims
        uses = zip(blocks[block].parameters, local.parameters, strict=True)
        for position, (value, use) in enumerate(uses):
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


@dataclass(frozen=True, slots=True)
class GradientBytes:
    """Bytes of the gradients of a block's parameters, by their positions, and of all of them."""

    of_position: dict[int, int]
    total: int

    @classmethod
    def of(cls, workload: Workload, program: BlockProgram) -> GradientBytes:
        """Of one device's part."""
        found = {
            position: use.owned_type.num_elements * workload.types.gradient.itemsize
            for position, use in enumerate(program.parameters)
            if use.gradient is not None
        }
        return cls(found, sum(found.values()))


def tied_bytes(
    workload: Workload,
    stages_of_ranks: Ranks,
    stages: Sequence[Stage],
    known: dict[BlockProgram, GradientBytes] | None = None,
) -> dict[tuple[int, ...], int]:
    """By the ranks that add them up the bytes of gradients: of parameters that stages on several
    ranks use, and of all parameters of a stage that is on several ranks. What is found out about
    programs is added to what is `known`."""
    known = {} if known is None else known
    blocks, sharing = workload.program.blocks.blocks, workload.program.sharing_blocks
    homes: list[list[int]] = [[] for _ in stages]
    for rank, own in enumerate(stages_of_ranks):
        for index in own:
            homes[index].append(rank)
    shared: dict[object, tuple[set[int], int]] = {}
    for stage, ranks in zip(stages, homes, strict=True):
        pairs = list(zip(stage.blocks, stage.programs, strict=True))
        # What no other block uses is added up at once for blocks that are alike.
        alike = Counter(program for block, program in pairs if block not in sharing)
        for block, program in pairs:
            if program not in known:
                known[program] = GradientBytes.of(workload, program)
            own = known[program]
            if block in sharing:
                values = blocks[block].parameters
                for position, size in own.of_position.items():
                    shared.setdefault(values[position], (set(), size))[0].update(ranks)
            elif len(ranks) > 1 and program in alike and own.of_position:
                shared[stage.index, program] = (set(ranks), alike.pop(program) * own.total)
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
    "GradientBytes",
    "Ranks",
    "TiedGradients",
    "charged_elsewhere",
    "charged_to_earlier",
    "elsewhere",
    "tied_bytes",
    "tied_gradients",
    "tied_seconds",
]
