"""A strategy's mesh: the grid of devices that share a stage, as data.

Degree by degree, a choice of the strategy becomes one mesh axis with an ordered list of logical
axes, or several. Order is nesting: where several split one logical axis, the first is outermost.
Where the devices lie is another matter (`Grid`).
"""

from __future__ import annotations

from dataclasses import dataclass

from distir.axes.model import Axis
from distir.program import Program
from distir.strategy import Strategy
from distir.transforms.place import Entry


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One dimension of the device grid of a stage.

    `entries` are the logical axes that it may split, in order of preference. `user` is the choice
    of the strategy that it belongs to, in whose name its time is reported; several mesh axes may
    share one. `shards_state`: whether ZeRO splits what devices own along it.
    """

    name: str
    degree: int
    entries: tuple[Entry, ...]
    user: str
    shards_state: bool = False


def mesh_choices(strategy: Strategy) -> tuple[object, ...]:
    """What of a strategy its mesh depends on."""
    return strategy.dp, strategy.ep, strategy.cp, strategy.tp, strategy.sequence_parallel


def mesh_axes(program: Program, strategy: Strategy) -> tuple[MeshAxis, ...]:
    """The mesh of a strategy, outermost first, without mesh axes of degree 1."""
    batch = _entry(program, program.batch)
    # What carries experts on both sides of an op is split over them, all else over samples.
    experts = tuple(Entry(axis, everywhere=True) for axis in program.blocks.expert_axes)
    every = (
        MeshAxis("dp", strategy.dp // strategy.ep, (batch,), "dp", shards_state=True),
        MeshAxis("ep", strategy.ep, (*experts, batch), "ep", shards_state=True),
        MeshAxis("cp", strategy.cp, _sequences(program), "cp"),
        MeshAxis("tp", strategy.tp, _tensor_entries(program, strategy), "tp"),
    )
    return tuple(axis for axis in every if axis.degree > 1)


def _entry(program: Program, axis: Axis, *, everywhere: bool = False) -> Entry:
    """An entry for an axis; lists speak of representatives."""
    return Entry(program.blocks.group.get(axis, axis), everywhere)


def _sequences(program: Program) -> tuple[Entry, ...]:
    return tuple(dict.fromkeys(_entry(program, axis) for axis in program.extents.sequences))


def _tensor_entries(program: Program, strategy: Strategy) -> tuple[Entry, ...]:
    blocks = program.blocks
    # An output axis that does not divide just stays whole.
    outputs = (axis for axis in blocks.output_axes if axis.size % strategy.tp == 0)
    own = tuple(Entry(axis) for axis in (*blocks.internal_axes, *outputs))
    return (*own, *_sequences(program)) if strategy.sequence_parallel else own


__all__ = ["MeshAxis", "mesh_axes", "mesh_choices"]
