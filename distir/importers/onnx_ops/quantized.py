"""Converters of ops on quantized numbers, which are simulated as the floats that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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


def _tell(call: Call) -> None:
    call.note("what the file quantizes is simulated as floats")
