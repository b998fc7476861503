"""What ONNX's general ops become: arithmetic, products, shapes, reductions, normalisation.

An op that existing ops can spell gets no class of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_convert import (
    MOST_FOLDED_ELEMENTS,
    Call,
    Constant,
    converts,
    read_dtype,
)
from distir.importers.strided import strided_view
from distir.ir.core import Op, Value
from distir.ir.types import DType, TensorType
from distir.ops import norm, tensor
from distir.ops import reduce as reductions
from distir.ops.activations import Gelu, Relu, Sigmoid, Silu, Tanh
from distir.ops.arithmetic import (
    Abs,
    Add,
    Div,
    Erf,
    Exp,
    Log,
    Mul,
    Neg,
    Pow,
    Reciprocal,
    Sqrt,
    Sub,
    Sum,
)
from distir.ops.base import broadcast_shapes, normalize_axes, normalize_axis
from distir.ops.comparisons import (
    And,
    Equal,
    Greater,
    GreaterOrEqual,
    IsNaN,
    Less,
    LessOrEqual,
    Not,
    Or,
    Where,
)
from distir.ops.elementwise import Cast
from distir.ops.linalg import Einsum, Gemm, MatMul
from distir.ops.lookup import Gather
from distir.ops.reduce import ReduceMax, ReduceMean, ReduceSum
from distir.ops.tensor import Concat, Expand, Reshape, Slice, Split, Transpose

Array = Any

# --- one element from the elements at the same place ---------------------------------------------

_UNARY: dict[str, Op] = {
    "Neg": Neg(),
    "Relu": Relu(),
    "Sigmoid": Sigmoid(),
    "Tanh": Tanh(),
    "Exp": Exp(),
    "Log": Log(),
    "Sqrt": Sqrt(),
    "Reciprocal": Reciprocal(),
    "Erf": Erf(),
    "Not": Not(),
    "IsNaN": IsNaN(),
}
_BINARY: dict[str, Op] = {
    "Add": Add(),
    "Sub": Sub(),
    "Mul": Mul(),
    "Div": Div(),
    "Pow": Pow(),
    "And": And(),
    "Or": Or(),
    "Equal": Equal(),
    "Greater": Greater(),
    "GreaterOrEqual": GreaterOrEqual(),
    "Less": Less(),
    "LessOrEqual": LessOrEqual(),
}


@converts(*_UNARY)
def unary(call: Call) -> Value:
    """The op of the same name."""
    return call.add(_UNARY[call.node.op_type], call.operand(0))


@converts(*_BINARY)
def binary(call: Call) -> Value:
    """The op of the same name; before opset 7 broadcasting had attributes."""
    a, b = call.operand(0), call.operand(1)
    if call.opset < 7 and call.attribute("broadcast") and call.attribute("axis") is not None:
        axis = normalize_axis(call.node.op_type, call.attribute("axis"), a.type.rank)
        trailing = a.type.rank - axis - b.type.rank
        b = call.view(b, (*b.type.shape, *(1,) * trailing), range(b.type.rank))
    return call.add(_BINARY[call.node.op_type], a, b)


@converts("Where")
def where(call: Call) -> Value:
    """Where."""
    return call.add(Where(), *call.operands())


@converts("Sum")
def sum_of(call: Call) -> Value:
    """Sum; of one operand the operand itself."""
    values = call.operands()
    return values[0] if len(values) == 1 else call.add(Sum(), *values)


@converts("Mean")
def mean_of(call: Call) -> Value:
    """The sum divided by the number of operands."""
    values = call.operands()
    return call.add(tensor.Scale(1 / len(values)), call.add(Sum(), *values))


@converts("Cast", "CastLike")
def cast(call: Call) -> Value:
    """Cast; nothing where the type is the same."""
    to = call.attribute("to")
    if call.node.op_type == "CastLike":
        dtype = call.type(1).dtype
    else:
        dtype = read_dtype(to if isinstance(to, str) else int(to), "the result")
    x = call.operand(0)
    return x if x.type.dtype is dtype else call.add(Cast(dtype), x)


@converts("Gelu", "com.microsoft:Gelu", "com.microsoft:FastGelu", "com.microsoft:BiasGelu")
def gelu(call: Call) -> Value:
    """Gelu, after a bias in the fused forms."""
    is_fast = call.node.op_type == "FastGelu"
    approximate = "tanh" if is_fast else str(call.attribute("approximate", "none"))
    x = call.operand(0)
    if call.has(1):
        x = call.add(Add(), x, call.operand(1))
    return call.add(Gelu(approximate), x)


@converts("Swish", "com.microsoft:QuickGelu")
def swish(call: Call) -> Value:
    """Silu, or `x · sigmoid(alpha · x)`."""
    alpha = float(call.attribute("alpha", 1.702 if call.node.domain else 1.0))
    x = call.operand(0)
    if alpha == 1.0:
        return call.add(Silu(), x)
    gate = call.add(Sigmoid(), call.add(tensor.Scale(alpha), x))
    return call.add(Mul(), x, gate)


# --- products ------------------------------------------------------------------------------------


@converts("MatMul")
def matmul(call: Call) -> Value:
    """MatMul."""
    return call.add(MatMul(), call.operand(0), call.operand(1))


@converts("Gemm")
def gemm(call: Call) -> Value:
    """Gemm; without a bias and factors the same op with two operands."""
    op = Gemm(
        alpha=float(call.attribute("alpha", 1.0)),
        beta=float(call.attribute("beta", 1.0)),
        trans_a=bool(call.attribute("transA", 0)),
        trans_b=bool(call.attribute("transB", 0)),
    )
    return call.add(op, *call.operands())


@converts("Einsum")
def einsum(call: Call) -> Value:
    """Einsum with its ellipsis written out; what only one operand has is summed before."""
    operands = call.operands()
    terms, output = _einsum_terms(str(call.attribute("equation", "")), operands)
    values: list[Value] = []
    for position, (term, value) in enumerate(zip(terms, operands, strict=True)):
        others = set(output).union(*(t for i, t in enumerate(terms) if i != position))
        alone = tuple(i for i, letter in enumerate(term) if letter not in others)
        if alone:
            value = call.add(ReduceSum(alone, keepdims=False), value)
            terms[position] = "".join(letter for letter in term if letter in others)
        values.append(value)
    if len(values) == 1:
        order = tuple(terms[0].index(letter) for letter in output)
        return call.add(Transpose(order), values[0])
    return call.add(Einsum(",".join(terms) + "->" + output), *values)


def _einsum_terms(equation: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ImportModelError(f"equation {equation!r} has {len(terms)} terms")
    used = set(equation)
    spare = [c for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in used]
    longest = ""
    for position, (term, value) in enumerate(zip(terms, operands, strict=True)):
        if "..." in term:
            count = value.type.rank - (len(term) - 3)
            letters = "".join(spare[:count][::-1])
            longest = max(longest, letters, key=len)
            terms[position] = term.replace("...", letters)
    if not arrow:
        letters = "".join(terms)
        free = sorted(c for c in set(letters) if letters.count(c) == 1 and c not in longest)
        output = "..." + "".join(free)
    for term in terms:
        if len(set(term)) != len(term):
            raise UnsupportedOpError(f"Einsum {equation!r}: a letter twice in a term (a diagonal)")
    return terms, output.replace("...", longest)


# --- shape and order -----------------------------------------------------------------------------


@converts("Shape")
def shape_of(call: Call) -> Array:
    """A constant: shapes are known."""
    import numpy as np

    shape = call.type().shape
    cut = slice(call.attribute("start", 0), call.attribute("end"))
    return np.asarray(shape[cut], np.int64)


@converts("Size")
def size_of(call: Call) -> Array:
    """A constant: shapes are known."""
    import numpy as np

    return np.asarray(call.type().num_elements, np.int64)


@converts("Reshape")
def reshape(call: Call) -> Value:
    """Reshape, with -1 and 0 replaced by sizes."""
    sizes = call.integer_list("shape", 1, since=5) or ()
    source = call.type().shape
    if len(sizes) > 16:
        raise ImportModelError(f"a shape of {len(sizes)} dims")
    shape = list(sizes)
    if not call.attribute("allowzero", 0):
        shape = [source[i] if size == 0 else size for i, size in enumerate(shape)]
    if shape.count(-1) > 1 or any(size < -1 for size in shape):
        raise ImportModelError(f"shape {list(sizes)} of a Reshape")
    if -1 in shape:
        rest = math.prod(size for size in shape if size != -1)
        if rest == 0 or call.type().num_elements % rest:
            raise ImportModelError(f"{call.type()} does not reshape to {list(sizes)}")
        shape[shape.index(-1)] = call.type().num_elements // rest
    x = call.operand(0)
    return x if tuple(shape) == source else call.add(Reshape(tuple(shape)), x)


@converts("Flatten")
def flatten(call: Call) -> Value:
    """A Reshape to two dims."""
    shape = call.type().shape
    axis = int(call.attribute("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    target = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    x = call.operand(0)
    return x if target == shape else call.add(Reshape(target), x)


@converts("Unsqueeze")
def unsqueeze(call: Call) -> Value:
    """A Reshape that adds dims of size 1."""
    axes = call.integer_list("axes", 1, since=13) or ()
    rank = call.type().rank + len(axes)
    new = normalize_axes("Unsqueeze", axes, rank)
    kept = [dim for dim in range(rank) if dim not in new]
    shape = [1] * rank
    for source, dim in enumerate(kept):
        shape[dim] = call.type().shape[source]
    return call.view(call.operand(0), shape, kept)


@converts("Squeeze")
def squeeze(call: Call) -> Value:
    """A Reshape that drops dims of size 1."""
    shape = call.type().shape
    axes = call.integer_list("axes", 1, since=13)
    units = [dim for dim, size in enumerate(shape) if size == 1]
    dropped = units if axes is None else normalize_axes("Squeeze", axes, len(shape))
    if any(shape[dim] != 1 for dim in dropped):
        raise ImportModelError(f"dims {list(dropped)} of {call.type()} are squeezed but not 1")
    left = [dim for dim in range(len(shape)) if dim not in dropped]
    kept = [left.index(dim) if dim in left else None for dim in range(len(shape))]
    return call.view(call.operand(0), [shape[dim] for dim in left], kept)


@converts("Transpose")
def transpose(call: Call) -> Value:
    """Transpose; without `perm` the dims in reverse."""
    rank = call.type().rank
    order = tuple(call.attribute("perm") or range(rank)[::-1])
    x = call.operand(0)
    return x if order == tuple(range(rank)) else call.add(Transpose(order), x)


@converts("Expand")
def expand(call: Call) -> Value:
    """Expand to what both shapes broadcast to."""
    target = call.integers(1, "the shape")
    shape = broadcast_shapes("Expand", call.type().shape, target)
    return expanded(call, call.operand(0), shape)


def expanded(call: Call, x: Value, shape: tuple[int, ...]) -> Value:
    """`x` broadcast to `shape`."""
    return x if x.type.shape == shape else call.add(Expand(shape), x)


@converts("Tile")
def tile(call: Call) -> Value:
    """Expand where the dim is 1; else the dim becomes `repeats × size`."""
    shape = call.type().shape
    repeats = call.integers(1, "the repeats")
    if len(repeats) != len(shape) or any(count < 0 for count in repeats):
        raise ImportModelError(f"repeats {list(repeats)} of {call.type()}")
    x = call.operand(0)
    if all(count == 1 for count in repeats):
        return x
    split = [part for size in shape for part in ((1, size) if size != 1 else (1,))]
    wide = [
        part
        for count, size in zip(repeats, shape, strict=True)
        for part in ((count, size) if size != 1 else (count,))
    ]
    target = tuple(count * size for count, size in zip(repeats, shape, strict=True))
    if tuple(split) != shape:
        x = call.add(Reshape(tuple(split)), x)
    x = expanded(call, x, tuple(wide))
    return x if x.type.shape == target else call.add(Reshape(target), x)


@converts("Concat")
def concat(call: Call) -> Value:
    """Concat; operands without elements (an empty cache) are left out."""
    axis = normalize_axis("Concat", int(call.attribute("axis", 1)), call.type().rank)
    filled = [i for i in range(len(call.entries)) if call.type(i).num_elements]
    values = [call.operand(i) for i in filled or (0,)]
    return values[0] if len(values) == 1 else call.add(Concat(axis), *values)


@converts("Split")
def split(call: Call) -> Sequence[Value]:
    """Split into the sizes given, or into equal parts."""
    axis = normalize_axis("Split", int(call.attribute("axis", 0)), call.type().rank)
    total = call.type().shape[axis]
    sizes = call.integer_list("split", 1, since=13)
    if sizes is None:
        count = int(call.attribute("num_outputs", 0)) or len(call.node.results)
        if not 0 < count <= max(total, 1):
            raise ImportModelError(f"{call.type()} is split into {count} parts")
        part = -(-total // count)
        sizes = tuple(min(part, total - part * i) for i in range(count))
    if any(size < 0 for size in sizes):
        raise ImportModelError(f"parts of sizes {list(sizes)}")
    x = call.operand(0)
    return [x] if len(sizes) == 1 else call.apply(Split(axis, tuple(sizes)), x)


@converts("Slice")
def slice_of(call: Call) -> Value:
    """Slice with one start, stop and step per dim."""
    shape = call.type().shape
    starts = call.integer_list("starts", 1, since=10) or ()
    stops = call.integer_list("ends", 2, since=10) or ()
    axes = call.integer_list("axes", 3, since=10) or tuple(range(len(starts)))
    steps = call.integers(4, "the steps") if call.has(4) else (1,) * len(starts)
    cuts = [slice(0, None, 1)] * len(shape)
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        dim = normalize_axis("Slice", axis, len(shape))
        cuts[dim] = _normal_slice(slice(start, stop, step), shape[dim])
    return sliced(call, call.operand(0), cuts)


def _normal_slice(cut: slice, size: int) -> slice:
    """The same elements; `slice(0, None, 1)` for all of them."""
    start, stop, step = cut.indices(size)
    if range(start, stop, step) == range(size):
        return slice(0, None, 1)
    return slice(start, None if stop < 0 else stop, step)


def sliced(call: Call, x: Value, cuts: Sequence[slice]) -> Value:
    """`x[cuts]`."""
    if all(cut == slice(0, None, 1) for cut in cuts):
        return x
    op = Slice(
        tuple(cut.start for cut in cuts),
        tuple(cut.stop for cut in cuts),
        tuple(cut.step for cut in cuts),
    )
    return call.add(op, x)


@converts("Gather")
def gather(call: Call) -> Value:
    """Gather with indices counted from the start; of computed values, what a view would pick is
    one."""
    axis = normalize_axis("Gather", int(call.attribute("axis", 0)), call.type().rank)
    indices = positive_indices(call, 1, call.type().shape[axis])
    known = call.builder.constants.get(indices)
    if known is not None and isinstance(call.entry(0), Value):
        view = strided_view(call.type().shape, axis, known)
        if view is not None:
            return reduce(lambda x, op: call.add(op, x), view, call.operand(0))
    return call.add(Gather(axis), call.operand(0), indices)


def positive_indices(call: Call, position: int, size: int) -> Value:
    """The operand, with known negative indices counted from the start, and checked."""
    import numpy as np

    array = call.known(position)
    if call.type(position).dtype.is_float:
        raise ImportModelError(f"indices of type {call.type(position)}; expected integers")
    if array is None or array.size == 0 or (array.min() >= 0 and array.max() < size):
        return call.operand(position)
    if array.min() < -size or array.max() >= size:
        raise ImportModelError(f"indices {array.min()} … {array.max()} into a dim of size {size}")
    wrapped = np.where(array < 0, array + size, array).astype(array.dtype)
    name = call.node.operands[position]
    return call.resolve(Constant(call.type(position), wrapped, name))


@converts("ConstantOfShape")
def constant_of_shape(call: Call) -> Any:
    """A constant that takes no memory, whatever its size."""
    import numpy as np

    shape = call.integers(0, "the shape")
    if any(size < 0 for size in shape) or len(shape) > 16 or math.prod(shape) > 1 << 44:
        raise ImportModelError(f"a tensor of shape {list(shape)[:16]} is asked for")
    value = call.attribute("value")
    number = value.load().reshape(-1)[0] if value is not None else np.float32(0)
    dtype = value.dtype if value is not None else DType.FLOAT32
    name = call.node.results[0]
    is_small = math.prod(shape) <= MOST_FOLDED_ELEMENTS
    array = np.broadcast_to(number, shape) if is_small else None
    return Constant(TensorType(shape, dtype), array, name)


@converts("Range")
def range_of(call: Call) -> Array:
    """A constant: its bounds must be known."""
    import numpy as np

    start, limit, delta = (call.array(i, "the length").reshape(()) for i in range(3))
    if delta == 0 or not (count := math.ceil((limit - start) / delta)) < 1 << 24:
        raise ImportModelError(f"a range from {start} to {limit} in steps of {delta}")
    return (start + delta * np.arange(max(count, 0))).astype(start.dtype)


# --- reductions ----------------------------------------------------------------------------------


def _reduced_axes(call: Call) -> tuple[tuple[int, ...], bool] | None:
    """The axes and whether they are kept; `None` where nothing is reduced."""
    since = 13 if call.node.op_type == "ReduceSum" else 18
    axes = call.integer_list("axes", 1, since=since)
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return None
    rank = call.type().rank
    normal = normalize_axes(call.node.op_type, axes, rank) if axes else tuple(range(rank))
    return normal, bool(call.attribute("keepdims", 1))


def _reduce_with(make: Callable[[tuple[int, ...], bool], Op]) -> Callable[[Call, Value], Value]:
    def apply(call: Call, x: Value) -> Value:
        found = _reduced_axes(call)
        return x if found is None or not found[0] else call.add(make(*found), x)

    return apply


_sum = _reduce_with(ReduceSum)
_max = _reduce_with(ReduceMax)
_mean = _reduce_with(ReduceMean)


@converts("ReduceSum")
def reduce_sum(call: Call) -> Value:
    """ReduceSum."""
    return _sum(call, call.operand(0))


@converts("ReduceMean")
def reduce_mean(call: Call) -> Value:
    """ReduceMean."""
    return _mean(call, call.operand(0))


@converts("ReduceMax")
def reduce_max(call: Call) -> Value:
    """ReduceMax."""
    return _max(call, call.operand(0))


@converts("ReduceMin")
def reduce_min(call: Call) -> Value:
    """Minus the maximum of minus x."""
    return call.add(Neg(), _max(call, call.add(Neg(), call.operand(0))))


@converts("ReduceSumSquare")
def reduce_sum_square(call: Call) -> Value:
    """The sum of x · x."""
    x = call.operand(0)
    return _sum(call, call.add(Mul(), x, x))


@converts("ReduceL2")
def reduce_l2(call: Call) -> Value:
    """The root of the sum of x · x."""
    return call.add(Sqrt(), reduce_sum_square(call))


@converts("ReduceL1")
def reduce_l1(call: Call) -> Value:
    """The sum of |x|."""
    return _sum(call, call.add(Abs(), call.operand(0)))


@converts("ReduceLogSum")
def reduce_log_sum(call: Call) -> Value:
    """The logarithm of the sum."""
    return call.add(Log(), _sum(call, call.operand(0)))


@converts("ReduceLogSumExp")
def reduce_log_sum_exp(call: Call) -> Value:
    """The logarithm of the sum of exponentials."""
    return call.add(Log(), _sum(call, call.add(Exp(), call.operand(0))))


@converts("ReduceProd")
def reduce_prod(call: Call) -> Value:
    """ReduceProd."""
    return _reduce_with(reductions.ReduceProd)(call, call.operand(0))


# --- normalisation -------------------------------------------------------------------------------


@converts("Softmax", "LogSoftmax")
def softmax(call: Call) -> Value:
    """Softmax along one dim; before opset 13 along all dims from `axis` on."""
    op = norm.Softmax if call.node.op_type == "Softmax" else norm.LogSoftmax
    x = call.operand(0)
    rank = x.type.rank
    axis = normalize_axis(
        "Softmax", int(call.attribute("axis", 1 if call.opset < 13 else -1)), rank
    )
    if call.opset >= 13 or math.prod(x.type.shape[axis:]) == x.type.shape[axis]:
        return call.add(op(axis), x)
    if axis == rank - 1:
        return call.add(op(axis), x)
    flat = (*x.type.shape[:axis], math.prod(x.type.shape[axis:]))
    result = call.add(op(axis), call.add(Reshape(flat), x))
    return call.add(Reshape(x.type.shape), result)


def _fitted(call: Call, position: int, shape: tuple[int, ...]) -> Value:
    """A scale or bias in exactly this shape."""
    value = call.operand(position)
    if value.type.shape == shape:
        return value
    if math.prod(value.type.shape) == math.prod(shape):
        return call.add(Reshape(shape), value)
    return expanded(call, value, shape)


@converts("LayerNormalization")
def layer_normalization(call: Call) -> Value:
    """LayerNormalization; its mean and deviation are no results here."""
    axis = normalize_axis("LayerNormalization", int(call.attribute("axis", -1)), call.type().rank)
    shape = call.type().shape[axis:]
    op = norm.LayerNormalization(axis, float(call.attribute("epsilon", 1e-5)))
    factors = [_fitted(call, position, shape) for position in (1, 2) if call.has(position)]
    return call.add(op, call.operand(0), *factors)


@converts(
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "com.microsoft:SimplifiedLayerNormalization",
)
def rms_normalization(call: Call) -> Value:
    """RMSNormalization."""
    axis = normalize_axis("RMSNormalization", int(call.attribute("axis", -1)), call.type().rank)
    op = norm.RMSNormalization(axis, float(call.attribute("epsilon", 1e-5)))
    return call.add(op, call.operand(0), _fitted(call, 1, call.type().shape[axis:]))


@converts("com.microsoft:SkipLayerNormalization", "com.microsoft:SkipSimplifiedLayerNormalization")
def skip_layer_normalization(call: Call) -> Sequence[Value | None]:
    """A sum and the norm of it; the sum is the fourth result."""
    is_rms = "Simplified" in call.node.op_type
    total = call.add(Add(), call.operand(0), call.operand(1))
    bias = 3 if is_rms else 4
    if call.has(bias):
        total = call.add(Add(), total, call.operand(bias))
    epsilon = float(call.attribute("epsilon", 1e-12))
    axis = total.type.rank - 1
    if is_rms:
        normal = call.add(norm.RMSNormalization(axis, epsilon), total, call.operand(2))
    else:
        factors = [call.operand(position) for position in (2, 3) if call.has(position)]
        normal = call.add(norm.LayerNormalization(axis, epsilon), total, *factors)
    return (normal, None, None, total)


@converts("Dropout")
def dropout(call: Call) -> Sequence[Any]:
    """Nothing: dropout is off. The mask, if anybody asks, is all true."""
    import numpy as np

    x = call.operand(0)
    mask = Constant(x.type, None)
    if x.type.num_elements <= MOST_FOLDED_ELEMENTS:
        ones = np.broadcast_to(np.True_, x.type.shape)
        mask = Constant(TensorType(x.type.shape, DType.BOOL), ones, "mask")
    return (x, mask)


__all__ = ["expanded", "positive_indices", "sliced"]
