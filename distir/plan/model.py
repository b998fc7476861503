"""What a plan is: stage programs plus a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from distir.ir.core import Node, Value
from distir.ir.types import TensorType
from distir.plan.grid import Grid
from distir.schedules import CompiledSchedule
from distir.strategy import Strategy
from distir.transforms.instantiate import Sizes
from distir.transforms.place import Layout, Local, Mesh
from distir.transforms.place_block import PlacedBlock
from distir.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class ParameterUse:
    """A parameter of a block: how a device stores it and where its gradient comes from.

    `type` is one device's stored part, in the compute precision; `owned_type` the part that it
    updates and keeps the optimizer's state of, which sharded states make smaller. `gradient` is
    what the backward pass adds up over microbatches, None where the parameter is not trained.
    """

    value: Value
    type: TensorType
    stored: Layout
    owned_type: TensorType
    owned: Layout
    gradient: Local | None


@dataclass(frozen=True, eq=False)
class BlockProgram:
    """A block's SPMD program at given sizes: what every device of its stage runs.

    `forward_gathers` and `backward_gathers` bring the parameters of a pass together that rest in
    smaller parts than it reads; where they stand in a stage's program is the matter of `passes`.
    Per parameter, `settle_by_parameter` adds up its gradient over the mesh once per step, into
    the part that a device owns, and `refresh_by_parameter` makes the stored parameter from the
    owned parts after the optimizer's step.
    `given` are the parameters and free values that the passes start from; `parameters` are in the
    block's order.
    """

    placed: PlacedBlock
    sizes: Sizes
    values: Mapping[Local, Value]
    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    forward_gathers: tuple[Node, ...]
    backward_gathers: tuple[Node, ...]
    settle_by_parameter: tuple[tuple[Node, ...], ...]
    settled: Mapping[Value, Local]
    refresh_by_parameter: tuple[tuple[Node, ...], ...]
    given: tuple[Local, ...]
    parameters: tuple[ParameterUse, ...]

    @property
    def settle(self) -> tuple[Node, ...]:
        """The settlement of all gradients."""
        return tuple(node for nodes in self.settle_by_parameter for node in nodes)

    def locals(self, which: Iterable[Local | None]) -> tuple[Value, ...]:
        """Values that stand for shards."""
        return tuple(self.values[local] for local in which if local is not None)

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Activations that the forward pass is given."""
        return self.locals(self.placed.inputs)

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        """Activations that it hands on."""
        return self.locals(self.placed.outputs)

    @cached_property
    def output_gradients(self) -> tuple[Value, ...]:
        """What the backward pass is given."""
        return self.locals(self.placed.output_gradients)

    @cached_property
    def input_gradients(self) -> tuple[Value, ...]:
        """What it hands on."""
        return self.locals(self.placed.input_gradients)

    @cached_property
    def outputs_repeated_along(self) -> tuple[str, ...]:
        """Mesh axes whose devices all hold the same outputs."""
        return self._repeated_along(self.placed.outputs)

    @cached_property
    def input_gradients_repeated_along(self) -> tuple[str, ...]:
        """Mesh axes whose devices all hold the same gradients of the inputs."""
        return self._repeated_along(self.placed.input_gradients)

    def _repeated_along(self, which: Iterable[Local | None]) -> tuple[str, ...]:
        layouts = [local.layout for local in which if local is not None]
        return tuple(
            name
            for index, name in enumerate(self.placed.mesh.names)
            if all(layout[index] is None for layout in layouts)
        )

    @cached_property
    def saved(self) -> frozenset[Value]:
        """What rests from the forward to the backward pass."""
        return frozenset(self.locals(self.placed.saved))


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One pipeline stage: a run of blocks, by index in the workload's program."""

    index: int
    blocks: tuple[int, ...]
    programs: tuple[BlockProgram, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """Stage programs plus schedule. Device `(stage, place in mesh)` runs its stage's program."""

    workload: Workload
    strategy: Strategy
    mesh: Mesh
    sizes: Sizes
    stages: tuple[Stage, ...]
    schedule: CompiledSchedule

    @property
    def devices_per_stage(self) -> int:
        """Number of devices that share a stage."""
        count = 1
        for degree in self.sizes.degrees:
            count *= degree
        return count

    @cached_property
    def grid(self) -> Grid:
        """Where the devices lie."""
        ranks = len(self.schedule.stages_of_ranks)
        return Grid.of(self.mesh, self.sizes.degrees, ranks, self.strategy.placement)
