"""Recurrent layers: steps along a sequence, each of which needs the states that the step before has
left.

What a layer makes of its inputs is a product over all steps at once, which stands in front of these
ops; they do what is left to do step by step (Appleyard et al. 2016, section 3). Gates are in the
order of ONNX. Samples are independent of each other; whatever else a device held a part of, it
would have to send in every step, so that nothing else is split.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Dims, Kind, Signature, SignatureBuilder
from distir.ir.types import TensorType
from distir.ops.activations import Sigmoid
from distir.ops.reduce import ReduceSum

KERNELS_PER_STEP = 2
"""A step is a product, and a kernel for what is elementwise (Appleyard et al. 2016, section 3)."""


class Recurrence(Op):
    """Base of recurrent layers of one direction, from the last step to the first if `reverse`.

    Operands: `inputs[steps, batch, gates · hidden]`, `weight[gates · hidden, hidden]`, by which the
    first state is multiplied in every step, `bias[gates · hidden]` of that product, and the states
    before the first step, each `[batch, hidden]`; without them, these are zero. Results: the states
    after every step, each `[steps, batch, hidden]`, and where `kept` is not 0, what the backward
    pass reads of the gates, `[steps, batch, kept · hidden]`.
    """

    __slots__ = ()
    steps_along: ClassVar[int | None] = 0
    reverse: bool
    gates: ClassVar[int]
    states: ClassVar[int] = 1
    kept: ClassVar[int] = 0
    adds_products: ClassVar[bool] = True
    """Whether gates are made of the sum of inputs and products, so that both have one gradient."""

    @abstractmethod
    def step(
        self, inputs: Array, products: Array, states: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        """The states after a step, and what is kept of its gates. `inputs` and `products` are
        `[batch, gates, hidden]`."""

    @abstractmethod
    def step_back(
        self,
        gates: Sequence[Array],
        before: Sequence[Array],
        after: Sequence[Array],
        pulls: Sequence[Array],
    ) -> tuple[Sequence[Array], Sequence[Array], Sequence[Array]]:
        """Gradients of a step's inputs and products, per gate, and of the states before it but for
        what comes through the products. `pulls` are those of the states after it and of what is
        kept of its gates."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        inputs, weight, bias, *first = operands
        fits = (
            inputs.rank == 3
            and weight.rank == 2
            and len(first) in (0, self.states)
            and inputs.shape[2] == weight.shape[0] == self.gates * weight.shape[1]
            and bias.shape == weight.shape[:1]
            and all(each.shape == (inputs.shape[1], weight.shape[1]) for each in first)
        )
        if not fits:
            found = ", ".join(map(str, operands))
            raise ShapeError(
                f"{self.name}: {found}; expected [steps, batch, {self.gates} · hidden], "
                f"[{self.gates} · hidden, hidden], [{self.gates} · hidden] and none or "
                f"{self.states} of [batch, hidden]"
            )
        steps, batch, hidden = *inputs.shape[:2], weight.shape[1]
        state = inputs.with_shape((steps, batch, hidden))
        kept = inputs.with_shape((steps, batch, self.kept * hidden))
        return (*[state] * self.states, *[kept] * (self.kept > 0))

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, inputs, weight, state, kept = _dims(self, operands[0], operands[1])
        first = [state[1:]] * (len(operands) - 3)
        return builder.build(
            (inputs, weight, weight[:1], *first), (*[state] * self.states, kept)[: len(results)]
        )

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return _steps_work(operands[0], operands[1], operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        inputs, weight, bias, *first = operands
        steps, batch = inputs.shape[:2]
        hidden = weight.shape[1]
        apart = (batch, self.gates, hidden)
        states = list(first) or [np.zeros((batch, hidden), inputs.dtype)] * self.states
        made = [np.zeros((steps, batch, hidden), inputs.dtype) for _ in range(self.states)]
        kept = np.zeros((steps, batch, self.kept, hidden), inputs.dtype)
        for step in self.order(steps):
            products = (states[0] @ weight.T + bias).reshape(apart)
            after, gates = self.step(inputs[step].reshape(apart), products, states)
            states = list(after)
            for place, state in enumerate(states):
                made[place][step] = state
            for place, gate in enumerate(gates):
                kept[step, :, place] = gate
        return (*made, *[kept.reshape(steps, batch, -1)] * (self.kept > 0))

    def order(self, steps: int) -> Iterator[int]:
        """The steps in the order in which they run."""
        return reversed(range(steps)) if self.reverse else iter(range(steps))

    def derivative(self, back: Backward) -> Gradients:
        _, weight, _, *first = back.operands
        given = [each for each in back.gradients if each is not None]
        of = tuple(place for place, each in enumerate(back.gradients) if each is not None)
        gradient = RecurrenceGradient(self, of)
        found = back.builder.apply(gradient, weight, *back.results, *first, *given)
        products = found[0] if self.adds_products else found[1]
        of_weight: Value | None = None
        if back.wanted[1]:
            op = RecurrenceWeightGradient(self.reverse)
            of_weight = back.add(op, products, back.results[0], *first[:1])
        of_bias = back.add(ReduceSum((0, 1), keepdims=False), products) if back.wanted[2] else None
        return (found[0], of_weight, of_bias, *found[len(found) - len(first) :])


def _dims(
    op: Recurrence, inputs: TensorType, weight: TensorType
) -> tuple[SignatureBuilder, Dims, Dims, Dims, Dims]:
    """A signature builder, and the dims of inputs, weight, a state after every step, and what is
    kept of gates."""
    builder = SignatureBuilder()
    step = builder.loop(inputs.shape[0], Kind.WHOLE)
    batch = builder.loop(inputs.shape[1])
    gate = builder.loop(op.gates, Kind.WHOLE)
    hidden = builder.loop(weight.shape[1], Kind.WHOLE)
    inner = builder.loop(weight.shape[1], Kind.WHOLE)
    kept = builder.loop(max(op.kept, 1), Kind.WHOLE)
    builder.equate(hidden, inner)
    return (
        builder,
        (step, batch, gate + hidden),
        (gate + hidden, inner),
        (step, batch, hidden),
        (step, batch, kept + hidden),
    )


def _steps_work(
    inputs: TensorType,
    weight: TensorType,
    operands: Sequence[TensorType],
    results: Sequence[TensorType],
) -> Work:
    """The work of a product of the weight with a state per step, for which it is read anew."""
    steps, batch, width = inputs.shape
    return Work(
        kind=OpClass.PRODUCT,
        flops=2.0 * steps * batch * width * weight.shape[1],
        bytes_read=sum(t.size_bytes for t in operands) + (steps - 1) * weight.size_bytes,
        bytes_written=sum(t.size_bytes for t in results),
        dtype=results[0].dtype.short_name,
        launches=KERNELS_PER_STEP * steps,
    )


@register_op("RecurrenceGradient")
@dataclass(frozen=True, slots=True)
class RecurrenceGradient(Op):
    """Gradients of `op`: of its inputs, of the products of its weight if these have others, and of
    the states before the first step, if there are any.

    Operands: the weight, the results of `op`, the states before the first step, and gradients of
    the results that `of` names, by their places.
    """

    op: Recurrence
    of: tuple[int, ...]

    def _parts(self, operands: Sequence[Array]) -> tuple[list[Array], list[Array], list[Array]]:
        """The results of `op`, the states before the first step, and the gradients, of which those
        that are not given are zero."""
        import numpy as np

        count = self.op.states + (self.op.kept > 0)
        results = list(operands[1 : 1 + count])
        first = list(operands[1 + count : len(operands) - len(self.of)])
        given = dict(zip(self.of, operands[len(operands) - len(self.of) :], strict=True))
        gradients = [given.get(i, np.zeros_like(each)) for i, each in enumerate(results)]
        return results, first or [np.zeros_like(results[0][0])] * self.op.states, gradients

    def _num_first(self, operands: Sequence[object]) -> int:
        return len(operands) - 1 - self.op.states - (self.op.kept > 0) - len(self.of)

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        state = operands[1]
        steps, batch, hidden = state.shape
        inputs = state.with_shape((steps, batch, self.op.gates * hidden))
        first = [state.with_shape((batch, hidden))] * self._num_first(operands)
        return (*[inputs] * (1 if self.op.adds_products else 2), *first)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, inputs, weight, state, kept = _dims(self.op, results[0], operands[0])
        made = (*[state] * self.op.states, *[kept] * (self.op.kept > 0))
        first = [state[1:]] * self._num_first(operands)
        of_inputs = [inputs] * (len(results) - len(first))
        return builder.build(
            (weight, *made, *first, *(made[place] for place in self.of)), (*of_inputs, *first)
        )

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return _steps_work(results[0], operands[0], operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        op, weight = self.op, operands[0]
        results, first, gradients = self._parts(operands)
        steps, batch, hidden = results[0].shape
        states = slice(0, op.states)
        shape = (steps, batch, op.gates, hidden)
        of_inputs, of_products = np.zeros(shape), np.zeros(shape)
        order = list(op.order(steps))
        pulls = [np.zeros_like(each) for each in first]
        for step, earlier in reversed([*zip(order, [None, *order[:-1]], strict=True)]):
            before = first if earlier is None else [each[earlier] for each in results[states]]
            given = [each[step] for each in gradients]
            given[states] = [a + b for a, b in zip(given[states], pulls, strict=True)]
            gates = [
                each[step].reshape(batch, op.kept, hidden)[:, place]
                for each in results[op.states :]
                for place in range(op.kept)
            ]
            inputs, products, pulls = op.step_back(
                gates, before, [each[step] for each in results[states]], given
            )
            of_inputs[step], of_products[step] = np.stack(inputs, 1), np.stack(products, 1)
            pulls = [pulls[0] + of_products[step].reshape(batch, -1) @ weight, *pulls[1:]]
        made = [of_inputs] if op.adds_products else [of_inputs, of_products]
        made = [each.reshape(steps, batch, -1) for each in made]
        return (*made, *pulls[: self._num_first(operands)])


@register_op("RecurrenceWeightGradient")
@dataclass(frozen=True, slots=True)
class RecurrenceWeightGradient(Op):
    """The gradient of the weight of a recurrence, `[width, hidden]`: the sum over steps and samples
    of gradients of products, `[steps, batch, width]`, times the states before each step. Operands
    are also these states after each step, `[steps, batch, hidden]`, and before the first one,
    `[batch, hidden]`, if it is not zero."""

    reverse: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0].with_shape((operands[0].shape[2], operands[1].shape[2])),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        step = builder.loop(operands[0].shape[0], Kind.WHOLE)
        batch = builder.loop(operands[0].shape[1], Kind.SUM)
        width, hidden = builder.dims(results[0].shape)
        states = (step, batch, hidden)
        dims = ((step, batch, width), states, states[1:])
        return builder.build(dims[: len(operands)], ((width, hidden),))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        steps, batch = operands[0].shape[:2]
        return Work(
            kind=OpClass.PRODUCT,
            flops=2.0 * steps * batch * results[0].num_elements,
            bytes_read=sum(t.size_bytes for t in operands),
            bytes_written=results[0].size_bytes,
            dtype=results[0].dtype.short_name,
        )

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        products, states, *first = operands
        before = np.roll(states, -1 if self.reverse else 1, axis=0)
        before[-1 if self.reverse else 0] = first[0] if first else 0.0
        return (np.einsum("sbw,sbh->wh", products, before, optimize=True),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)


# --- layers --------------------------------------------------------------------------------------


_SIGMOID = Sigmoid()


@register_op("RNNSteps")
@dataclass(frozen=True, slots=True)
class RNNSteps(Recurrence):
    """`state = tanh(inputs + products)`, or the rectifier of the sum (Elman 1990)."""

    reverse: bool = False
    rectified: bool = False
    gates: ClassVar[int] = 1

    def step(
        self, inputs: Array, products: Array, states: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        import numpy as np

        total = (inputs + products)[:, 0]
        return (np.maximum(total, 0.0) if self.rectified else np.tanh(total),), ()

    def step_back(
        self,
        gates: Sequence[Array],
        before: Sequence[Array],
        after: Sequence[Array],
        pulls: Sequence[Array],
    ) -> tuple[Sequence[Array], Sequence[Array], Sequence[Array]]:
        import numpy as np

        slope = np.where(after[0] > 0, 1.0, 0.0) if self.rectified else 1.0 - after[0] ** 2
        total = (pulls[0] * slope,)
        return total, total, (np.zeros_like(after[0]),)


@register_op("LSTMSteps")
@dataclass(frozen=True, slots=True)
class LSTMSteps(Recurrence):
    """States are `h = o · tanh(c)` and `c = f · c + i · g`, of gates i, o, f, which are sigmoids,
    and g, a tanh (Gers et al. 2000). The gates are kept."""

    reverse: bool = False
    gates: ClassVar[int] = 4
    states: ClassVar[int] = 2
    kept: ClassVar[int] = 4

    def step(
        self, inputs: Array, products: Array, states: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        import numpy as np

        total = inputs + products
        i, o, f = (_SIGMOID.apply(total[:, place]) for place in range(3))
        g = np.tanh(total[:, 3])
        cell = f * states[1] + i * g
        return (o * np.tanh(cell), cell), (i, o, f, g)

    def step_back(
        self,
        gates: Sequence[Array],
        before: Sequence[Array],
        after: Sequence[Array],
        pulls: Sequence[Array],
    ) -> tuple[Sequence[Array], Sequence[Array], Sequence[Array]]:
        import numpy as np

        i, o, f, g = gates
        shown = np.tanh(after[1])
        of_cell = pulls[1] + pulls[0] * o * (1.0 - shown**2)
        given = np.split(pulls[2], 4, axis=-1)
        of_gates = (of_cell * g, pulls[0] * shown, of_cell * before[1], of_cell * i)
        slopes = (*map(_SIGMOID.slope, (i, o, f)), 1.0 - g**2)
        total = [(a + b) * c for a, b, c in zip(of_gates, given, slopes, strict=True)]
        return total, total, (np.zeros_like(of_cell), of_cell * f)


@register_op("GRUSteps")
@dataclass(frozen=True, slots=True)
class GRUSteps(Recurrence):
    """`state = (1 − z) · n + z · state` of gates z and r, which are sigmoids, and
    `n = tanh(inputs + r · products)` (Cho et al. 2014, in the form of cuDNN). Kept are the gates
    and the products of n."""

    reverse: bool = False
    gates: ClassVar[int] = 3
    kept: ClassVar[int] = 4
    adds_products: ClassVar[bool] = False

    def step(
        self, inputs: Array, products: Array, states: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        import numpy as np

        z, r = (_SIGMOID.apply(inputs[:, place] + products[:, place]) for place in range(2))
        new = np.tanh(inputs[:, 2] + r * products[:, 2])
        return ((1.0 - z) * new + z * states[0],), (z, r, new, products[:, 2])

    def step_back(
        self,
        gates: Sequence[Array],
        before: Sequence[Array],
        after: Sequence[Array],
        pulls: Sequence[Array],
    ) -> tuple[Sequence[Array], Sequence[Array], Sequence[Array]]:
        import numpy as np

        z, r, new, product = gates
        given = np.split(pulls[1], 4, axis=-1)
        of_new = (pulls[0] * (1.0 - z) + given[2]) * (1.0 - new**2)
        of_z = (pulls[0] * (before[0] - new) + given[0]) * _SIGMOID.slope(z)
        of_r = (of_new * product + given[1]) * _SIGMOID.slope(r)
        return (
            (of_z, of_r, of_new),
            (of_z, of_r, of_new * r + given[3]),
            (pulls[0] * z,),
        )
