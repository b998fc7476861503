"""Converters of ops on quantized numbers, which are simulated as the floats that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from distir.errors import UnsupportedOpError
from distir.importers.onnx_by_name import find_converter
from distir.importers.onnx_call import Call, OnnxConstant, OnnxWeight, converts
from distir.importers.onnx_ops.vision import convolution
from distir.ir.core import Value
from distir.ir.types import DType, TensorType
from distir.ops.linalg import MatMul


@converts("QuantizeLinear", "DequantizeLinear")
def as_float(call: Call) -> Value | OnnxWeight:
    """The operand, which is not rounded."""
    _tell(call)
    entry = call.entry(0)
    return entry if isinstance(entry, OnnxWeight) else call.operand(0)


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
    _tell(call)
    return call.add(MatMul(), call.operand(0), call.operand(1))


@converts("ConvInteger")
def conv_of_integers(call: Call) -> Value:
    """A convolution of floats."""
    _tell(call)
    return convolution(replace(call, entries=call.entries[:2]))


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
    """The op on floats."""
    op_type, positions = _OF_FLOATS[call.node.type_key]
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
    entries = [call.entries[each] for each in positions if call.has(each)]
    converter = find_converter(op_type)
    if converter is None:
        raise UnsupportedOpError(f"{op_type} is not supported")
    return converter(replace(call, node=replace(call.node, op_type=op_type), entries=entries))


def _tell(call: Call) -> None:
    call.note("what the file quantizes is simulated as floats")
