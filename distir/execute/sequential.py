"""Runs a function or a whole step on one device, op by op: what plans are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from distir.errors import TransformError
from distir.execute.values import (
    OptimizerStep,
    StepResult,
    StepValues,
    batch_axes,
    join_microbatches,
    loss_weight,
    microbatch,
)
from distir.ir.core import Array, Node, Part, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.ops.optimizer import MomentumStep, SGDStep
from distir.transforms.lower import has_dropout
from distir.user_code import run_user_code
from distir.workload import Workload


def evaluate(
    function: Function,
    inputs: Sequence[Array] | Mapping[Value, Array],
    parameters: Sequence[Array] | Mapping[Value, Array] = (),
    dtype: str = "float64",
) -> list[Array]:
    """The outputs of a function, as NumPy arrays in order.

    `inputs` and `parameters` are in the function's order, or mapped from its values. Real numbers
    are computed in `dtype`; integers keep their type. A value is freed after its last reader.
    Raises `TransformError` if an array is missing or has another shape than its value, and if an
    op cannot be computed, as where indices lie beyond what they choose from.
    """
    import numpy as np

    known: dict[Value, Array] = {}
    known |= _given(function.inputs, inputs, "input", dtype)
    known |= _given(function.parameters, parameters, "parameter", dtype)
    for value, array in function.constants.items():
        if array is not None:
            known[value] = _as_computed(array, value, dtype)
    last = {value: node for node in function.nodes for value in node.operands}
    kept = set(function.outputs)
    with np.errstate(all="ignore"):
        for node in function.nodes:
            operands = [_look_up(function, known, operand) for operand in node.operands]
            known |= zip(node.results, _results(function.name, node, operands), strict=True)
            for value in dict.fromkeys(node.operands):
                if last[value] is node and value not in kept:
                    del known[value]
    return [known[output] for output in function.outputs]


def _results(name: str, node: Node, operands: Sequence[Array]) -> Sequence[Array]:
    """What an op makes, which may be a user's own."""
    import numpy as np

    where = f"{name}: {node.op.name}"
    results = run_user_code(
        f"{where} cannot be computed at these sizes",
        lambda: node.op.evaluate(*operands),
        TransformError,
    )
    for value, array in zip(node.results, results, strict=True):
        if np.shape(array) != value.type.shape:
            raise TransformError(
                f"{where} computes an array of shape {list(np.shape(array))}; expected "
                f"{list(value.type.shape)}, which is the shape that its result has"
            )
    return results


def _given(
    declared: Sequence[Value],
    given: Sequence[Array] | Mapping[Value, Array],
    what: str,
    dtype: str,
) -> dict[Value, Array]:
    if not isinstance(given, Mapping):
        if len(given) != len(declared):
            raise TransformError(f"{len(given)} {what}s are given; expected {len(declared)}")
        given = dict(zip(declared, given, strict=True))
    arrays: dict[Value, Array] = {}
    for value in declared:
        if value not in given:
            raise TransformError(f"{what} {value} is not given")
        arrays[value] = _as_computed(given[value], value, dtype)
    return arrays


def _as_computed(array: Array, value: Value, dtype: str) -> Array:
    import numpy as np

    array = np.asarray(array)
    if array.shape != value.type.shape:
        raise TransformError(
            f"{value} is given an array of shape {list(array.shape)}; "
            f"expected {list(value.type.shape)}"
        )
    return array.astype(dtype) if value.type.dtype.is_float else array


def _look_up(function: Function, known: Mapping[Value, Array], value: Value) -> Array:
    if value not in known:
        raise TransformError(
            f"{function.name}: the values of table {value} are not known, so that the function "
            "cannot be executed; import the model from a file that has them"
        )
    return known[value]


# --- a whole step ---------------------------------------------------------------------------------


def sequential_step(
    workload: Workload,
    given: StepValues,
    optimizer: OptimizerStep | None = None,
    microbatches: int = 1,
) -> StepResult:
    """One training step, or one pass of inference, on one device: no blocks, no placement.

    The batch is computed in `microbatches` pieces. Where `mixes_samples` holds, another number of
    pieces gives other results.
    """
    pieces = [_pass(workload, given, index, microbatches) for index in range(microbatches)]
    function = workload.program.function
    if not workload.training:
        outputs = tuple(
            join_microbatches(workload, value, [piece[value] for piece in pieces])
            for value in function.outputs
        )
        return StepResult(outputs)
    weight = loss_weight(workload, microbatches)
    (loss,) = function.outputs
    total = weight * reduce(np.add, [piece[loss] for piece in pieces])
    gradients = {
        value: weight * reduce(np.add, [piece[_gradient_key(value)] for piece in pieces])
        for value in function.parameters
        if _gradient_key(value) in pieces[0]
    }
    parameters: dict[Value, Array] = {}
    moments: dict[Value, tuple[Array, ...]] = {}
    for value, gradient in gradients.items():
        if optimizer is not None:
            parameters[value], moments[value] = _updated(
                optimizer, given.parameters[value], gradient, given.moments.get(value, ())
            )
    return StepResult((total,), gradients, parameters, moments)


