"""Converters of elementwise ops that ONNX defines in another way, or that other ops can express.
Further elementwise ops need no converter (`onnx_by_name.py`)."""

from __future__ import annotations

from distir.importers.onnx_call import Call, converts
from distir.importers.onnx_file import read_dtype
from distir.ir.core import Value
from distir.ops import tensor
from distir.ops.activations import Clip, Elu, Gelu, HardSigmoid, Relu, Sigmoid, Silu
from distir.ops.arithmetic import Abs, Add, Cos, Div, Mul, Neg, Sin, Sub, Sum
from distir.ops.comparisons import Greater, Max, Min, Where
from distir.ops.elementwise import Cast
from distir.ops.tensor import Scale


@converts("Sum")
def sum_of(call: Call) -> Value:
    """Sum; a single operand is passed on."""
    values = call.operands()
    return values[0] if len(values) == 1 else call.add(Sum(), *values)


@converts("Mean")
def mean_of(call: Call) -> Value:
    """The sum divided by the number of operands."""
    values = call.operands()
    return call.add(tensor.Scale(1 / len(values)), call.add(Sum(), *values))


@converts("Cast", "CastLike")
def cast(call: Call) -> Value:
    """Cast; nothing if the type is the same."""
    call.without_effect("saturate", "round_mode")
    to = call.attribute("to")
    if call.node.op_type == "CastLike":
        dtype = call.type(1).dtype
    else:
        dtype = read_dtype(to if isinstance(to, str) else int(to), "the result")
    x = call.operand(0)
    return x if x.type.dtype is dtype else call.add(Cast(dtype), x)


@converts("Gelu", "com.microsoft:Gelu", "com.microsoft:FastGelu", "com.microsoft:BiasGelu")
def gelu(call: Call) -> Value:
    """Gelu; some forms add a bias before."""
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


# --- piecewise and periodic functions -------------------------------------------------------------


@converts("HardSwish")
def hard_swish(call: Call) -> Value:
    """`x · HardSigmoid(x)`."""
    x = call.operand(0)
    return call.add(Mul(), x, call.add(HardSigmoid(1 / 6, 0.5), x))


@converts("Celu")
def celu(call: Call) -> Value:
    """Elu of `x / alpha`, times alpha."""
    alpha = float(call.attribute("alpha", 1.0))
    inner = call.add(Scale(1 / alpha), call.operand(0))
    return call.add(Scale(alpha), call.add(Elu(1.0), inner))


@converts("Selu")
def selu(call: Call) -> Value:
    """Elu times gamma."""
    alpha = float(call.attribute("alpha", 1.67326319217681884765625))
    gamma = float(call.attribute("gamma", 1.05070102214813232421875))
    return call.add(Scale(gamma), call.add(Elu(alpha), call.operand(0)))


@converts("ThresholdedRelu")
def thresholded_relu(call: Call) -> Value:
    """`x` where it is larger than alpha, else 0."""
    x = call.operand(0)
    alpha = call.scalar(float(call.attribute("alpha", 1.0)), x.type.dtype)
    return call.add(Where(), call.add(Greater(), x, alpha), x, call.scalar(0.0, x.type.dtype))


@converts("Softsign")
def softsign(call: Call) -> Value:
    """`x / (1 + |x|)`."""
    x = call.operand(0)
    one = call.scalar(1.0, x.type.dtype)
    return call.add(Div(), x, call.add(Add(), one, call.add(Abs(), x)))


@converts("Tan")
def tan(call: Call) -> Value:
    """`sin / cos`."""
    x = call.operand(0)
    return call.add(Div(), call.add(Sin(), x), call.add(Cos(), x))


@converts("PRelu")
def prelu(call: Call) -> Value:
    """`relu(x) − slope · relu(−x)`."""
    x, slope = call.operand(0), call.operand(1)
    below = call.add(Relu(), call.add(Neg(), x))
    return call.add(Sub(), call.add(Relu(), x), call.add(Mul(), slope, below))


@converts("Clip")
def clip(call: Call) -> Value:
    """Clip if the bounds are constants; otherwise Max and Min."""
    x = call.operand(0)
    if call.opset < 11:
        low, high = call.attribute("min"), call.attribute("max")
        return call.add(Clip(low, high), x)
    bounds: list[float | None] = [None, None]
    for position, op in ((1, Max()), (2, Min())):
        if not call.has(position):
            continue
        array = call.known(position)
        if array is None:
            x = call.add(op, x, call.operand(position))
        else:
            bounds[position - 1] = array.reshape(()).item()
    return x if bounds == [None, None] else call.add(Clip(*bounds), x)


@converts("Max", "Min")
def extreme(call: Call) -> Value:
    """A chain of Max or Min ops, which have two operands each."""
    op = Max() if call.node.op_type == "Max" else Min()
    values = call.operands()
    result = values[0]
    for value in values[1:]:
        result = call.add(op, result, value)
    return result
