"""Places the blocks of a model one after the other, and remembers what chains share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from distir.axes.model import Axis
from distir.errors import TransformError
from distir.ir.core import Value
from distir.plan.decisions import Place, deciding, places_of
from distir.plan.positions import Positions, layout_at, positions_of
from distir.strategy import AUTO, Strategy
from distir.transforms.moves import Local
from distir.transforms.place import AxisListEntry, Mesh
from distir.transforms.place_block import BlockPlacer, PlacedBlock
from distir.transforms.recompute import (
    RECOMPUTE,
    inside_kernels,
    recompute,
    views_of_parameters,
)
from distir.transforms.step import BlockStep, build_step, lowered_ops
from distir.workload import Workload

MANY_LISTS = 16
"""Lists of a block's axes from which on it pays to find out what each decides there."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What rests from the forward to the backward pass as far as placement has to know: how blocks
    are recomputed, every which of them or how many layers of a stage (0: not counted by stage), and
    whether gathered activations stay. `picked`: a plan says what each layer does."""

    recompute: str = "none"
    every: int = 1
    layers: int = 0
    gathered: bool = False
    picked: bool = False

    @classmethod
    def of(cls, strategy: Strategy) -> Keeping:
        """What a strategy says of it."""
        if strategy.recompute == "none":
            return cls(gathered=strategy.keeps_activations)
        if strategy.recompute == AUTO:
            return cls("full", gathered=strategy.keeps_activations, picked=True)
        return cls(
            strategy.recompute,
            strategy.recompute_every,
            strategy.recompute_layers,
            strategy.keeps_activations,
        )

    def at(self, block: int) -> Keeping:
        """What it means for one block, whatever its stage."""
        again = (block + 1) % self.every == 0
        return Keeping(self.recompute if again else "none", gathered=self.gathered)

    @property
    def of_layers(self) -> tuple[Keeping, Keeping]:
        """What a stage may pick for a layer: to keep everything, and to recompute."""
        return Keeping(gathered=self.gathered), Keeping(self.recompute, gathered=self.gathered)


class _Forward(NamedTuple):
    """What the placed forward pass of a block depends on."""

    mesh: Mesh
    first: int
    """The block that stands for all that are equal."""
    handed: tuple[Positions, ...]
    """The layouts of what the block before hands on."""
    keeping: Keeping
    trained_elsewhere: frozenset[int]
    """The positions of parameters of which other blocks alone make gradients."""


class ChainPlacer:
    """Places all blocks of a workload's model on meshes."""

    def __init__(self, workload: Workload, *, fuse: bool, narrow: bool) -> None:
        """`fuse` and `narrow`: see `Planner`."""
        self._program, self._training = workload.program, workload.training
        self._types, self._fuse, self._narrow = workload.types, fuse, narrow
        self._steps: dict[object, BlockStep] = {}
        self._forward: dict[_Forward, BlockPlacer] = {}
        self._forward_of_steps: dict[object, BlockPlacer] = {}
        self._placed: dict[object, PlacedBlock] = {}
        self._chains: dict[object, tuple[PlacedBlock, ...]] = {}
        self._stored: dict[object, list[dict[Value, Positions]]] = {}
        self._block_meshes: dict[object, Mesh] = {}
        self._block_axes: dict[int, frozenset[Axis]] = {}
        self._block_lists: dict[int, set[object]] = {}
        self._block_places: dict[int, tuple[Place, ...]] = {}
        self._rests: dict[PlacedBlock, dict[Value, Positions]] = {}
        self._demanded: dict[PlacedBlock, tuple[tuple[Value, Positions], ...]] = {}
        self._handed_on: dict[BlockPlacer | PlacedBlock, tuple[Positions, ...]] = {}
        self._entries_deciding: dict[
            tuple[int, tuple[AxisListEntry, ...]], tuple[AxisListEntry, ...]
        ] = {}

    def chain(self, mesh: Mesh, keeping: Keeping) -> tuple[PlacedBlock, ...]:
        """Every block placed: forward from first to last, then backward."""
        key = (mesh, keeping)
        if key not in self._chains:
            self._chains[key] = self._place_chain(mesh, keeping)
        return self._chains[key]

    def _place_chain(self, mesh: Mesh, keeping: Keeping) -> tuple[PlacedBlock, ...]:
        blocks = self._program.blocks
        meshes = {first: self._mesh_of_block(mesh, first) for first in set(blocks.representative)}
        placers: list[BlockPlacer] = []
        handed: tuple[Positions, ...] = ()
        for index, first in enumerate(blocks.representative):
            elsewhere = self._trained_elsewhere[index]
            asked = _Forward(meshes[first], first, handed, keeping.at(index), elsewhere)
            placer = self._place_forward(asked)
            placers.append(placer)
            handed = self._handed(placer, placer.outputs)
        placed: list[PlacedBlock] = []
        handed = ()
        for placer in reversed(placers):
            block = self._place_backward(placer, handed)
            placed.append(block)
            handed = self._handed(block, block.input_gradients)
        return tuple(reversed(placed))

    def _handed(
        self, placed: BlockPlacer | PlacedBlock, locals_: Sequence[Local | None]
    ) -> tuple[Positions, ...]:
        """The layouts of what a placed block hands on."""
        found = self._handed_on.get(placed)
        if found is None:
            dims = placed.step.axes.dims
            layouts = ((each.layout, dims[each.value]) for each in locals_ if each is not None)
            found = tuple(positions_of(*each) for each in layouts)
            self._handed_on[placed] = found
        return found

    @cached_property
    def _trained_elsewhere(self) -> tuple[frozenset[int], ...]:
        """Per block, the positions of its parameters of which other blocks alone make gradients."""
        program = self._program
        uses, blocks = program.shared_uses, program.blocks
        if not self._training or not program.sharing_blocks:
            return (frozenset[int](),) * len(uses)

        def trained(index: int) -> set[Value]:
            """The parameters of those that are shared of which a block makes gradients."""
            first, own = blocks.representative[index], uses[index]
            gradients = self._step(first).parameter_gradients
            parameters = blocks.blocks[first].parameters
            return {value for value, at in own.items() if parameters[at] in gradients}

        here = {index: trained(index) for index in program.sharing_blocks}
        every = set[Value]().union(*here.values())
        return tuple(
            frozenset([at for value, at in own.items() if value in every - here.get(index, every)])
            for index, own in enumerate(uses)
        )

    def _place_forward(self, asked: _Forward) -> BlockPlacer:
        if asked not in self._forward:
            self._forward[asked] = self._placed_forward(asked)
        return self._forward[asked]

    def _placed_forward(self, asked: _Forward) -> BlockPlacer:
        """The placed forward pass of a block: one wherever the block has one step, and whether or
        not gathered activations stay, if there are none."""
        mesh, first, handed, keeping, elsewhere = asked
        block = self._program.blocks.blocks[first]
        lowered = lowered_ops(self._program.blocks, block, mesh.lists)
        exchanged = frozenset(
            entry.axis for entries in mesh.lists for entry in entries if entry.everywhere
        )
        step = self._step(first, lowered, mesh.padded, exchanged, keeping.recompute, elsewhere)
        known, key = self._forward_of_steps, (mesh, step, handed, keeping.gathered)
        if key not in known:
            layouts = tuple(
                layout_at(positions, step.axes.dims[value])
                for positions, value in zip(handed, block.inputs, strict=True)
            )
            known[key] = BlockPlacer(step, mesh, layouts, keeping.gathered)
            if not known[key].gathers:
                known[(*key[:-1], not keeping.gathered)] = known[key]
        return known[key]

    def _mesh_of_block(self, mesh: Mesh, first: int) -> Mesh:
        """The mesh with as much of its lists as can decide anything in a block: the axes that
        the block has. Meshes that differ elsewhere are one, so that the block is placed once."""
        if (mesh, first) not in self._block_meshes:
            if first not in self._block_axes:
                axes, group = self._program.axes, self._program.blocks.group
                order = self._program.blocks.blocks[first].axis_order(axes)
                leaders = {*order, *map(axes.leader, order)}
                self._block_axes[first] = frozenset(group.get(a, a) for a in leaders)
            own = self._block_axes[first]
            lists = tuple(tuple(e for e in every if e.axis in own) for every in mesh.lists)
            known = self._block_lists.setdefault(first, set())
            known.add(lists)
            if len(known) > MANY_LISTS:
                lists = tuple(self._deciding(first, entries) for entries in lists)
            padded = mesh.padded & own
            key = (mesh.names, lists, mesh.users, mesh.sharding, padded)
            known = self._block_meshes.setdefault(key, replace(mesh, lists=lists, padded=padded))
            self._block_meshes[mesh, first] = known
        return self._block_meshes[mesh, first]

    def _deciding(
        self, first: int, entries: tuple[AxisListEntry, ...]
    ) -> tuple[AxisListEntry, ...]:
        """The entries of a list that decide anything in a block; equal lists are often asked
        about, as that of data parallelism is the same beside all others."""
        key = first, entries
        if key not in self._entries_deciding:
            self._entries_deciding[key] = deciding(self._places(first), entries)
        return self._entries_deciding[key]

    def _places(self, first: int) -> tuple[Place, ...]:
        """The places of a block where lists decide."""
        if first not in self._block_places:
            self._block_places[first] = places_of(self._program, first)
        return self._block_places[first]

    def _step(
        self,
        first: int,
        lowered: frozenset[int] = frozenset(),
        padded: frozenset[Axis] = frozenset(),
        exchanged: frozenset[Axis] = frozenset(),
        recomputed: str = "none",
        elsewhere: frozenset[int] = frozenset(),
    ) -> BlockStep:
        policy = recomputed if first in self._program.layers else "none"
        # Where nothing is recomputed, nobody asks what is exchanged.
        key = (first, lowered, padded, exchanged if policy != "none" else None, policy, elsewhere)
        if key not in self._steps:
            blocks = self._program.blocks
            block = blocks.blocks[first]
            narrow = self._narrow and self._types.cast is not None
            step = build_step(
                blocks,
                block,
                lowered,
                self._training,
                padded,
                narrow=narrow,
                trained_elsewhere=elsewhere,
            )
            if self._training:
                dropped = RECOMPUTE.get(policy)(blocks, step, exchanged) | views_of_parameters(step)
                if self._fuse:
                    dropped |= inside_kernels(step)
                eager = policy in ("full", "needed")
                step = recompute(step, dropped, eager=eager, to_end=policy == "full")
            self._steps[key] = step
        return self._steps[key]

    def _place_backward(self, placer: BlockPlacer, handed: tuple[Positions, ...]) -> PlacedBlock:
        key = (placer, handed)
        if key not in self._placed:
            step = placer.step
            given = [
                step.output_gradients[v] for v in step.block.outputs if v in step.output_gradients
            ]
            if len(handed) < len(given):
                ends = ", ".join(value.name for value in step.block.outputs)
                raise TransformError(
                    f"no gradient comes back to {ends}, so the parameters before it are not "
                    "trained: the op that reads it has no derivative (define a slope for your own "
                    "op); for the forward pass alone, use the mode inference"
                )
            layouts = tuple(
                layout_at(positions, step.axes.dims[value])
                for positions, value in zip(handed, given, strict=True)
            )
            self._placed[key] = placer.backward(layouts)
        return self._placed[key]

    def stored_layouts(self, mesh: Mesh, keeping: Keeping) -> list[dict[Value, Positions]]:
        """Per block and parameter where it rests: as its uses need it if they agree (over all
        blocks that use it), otherwise whole."""
        key = (mesh, keeping)
        if key not in self._stored:
            self._stored[key] = self._agreed_layouts(mesh, self.chain(mesh, keeping))
        return self._stored[key]

    def _agreed_layouts(
        self, mesh: Mesh, chain: tuple[PlacedBlock, ...]
    ) -> list[dict[Value, Positions]]:
        demands: dict[Value, set[Positions]] = {}
        blocks = list(zip(self._corresponding_parameters, chain, strict=True))
        sharing = self._program.sharing_blocks
        for index in sharing:
            own, placed = blocks[index]
            for value, positions in self._demanded_by(placed):
                demands.setdefault(own[value], set()).add(positions)
        return [
            _agreed(own, demands, mesh.whole) if index in sharing else self._agreed_alone(placed)
            for index, (own, placed) in enumerate(blocks)
        ]

    def _agreed_alone(self, placed: PlacedBlock) -> dict[Value, Positions]:
        """Where the parameters of a block rest that shares none with others."""
        found = self._rests.get(placed)
        if found is None:
            demands: dict[Value, set[Positions]] = {}
            for value, positions in self._demanded_by(placed):
                demands.setdefault(value, set()).add(positions)
            own = {value: value for value in placed.step.block.parameters}
            found = self._rests[placed] = _agreed(own, demands, placed.mesh.whole)
        return found

    @cached_property
    def _corresponding_parameters(self) -> tuple[dict[Value, Value], ...]:
        """Per block its parameters, by those of the first block that equals it."""
        blocks = self._program.blocks
        every = zip(blocks.representative, blocks.blocks, strict=True)
        return tuple(
            dict(zip(blocks.blocks[first].parameters, block.parameters, strict=True))
            for first, block in every
        )

    def _demanded_by(self, placed: PlacedBlock) -> tuple[tuple[Value, Positions], ...]:
        """The parameters that a placed block reads, and where its devices read them."""
        found = self._demanded.get(placed)
        if found is None:
            dims, own = placed.step.axes.dims, frozenset(placed.step.block.parameters)
            read = ((each.value, each.layout) for each in placed.demanded if each.value in own)
            found = tuple((value, positions_of(layout, dims[value])) for value, layout in read)
            self._demanded[placed] = found
        return found


def _agreed(
    own: Mapping[Value, Value], demands: Mapping[Value, set[Positions]], whole: Positions
) -> dict[Value, Positions]:
    """By parameter where it rests: where it is demanded, if that is one place, or else whole. `own`
    are the names by which it is demanded."""
    found: dict[Value, Positions] = {}
    for value, actual in own.items():
        wanted = demands.get(actual, {whole})
        found[value] = next(iter(wanted)) if len(wanted) == 1 else whole
    return found


__all__ = ["ChainPlacer", "Keeping"]