def _gradient_key(value: Value) -> object:
    return ("gradient", value)


def _pass(
    workload: Workload, given: StepValues, index: int, microbatches: int
) -> dict[object, Array]:
    """Outputs (by value) and gradients (by `_gradient_key`) of one piece of the batch."""
    from distir.axes.rescale import rescale_values

    program = workload.program
    sizes = workload.sizes(workload.batch_size // microbatches)
    function, new = rescale_values(program.function, program.axes, sizes)
    sources = {
        new[value]: microbatch(workload, value, array, index, microbatches)
        for value, array in given.sources.items()
    }
    parameters = {new[value]: array for value, array in given.parameters.items()}
    gradients: dict[Value, Value] = {}
    if workload.training:
        function, gradients = with_gradients(function)
    arrays = evaluate(
        replace(function, constants={**function.constants, **_tables(function, sources)}),
        {value: sources[value] for value in function.inputs},
        parameters,
    )
    known = dict(zip(function.outputs, arrays, strict=True))
    found: dict[object, Array] = {value: known[new[value]] for value in program.function.outputs}
    for value in program.function.parameters:
        if new[value] in gradients:
            found[_gradient_key(value)] = known[gradients[new[value]]]
    return found


def _tables(function: Function, sources: Mapping[Value, Array]) -> dict[Value, Array]:
    return {value: sources[value] for value in function.constants if value in sources}


def with_gradients(function: Function) -> tuple[Function, dict[Value, Value]]:
    """The function of a loss with the ops of its backward pass behind it, and the gradient of each
    parameter. Raises `TransformError` if the loss is not a scalar."""
    from distir.ir.builder import Builder
    from distir.transforms.differentiate import differentiate

    (loss,) = function.outputs
    builder = Builder(function.name)
    seed = builder.scalar(1.0, loss.type.dtype)
    if loss.type.shape:
        raise TransformError(f"the loss is {loss}; expected a scalar")
    made = differentiate(builder, function.nodes, {loss: seed}, function.parameters)
    gradients = {value: made[value] for value in function.parameters if value in made}
    whole = replace(
        function,
        constants={**function.constants, **builder.constants},
        nodes=(*function.nodes, *builder.nodes),
        outputs=(loss, *gradients.values()),
    )
    return whole, gradients


def _updated(
    optimizer: OptimizerStep, parameter: Array, gradient: Array, moments: tuple[Array, ...]
) -> tuple[Array, tuple[Array, ...]]:
    """The parameter and its moments after the optimizer's step. Adam is written in the other form
    that its authors give (Kingma and Ba 2015, end of section 2), so that this is an independent
    check of the op."""
    import numpy as np

    if isinstance(optimizer, MomentumStep):
        (mean,) = moments
        # Heavy ball (Polyak 1964) in one line: the last step, damped, plus a plain step.
        damped = optimizer.momentum * optimizer.learning_rate * mean
        stepped = parameter - damped - optimizer.learning_rate * gradient
        return stepped, ((parameter - stepped) / optimizer.learning_rate,)
    if isinstance(optimizer, SGDStep):
        return parameter - optimizer.learning_rate * gradient, ()
    beta1, beta2, step = optimizer.beta1, optimizer.beta2, optimizer.step
    mean = beta1 * moments[0] + (1 - beta1) * gradient
    square = beta2 * moments[1] + (1 - beta2) * gradient * gradient
    correction = np.sqrt(1 - beta2**step)
    rate = optimizer.learning_rate * correction / (1 - beta1**step)
    update = rate * mean / (np.sqrt(square) + optimizer.epsilon * correction)
    return parameter - update, (mean, square)


def mixes_samples(workload: Workload) -> bool:
    """Whether a batch computed in microbatches gives other results than the batch at once.

    It does if the model has dropout, whose random numbers depend on a sample's place in the batch,
    or if an op other than the loss combines samples of one input, or if any op combines samples of
    two inputs.
    """
    program = workload.program
    batch = batch_axes(workload)
    if has_dropout(program.function):
        return True
    for node in program.function.nodes:
        kinds = program.axes.kinds[node]
        touched = [kind for axis, kind in kinds.items() if axis in batch]
        is_parallel = all(kind is Kind.PARALLEL for kind in touched)
        if len(touched) > 1 or (not is_parallel and node.part is not Part.LOSS):
            return True
    return False
