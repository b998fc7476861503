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
from distir.ir.core import Value
from distir.plan import BlockProgram, ParameterUse, Plan, Stage
from distir.plan.grid import DeviceGrid
from distir.plan.positions import Positions, positions_of
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
    uses = [
        [
            SharedUse(position, blocks[block].parameters[position], gradient_layout(own, position))
            for position in shared[block]
        ]
        for block, own in zip(stage.blocks, stage.programs, strict=True)
    ]
    return tuple(charged_among(uses, [own.adds_up for own in stage.programs], seen))


def gradient_layout(program: BlockProgram, position: int) -> Positions | None:
    """The layout of the gradient of a parameter, as positions; None: it has none."""
    gradient = program.parameters[position].gradient
    if gradient is None:
        return None
    return positions_of(gradient.layout, program.placed.step.axes.dims[gradient.value])


class SharedUse(NamedTuple):
    """A block's use of a parameter that other blocks use, too."""

    position: int
    """The position among the block's parameters."""
    parameter: Value
    layout: object
    """That of its gradient; None: it has none."""


def charged_among(
    uses: Sequence[Sequence[SharedUse]],
    adds_up: Sequence[tuple[int, ...]],
    seen: set[Value],
) -> list[ChargedElsewhere]:
    """What is charged elsewhere of blocks that a stage has in this order, given their `uses` of
    shared parameters, what they add up (`ChargedElsewhere.adds_up`), and the parameters that their
    rank has `seen` in stages before, to which those of this stage are added."""
    held: list[list[int]] = [[] for _ in uses]
    added: list[list[int]] = [[] for _ in uses]
    late: list[list[int]] = [[] for _ in uses]
    latest: dict[tuple[Value, object], tuple[int, int]] = {}
    for index, own in enumerate(uses):
        for position, parameter, layout in own:
            if parameter in seen:
                held[index].append(position)
            else:
                seen.add(parameter)
            if layout is not None:
                before = latest.get((parameter, layout))
                if before is not None:
                    added[index].append(position)
                    late[before[0]].append(before[1])
                latest[parameter, layout] = index, position
    return [
        ChargedElsewhere(tuple(a), tuple(b), tuple(c), d)
        for a, b, c, d in zip(held, added, late, adds_up, strict=True)
    ]


def tied_gradients(plan: Plan, cost: CostModel) -> list[TiedGradients]:
    """The gradients that several ranks add up at the end of a step, in order."""
    programs = [local for stage in plan.stages for local in stage.programs]
    uses = tied_uses(plan.workload.program, plan.schedule.stages_of_ranks, plan.stages)
    sizes = {ranks: tied_bytes(plan.workload, programs, own) for ranks, own in uses.items()}
    return [
        TiedGradients(ranks, size, float(tied_seconds(plan.grid, cost, ranks, size)))
        for ranks, size in sizes.items()
    ]


UNSHARED = -1
"""Stands for the positions of all parameters of a block that have no other user."""


class TiedUse(NamedTuple):
    """Gradients of a block that several ranks hold."""

    block: int
    """The first one of the model that has them."""
    position: int
    """That of the parameter if it has other users; `UNSHARED`: those of all that have none."""
    copies: int
    """How many equal blocks of a stage have such gradients."""


TiedUses: TypeAlias = dict[tuple[int, ...], tuple[TiedUse, ...]]
"""What groups of ranks add up at the end of a step, by the ranks."""


def tied_uses(
    program: Program, stages_of_ranks: StagesOfRanks, stages: Sequence[Stage]
) -> TiedUses:
    """The gradients to all-reduce.

    These are gradients of parameters that are used by stages of several ranks, and all gradients
    of a stage that several ranks hold.
    """
    blocks, positions = program.blocks.blocks, program.shared_parameters
    ranks_of_stages: list[list[int]] = [[] for _ in stages]
    for rank, held in enumerate(stages_of_ranks):
        for index in held:
            ranks_of_stages[index].append(rank)
    shared: dict[object, tuple[set[int], TiedUse]] = {}
    first: dict[object, int] = {}
    having: dict[tuple[BlockProgram, tuple[int, ...]], tuple[int, ...]] = {}
    for stage, ranks in zip(stages, ranks_of_stages, strict=True):
        keys = [
            (local, positions[block])
            for block, local in zip(stage.blocks, stage.programs, strict=True)
        ]
        alike = Counter(keys if len(ranks) > 1 else ())
        for block, key in zip(stage.blocks, keys, strict=True):
            if key not in having:
                having[key] = tuple(gradients_of(*key))
            for position in having[key]:
                if position != UNSHARED:
                    value = blocks[block].parameters[position]
                    use = TiedUse(block, position, 1)
                    shared.setdefault(value, (set(), use))[0].update(ranks)
                elif key in alike:
                    use = TiedUse(first.setdefault(key, block), UNSHARED, alike.pop(key))
                    shared[stage.index, key] = set(ranks), use
    return between_ranks(shared.values())


def between_ranks(uses: Iterable[tuple[set[int], TiedUse]]) -> TiedUses:
    """What groups of ranks add up, given the ranks that have each of these gradients."""
    found: dict[tuple[int, ...], list[TiedUse]] = {}
    for ranks, use in uses:
        if len(ranks) > 1:
            found.setdefault(tuple(sorted(ranks)), []).append(use)
    return {ranks: tuple(own) for ranks, own in found.items()}


def gradients_of(program: BlockProgram, shared: tuple[int, ...]) -> dict[int, list[ParameterUse]]:
    """The parameters of a block that have gradients: those at `shared` positions, which have other
    users, by their positions; all others together as `UNSHARED`."""
    found: dict[int, list[ParameterUse]] = {}
    for position, use in enumerate(program.parameters):
        if use.gradient is not None:
            found.setdefault(position if position in shared else UNSHARED, []).append(use)
    return found


KnownGradientBytes: TypeAlias = dict[tuple[int, int], int]
"""Bytes of the gradients of a block, by the block and the position in a `TiedUse`."""


def tied_bytes(
    workload: Workload,
    programs: Sequence[BlockProgram],
    uses: Iterable[TiedUse],
    known: KnownGradientBytes | None = None,
) -> int:
    """Bytes of gradients to all-reduce that one device of each rank contributes, given the program
    of each block of the model. `known` keeps what is found of these programs for the next call."""
    known = {} if known is None else known
    size_bytes = 0
    for block, position, copies in uses:
        if (block, position) not in known:
            shared = workload.program.shared_parameters[block]
            own = gradients_of(programs[block], shared)[position]
            elements = sum(use.owned_type.num_elements for use in own)
            known[block, position] = elements * workload.types.gradient.itemsize
        size_bytes = size_bytes + copies * known[block, position]
    return size_bytes


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
    "KnownGradientBytes",
    "SharedUse",
    "StagesOfRanks",
    "TiedGradients",
    "TiedUse",
    "TiedUses",
    "between_ranks",
    "charged_among",
    "charged_elsewhere",
    "charged_elsewhere_in_stage",
    "charged_to_earlier",
    "gradient_layout",
    "gradients_of",
    "tied_bytes",
    "tied_gradients",
    "tied_seconds",
    "tied_uses",
]
