"""What stays on a device from step to step: bytes of parameters, gradients and optimizer state, and
of inputs that one step leaves for the next."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from distir.cost.amounts import total
from distir.plan import BlockProgram
from distir.workload import OPTIMIZERS, OUTER_OPTIMIZERS, Workload


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of state per device. They stay from step to step.

    `inputs` are those that outputs carry on (see glossary, *state input*), such as the keys and
    values of earlier tokens, of all microbatches.
    """

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    inputs: float = 0.0
    host: float = 0.0
    """Bytes in the memory of the host, which none of the others counts."""
    hosted: float = 0.0
    """Bytes in the memory of the host per microbatch between its forward and its backward pass."""

    def plus(self, other: StateBytes, count: int = 1) -> StateBytes:
        """The sum of these bytes and `count` times the others."""
        return StateBytes(
            self.parameters + count * other.parameters,
            self.gradients + count * other.gradients,
            self.optimizer + count * other.optimizer,
            self.inputs + count * other.inputs,
            self.host + count * other.host,
            self.hosted + count * other.hosted,
        )

    def shared(self, ranks: int) -> StateBytes:
        """The bytes on each of several ranks that hold a stage: each is given its own microbatches,
        and the inputs of these alone."""
        return self if ranks == 1 else replace(self, inputs=self.inputs / ranks)

    @property
    def total(self) -> float:
        """All bytes of state on the device."""
        return self.parameters + self.gradients + self.optimizer + self.inputs


def optimizer_state_bytes(workload: Workload) -> int:
    """Optimizer bytes per parameter: the master copy, if there is one, and the moments."""
    types = workload.types
    moments = OPTIMIZERS[workload.optimizer].num_moments * types.moment.itemsize
    return moments + (types.master.itemsize if types.master else 0)


def outer_state_bytes(workload: Workload, program: BlockProgram) -> int:
    """Bytes per parameter that replicas which synchronise every few steps keep for their outer
    optimizer: its moments, and a copy in the type in which parameters are updated."""
    outer = OUTER_OPTIMIZERS.get(program.outer_optimizer)
    if outer is None:
        return 0
    types = workload.types
    return outer.num_moments * types.moment.itemsize + (types.master or types.compute).itemsize


def updated_bytes(workload: Workload) -> int:
    """Bytes of the host per parameter that is updated there: the optimizer's and a gradient's."""
    return optimizer_state_bytes(workload) + workload.types.gradient_bytes


def optimizer_bytes_per_element(workload: Workload) -> float:
    """Bytes that an optimizer step moves per parameter: it reads state, gradient, and the parameter
    where there is no master copy of it, and writes state and parameter."""
    state, types = optimizer_state_bytes(workload), workload.types
    updated = 0 if types.master else types.compute.itemsize
    return float(state + types.gradient.itemsize + updated + state + types.compute.itemsize)


def outer_bytes_per_element(workload: Workload, program: BlockProgram) -> tuple[float, float]:
    """Bytes per parameter that an outer step reads and writes. Before replicas add them up, each
    parameter becomes its difference from the copy, in its own place. Then the step reads
    difference, copy and moments, and writes copy, moments, and the parameter in all its types."""
    types, state = workload.types, outer_state_bytes(workload, program)
    updated = (types.master or types.compute).itemsize
    stored = types.compute.itemsize if types.master is not None else 0
    return 3.0 * updated + state, 2.0 * updated + state + stored


def state_bytes(
    workload: Workload,
    program: BlockProgram,
    held: Collection[int] = (),
    added: Collection[int] = (),
) -> StateBytes:
    """State bytes that a block is charged for.

    Another block is charged for the parameters at the positions `held`, and for the gradients of
    the parameters at the positions `added`.
    """
    uses = list(enumerate(program.parameters))
    stored = [use for position, use in uses if position not in held]
    updated = summed = 0.0  # elements whose parameters are updated, whose gradients are added up
    if workload.training:
        trained = [use for use in stored if use.gradient is not None]
        updated += total([use.owned_type.num_elements for use in trained])
        gradients_here = [
            program.values[use.gradient].type
            for position, use in uses
            if use.gradient is not None and position not in added and not use.gradient_on_host
        ]
        summed += total([each.num_elements for each in gradients_here])
    optimizer = host = 0.0
    parameters = 0.0 + total([use.type.size_bytes for use in stored])
    if program.rests_on_host:
        parameters, host = 0.0, parameters
    outer = outer_state_bytes(workload, program)
    if program.updates_on_host:
        host += updated * (updated_bytes(workload) + outer)
    else:
        optimizer = updated * (optimizer_state_bytes(workload) + outer)
    gradients = summed * workload.types.gradient_bytes
    inputs = state_input_bytes(workload, program)
    hosted = program.hosted.size_bytes if program.hosted is not None else 0.0
    return StateBytes(parameters, gradients, optimizer, inputs, host, hosted)


def state_input_bytes(workload: Workload, program: BlockProgram) -> float:
    """Bytes of a block's state inputs on a device, of all microbatches. Nothing in training, where
    no output but the loss is asked for."""
    if not program.state_inputs:
        return 0.0
    microbatch = sum(1.0 * value.type.size_bytes for value in program.state_inputs)
    samples = program.sizes.of(workload.program.batch)
    return microbatch * (workload.batch_size / samples)
