"""Places a block's forward and backward pass on the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distir.ir.core import Value
from distir.transforms.moves import Layout, Local, Move, Pending, PlacedMove
from distir.transforms.place import Mesh, Placed, Placement
from distir.transforms.step import BlockStep


@dataclass(frozen=True, slots=True, eq=False)
class PlacedBlock:
    """A block's SPMD program in terms of axes; sizes are filled in later.

    `demanded` are the parameters and free values that devices read, in the layouts in which they
    are read. `saved` are the shards kept from the forward to the backward pass of a microbatch.
    """

    step: BlockStep
    mesh: Mesh
    forward: tuple[Placed, ...]
    backward: tuple[Placed, ...]
    inputs: tuple[Local, ...]
    outputs: tuple[Local, ...]
    results: tuple[Local, ...]
    output_gradients: tuple[Local, ...]
    input_gradients: tuple[Local | None, ...]
    parameter_gradients: Mapping[Value, Local]
    demanded: tuple[Local, ...]
    saved: tuple[Local, ...]


class BlockPlacer:
    """Places one block: the forward pass at once, the backward pass by `backward`, once the layouts
    of the gradients that come from the next block are known."""

    def __init__(
        self,
        step: BlockStep,
        mesh: Mesh,
        input_layouts: tuple[Layout, ...],
        keep_gathered: bool = False,
    ) -> None:
        """Places the forward pass. With `keep_gathered`, values that it gathers are kept for the
        backward pass, which gathers them again otherwise."""
        self.step = step
        self.mesh = mesh
        self.placement = Placement(mesh, step.axes, step.sources, named=step.named)
        self.placement.use_counts.update(step.use_counts)
        block = step.block
        self.inputs = tuple(
            self.placement.arrive(value, layout)
            for value, layout in zip(block.inputs, input_layouts, strict=True)
        )
        for node in step.forward:
            self.placement.place(node)
        self.outputs = tuple(self.placement.settle(value) for value in block.outputs)
        for value, local in zip(block.outputs, self.outputs, strict=True):
            self.placement.home[value] = local
        self.results = tuple(self._result(value) for value in block.results)
        self.forward_steps = tuple(self.placement.next_phase(keep_gathered))

    @property
    def gathers(self) -> bool:
        """Whether the forward pass gathers a value."""
        moves = (each.move for each in self.forward_steps if isinstance(each, PlacedMove))
        return Move.GATHER in moves

    def _result(self, value: Value) -> Local:
        """A result of the model with its pending sums added up. The loss of a training step is
        left as it is: its parts are added up by who reads it."""
        if value in self.step.output_gradients and value in self.placement.home:
            return self.placement.home[value]
        return self.placement.settle(value)

    def backward(self, gradient_layouts: tuple[Layout, ...]) -> PlacedBlock:
        """The placed block, given the layouts of the outputs' gradients."""
        step, placement, block = self.step, self.placement.branch(), self.step.block
        given = [step.output_gradients[v] for v in block.outputs if v in step.output_gradients]
        arrived = tuple(
            placement.arrive(value, layout)
            for value, layout in zip(given, gradient_layouts, strict=True)
        )
        before = dict.fromkeys((*placement.home.values(), *placement.copies.values()))
        repeated = set(step.repeated_outputs)
        for node in step.backward:
            placement.place(node)
            for value in repeated.intersection(node.results):
                placement.settle(value)
        input_gradients = tuple(
            placement.settle(step.input_gradients[value]) if value in step.input_gradients else None
            for value in block.inputs
        )
        parameter_gradients = {
            value: placement.home.get(gradient) or placement.require(gradient, self.mesh.whole)
            for value, gradient in step.parameter_gradients.items()
        }
        backward_steps = tuple(placement.next_phase())
        passed = set(arrived)
        read = {local for each in backward_steps for local in operands_of(each)}
        return PlacedBlock(
            step=step,
            mesh=self.mesh,
            forward=self.forward_steps,
            backward=backward_steps,
            inputs=self.inputs,
            outputs=self.outputs,
            results=self.results,
            output_gradients=arrived,
            input_gradients=input_gradients,
            parameter_gradients=parameter_gradients,
            demanded=tuple(placement.demanded.values()),
            saved=tuple(local for local in before if local in read and local not in passed),
        )


def operands_of(placed: Placed) -> tuple[Local, ...]:
    """The shards that a step reads."""
    operands = getattr(placed, "operands", None)
    return operands if operands is not None else (placed.operand,)  # type: ignore[union-attr]


def results_of(placed: Placed) -> tuple[Local, ...]:
    """The shards that a step makes."""
    results = getattr(placed, "results", None)
    return results if results is not None else (placed.result,)  # type: ignore[union-attr]


__all__ = ["BlockPlacer", "Pending", "PlacedBlock", "operands_of", "results_of"]
