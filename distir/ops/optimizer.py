"""Steps of optimizers: elementwise ops on parameter, gradient and state, run once per iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.cost.work import OpClass, Work
from distir.ir.core import Array, Op
from distir.ir.registered import register_op
from distir.ir.signature import Signature, broadcast_signature
from distir.ir.types import TensorType


class _OptimizerStep(Op):
    """Base of optimizer steps. Operands are a parameter, its gradient and the optimizer's state;
    results are the new parameter and the new state."""

    __slots__ = ()

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shape = results[0].shape
        return broadcast_signature([t.shape for t in operands], shape, num_results=len(results))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work(
            kind=OpClass.MEMORY,
            flops=self.flops_per_element * operands[0].num_elements,
            bytes_read=sum(t.size_bytes for t in operands),
            bytes_written=sum(t.size_bytes for t in results),
        )

    flops_per_element = 2


@register_op("SGDStep")
@dataclass(frozen=True, slots=True)
class SGDStep(_OptimizerStep):
    """Stochastic gradient descent: `p − learning_rate · g`. Operands are `(p, g)`."""

    learning_rate: float = 1e-2

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0],)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        parameter, gradient = operands
        return (parameter - self.learning_rate * gradient,)


class _StepWithMomentum(_OptimizerStep):
    """Base of steps that keep a mean of gradients, `m' = momentum · m + g`. Operands are
    `(p, g, m)`."""

    __slots__ = ()
    learning_rate: float
    momentum: float

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        parameter, _, mean = operands
        return (parameter, mean)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        parameter, gradient, mean = operands
        mean = self.momentum * mean + gradient
        return (parameter - self.learning_rate * self.direction(gradient, mean), mean)

    def direction(self, gradient: Array, mean: Array) -> Array:
        """Where the parameter goes, given its gradient and the new mean."""
        raise NotImplementedError


@register_op("MomentumStep")
@dataclass(frozen=True, slots=True)
class MomentumStep(_StepWithMomentum):
    """SGD with momentum (Sutskever et al. 2013): `m' = momentum · m + g`, `p − learning_rate · m'`.
    Operands are `(p, g, m)`."""

    learning_rate: float = 1e-2
    momentum: float = 0.9
    flops_per_element = 4

    def direction(self, gradient: Array, mean: Array) -> Array:
        return mean


@register_op("NesterovStep")
@dataclass(frozen=True, slots=True)
class NesterovStep(_StepWithMomentum):
    """SGD with Nesterov momentum (Sutskever et al. 2013, as PyTorch has it): `m' = momentum · m +
    g`, `p − learning_rate · (g + momentum · m')`. Operands are `(p, g, m)`. The numbers are those
    of the outer optimizer of DiLoCo (Douillard et al. 2023, table 5)."""

    learning_rate: float = 0.7
    momentum: float = 0.9
    flops_per_element = 6
    num_moments = 1

    def direction(self, gradient: Array, mean: Array) -> Array:
        return gradient + self.momentum * mean


@register_op("AdamStep")
@dataclass(frozen=True, slots=True)
class AdamStep(_OptimizerStep):
    """Adam (Kingma and Ba 2015, algorithm 1). Operands are `(p, g, m, v)`; `step` is the number of
    the step, from 1 on."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    step: int = 1
    flops_per_element = 12

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        parameter, _, mean, square = operands
        return (parameter, mean, square)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        parameter, gradient, mean, square = operands
        mean = self.beta1 * mean + (1 - self.beta1) * gradient
        square = self.beta2 * square + (1 - self.beta2) * gradient**2
        mean_corrected = mean / (1 - self.beta1**self.step)
        square_corrected = square / (1 - self.beta2**self.step)
        update = mean_corrected / (np.sqrt(square_corrected) + self.epsilon)
        return (parameter - self.learning_rate * update, mean, square)
