"""Converters of ops on quantized numbers, which are simulated as the floats that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from distir.errors import UnsupportedOpError
from distir.importers.onnx_by_name import converted_as
from distir.importers.onnx_call import Call, OnnxConstant, OnnxEntry, OnnxWeight, converts
from distir.ir.core import Value
from distir.ir.types import DType, TensorType
from distir.ops.arithmetic import Add, Mul, Sub
from distir.ops.base import normalize_axis
from distir.ops.elementwise import Cast
from distir.ops.tensor import Reshape


@converts("QuantizeLinear", "com.microsoft:QuantizeLinear")
def quantized(call: Call) -> Value | OnnxWeight:
    """The operand, which is not rounded."""
    _tell(call)
    call.without_effect("axis", "block_size", "output_dtype", "saturate", "precision")
    entry = call.entry(0)
    return entry if isinstance(entry, OnnxWeight) else call.operand(0)


@converts("DequantizeLinear", "com.microsoft:DequantizeLinear")
def dequantized(call: Call) -> Value | OnnxWeight:
    """The operand; of integers that the file or the user gives, the floats that they stand for."""
    found = quantized(call)
    if isinstance(found, OnnxWeight) or found.type.dtype.is_float:
        return found
    scale = call.untrained(1)
    number = call.add(Cast(scale.type.dtype), found)
    if call.has(2):
        zero = call.add(Cast(scale.type.dtype), call.untrained(2))
        number = call.add(Sub(), number, _along(call, zero, found))
    return call.add(Mul(), number, _along(call, scale, found))


def _along(call: Call, factor: Value, x: Value) -> Value:
    """A number, or one per position of the dim of `x` that the op names, in a shape that broadcasts
    to that of `x`. Raises `UnsupportedOpError` if there is one per block of positions."""
    if factor.type.num_elements == 1:
        return call.add(Reshape(()), factor) if factor.type.rank else factor
    axis = normalize_axis("DequantizeLinear", int(call.attribute("axis", 1)), x.type.rank)
    if factor.type.shape != x.type.shape[axis : axis + 1]:
        raise UnsupportedOpError(
            f"{call.node.label} has scales {factor.type} for {x.type}, which is no weight; "
            "expected one, or one per position of a dim: export the model before quantization"
        )
    return call.add(Reshape((*factor.type.shape, *(1,) * (x.type.rank - axis - 1))), factor)


@converts("DynamicQuantizeLinear")
def dynamic(call: Call) -> Sequence[Value | OnnxConstant]:
    """The operand, a scale of 1 and a zero point of 0."""
    import numpy as np

    _tell(call)
    scale = OnnxConstant(TensorType((), DType.FLOAT32), np.ones((), np.float32), "scale")
    zero = OnnxConstant(TensorType((), DType.UINT8), np.zeros((), np.uint8), "zero point")
    return (call.operand(0), scale, zero)


@converts("MatMulInteger")
def matmul_of_integers(call: Call) -> Value:
    """A product of floats."""
    return _on_floats(call, "MatMul", (0, 1))


_BIASES = {"com.microsoft:DynamicQuantizeMatMul": 4, "com.microsoft:MatMulIntegerToFloat": 6}
"""The position of the bias among scales and zero points."""


@converts(*_BIASES)
def matmul_with_bias(call: Call) -> Value:
    """A product of floats, plus a bias if there is one."""
    product, bias = matmul_of_integers(call), _BIASES[call.node.type_key]
    return call.add(Add(), product, call.operand(bias)) if call.has(bias) else product


@converts("ConvInteger")
def conv_of_integers(call: Call) -> Value:
    """A convolution of floats."""
    return _on_floats(call, "Conv", (0, 1))


_OF_FLOATS = {
    "QLinearMatMul": ("MatMul", (0, 3)),
    "QLinearConv": ("Conv", (0, 3, 8)),
    "com.microsoft:QGemm": ("Gemm", (0, 3, 6)),
    "com.microsoft:QLinearAdd": ("Add", (0, 3)),
    "com.microsoft:QLinearMul": ("Mul", (0, 3)),
    "com.microsoft:QLinearAveragePool": ("AveragePool", (0,)),
    "com.microsoft:QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
    "com.microsoft:QLinearLeakyRelu": ("LeakyRelu", (0,)),
    "com.microsoft:QLinearSigmoid": ("Sigmoid", (0,)),
    "com.microsoft:QLinearSoftmax": ("Softmax", (0,)),
}
"""The op on floats that an op on quantized numbers stands for, and the positions of its operands
among scales and zero points."""


@converts(*_OF_FLOATS)
def of_floats(call: Call) -> Value:
    """The op on floats; a Softmax as in the opset that its own attribute says."""
    op_type, positions = _OF_FLOATS[call.node.type_key]
    call = replace(call, opset=int(call.attribute("opset", call.opset)))
    if call.attribute("channels_last", 0):
        raise UnsupportedOpError(f"{call.node.label}: channels_last is not supported; set it to 0")
    return _on_floats(call, op_type, positions)


@converts("com.microsoft:QLinearConcat")
def concat_of_floats(call: Call) -> Value:
    """Concat; each operand comes with a scale and a zero point, behind those of the result."""
    return _on_floats(call, "Concat", range(2, len(call.entries), 3))


def _on_floats(call: Call, op_type: str, positions: Iterable[int]) -> Value:
    """What an op on floats makes of some of the operands."""
    _tell(call)
    entries = [_as_floats(call, each) for each in positions if call.has(each)]
    return converted_as(call, op_type, entries)


def _as_floats(call: Call, position: int) -> OnnxEntry:
    """An operand; integers that the file or the user gives are cast."""
    entry = call.entry(position)
    if entry.type.dtype.is_float:
        return entry
    return call.add(Cast(DType.FLOAT32), call.operand(position))


def _tell(call: Call) -> None:
    call.note("what the file quantizes is simulated as floats")
