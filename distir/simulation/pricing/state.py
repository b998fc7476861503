"""Model state: what parameters, gradients and optimizer hold on a device."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from distir.arrays import Indices
from distir.cost.amounts import taken
from distir.plan import BlockProgram
from distir.workload import MOMENT_BYTES, OPTIMIZERS, Workload


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per device that stay for the whole run."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0

    def plus(self, other: StateBytes, count: int = 1) -> StateBytes:
        """With `count` times another's bytes."""
        return StateBytes(
            self.parameters + count * other.parameters,
            self.gradients + count * other.gradients,
            self.optimizer + count * other.optimizer,
        )

    def at(self, places: Indices | None) -> StateBytes:
        """In plans that are of these places among those known."""
        amounts = (self.parameters, self.gradients, self.optimizer)
        return StateBytes(*(taken(amount, places) for amount in amounts))

    @property
    def total(self) -> float:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer


def optimizer_state_bytes(workload: Workload) -> int:
    """Bytes per parameter: the master copy, if any, and the moments."""
    master = workload.types.master
    moments = OPTIMIZERS[workload.optimizer].num_moments * MOMENT_BYTES
    return moments + (master.itemsize if master else 0)


def optimizer_bytes_per_element(workload: Workload) -> float:
    """Traffic of one optimizer step per parameter: state and gradient read, state and parameter
    written."""
    state = optimizer_state_bytes(workload)
    types = workload.types
    read = state or types.compute.itemsize
    return float(read + types.gradient.itemsize + state + types.compute.itemsize)


def state_bytes(
    workload: Workload,
    program: BlockProgram,
    held: Collection[int] = (),
    added: Collection[int] = (),
) -> StateBytes:
    """State of a block's parameters. Other uses hold those at the positions `held`, and have the
    gradients of those at the positions `added`."""
    parameters = gradients = optimizer = 0.0
    for position, use in enumerate(program.parameters):
        trained = workload.training and use.gradient is not None
        if position not in held:
            parameters += use.type.size_bytes
            state = optimizer_state_bytes(workload) if trained else 0
            optimizer += use.owned_type.num_elements * state
        if trained and position not in added:
            assert use.gradient is not None
            gradient = program.values[use.gradient].type
            gradients += gradient.num_elements * workload.types.gradient_bytes
    return StateBytes(parameters, gradients, optimizer)
