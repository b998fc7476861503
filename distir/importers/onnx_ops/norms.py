"""Converters of normalizations, softmax and dropout, which is off in an export."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from distir.importers.onnx_call import MOST_FOLDED_ELEMENTS, Call, OnnxConstant, converts
from distir.importers.onnx_ops.shapes import expanded
from distir.ir.core import Value
from distir.ir.types import DType, TensorType
from distir.ops import norm
from distir.ops.activations import Clip
from distir.ops.arithmetic import Abs, Add, Div, Mul, Reciprocal, Sqrt, Sub
from distir.ops.base import normalize_axis
from distir.ops.comparisons import Equal
from distir.ops.elementwise import Cast
from distir.ops.positions import ArgMax
from distir.ops.reduce import ReduceMean, ReduceSum
from distir.ops.tensor import Reshape


@converts("Softmax", "LogSoftmax", "Hardmax")
def softmax(call: Call) -> Value:
    """Softmax, LogSoftmax or Hardmax along one dim; before opset 13, along all dims from `axis`
    on."""
    x = call.operand(0)
    rank = x.type.rank
    axis = normalize_axis(
        call.node.op_type, int(call.attribute("axis", 1 if call.opset < 13 else -1)), rank
    )
    if call.opset >= 13 or math.prod(x.type.shape[axis:]) == x.type.shape[axis]:
        return _maximum(call, x, axis)
    if axis == rank - 1:
        return _maximum(call, x, axis)
    flat = (*x.type.shape[:axis], math.prod(x.type.shape[axis:]))
    result = _maximum(call, call.add(Reshape(flat), x), axis)
    return call.add(Reshape(x.type.shape), result)


def _maximum(call: Call, x: Value, axis: int) -> Value:
    """Softmax or LogSoftmax; a Hardmax is 1 at the first of the largest elements, and else 0."""
    import numpy as np

    if call.node.op_type != "Hardmax":
        op = norm.Softmax(axis) if call.node.op_type == "Softmax" else norm.LogSoftmax(axis)
        return call.add(op, x)
    places = np.arange(x.type.shape[axis]).reshape(-1, *(1,) * (x.type.rank - axis - 1))
    numbered = call.builder.constant(places, DType.INT64, "places")
    return call.add(Cast(x.type.dtype), call.add(Equal(), numbered, call.add(ArgMax(axis), x)))


def _fitted(call: Call, position: int, shape: tuple[int, ...]) -> Value:
    """A scale or bias, reshaped or broadcast to this shape."""
    value = call.operand(position)
    if value.type.shape == shape:
        return value
    if math.prod(value.type.shape) == math.prod(shape):
        return call.add(Reshape(shape), value)
    return expanded(call, value, shape)


@converts("LayerNormalization")
def layer_normalization(call: Call) -> Sequence[Value]:
    """LayerNormalization; and, where the file names them, the mean and the inverse of the
    deviation."""
    call.without_effect("stash_type")
    x = call.operand(0)
    axis = normalize_axis("LayerNormalization", int(call.attribute("axis", -1)), x.type.rank)
    shape = x.type.shape[axis:]
    epsilon = float(call.attribute("epsilon", 1e-5))
    factors = [_fitted(call, position, shape) for position in (1, 2) if call.has(position)]
    normal = call.add(norm.LayerNormalization(axis, epsilon), x, *factors)
    if not any(call.node.results[1:]):
        return (normal,)
    mean_of = ReduceMean(tuple(range(axis, x.type.rank)))
    mean = call.add(mean_of, x)
    centered = call.add(Sub(), x, mean)
    variance = call.add(mean_of, call.add(Mul(), centered, centered))
    shifted = call.add(Add(), variance, call.scalar(epsilon, x.type.dtype))
    return (normal, mean, call.add(Reciprocal(), call.add(Sqrt(), shifted)))


@converts(
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "com.microsoft:SimplifiedLayerNormalization",
)
def rms_normalization(call: Call) -> Value:
    """RMSNormalization."""
    call.without_effect("stash_type")
    axis = normalize_axis("RMSNormalization", int(call.attribute("axis", -1)), call.type().rank)
    op = norm.RMSNormalization(axis, float(call.attribute("epsilon", 1e-5)))
    return call.add(op, call.operand(0), _fitted(call, 1, call.type().shape[axis:]))


@converts("com.microsoft:SkipLayerNormalization", "com.microsoft:SkipSimplifiedLayerNormalization")
def skip_layer_normalization(call: Call) -> Sequence[Value | None]:
    """A sum and its norm; the sum is the fourth result."""
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


@converts("LpNormalization")
def lp_normalization(call: Call) -> Value:
    """`x` divided by its L1 or L2 norm along one dim; zero where that is zero."""
    axis = normalize_axis("LpNormalization", int(call.attribute("axis", -1)), call.type().rank)
    x = call.operand(0)
    if int(call.attribute("p", 2)) == 1:
        return call.add(Div(), x, _above_zero(call, call.add(Abs(), x), axis))
    squares = _above_zero(call, call.add(Mul(), x, x), axis)
    return call.add(Div(), x, call.add(Sqrt(), squares))


def _above_zero(call: Call, x: Value, axis: int) -> Value:
    """The sum of numbers that are not negative, or a tiny one in its place."""
    return call.add(Clip(_TINY), call.add(ReduceSum((axis,)), x))


_TINY = 2.0**-126
"""The smallest number that single precision, and bf16, hold in full."""


@converts("Dropout")
def dropout(call: Call) -> Sequence[Any]:
    """The operand itself, since dropout is off; the mask, if an op reads it, is true everywhere."""
    import numpy as np

    call.without_effect("ratio", "seed", "is_test")
    x = call.operand(0)
    mask = OnnxConstant(x.type, None)
    if x.type.num_elements <= MOST_FOLDED_ELEMENTS:
        ones = np.broadcast_to(np.True_, x.type.shape)
        mask = OnnxConstant(TensorType(x.type.shape, DType.BOOL), ones, "mask")
    return (x, mask)
