"""Converters of Fourier transforms."""

from __future__ import annotations

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_call import Call, converts
from distir.importers.onnx_ops.shapes import sliced
from distir.ir.core import Value
from distir.ops.base import normalize_axis
from distir.ops.fourier import Fourier
from distir.ops.positions import Pad
from distir.ops.tensor import Scale


@converts("DFT")
def dft(call: Call) -> Value:
    """Fourier of signals that are padded or cut to the length that is asked for; the inverse is
    divided by it."""
    x = call.operand(0)
    inverse, onesided = (bool(call.attribute(name, 0)) for name in ("inverse", "onesided"))
    if inverse and onesided:
        raise UnsupportedOpError(
            f"{call.node.label}: the inverse of half a spectrum is not supported; set onesided to 0"
        )
    if x.type.rank < 2 or x.type.shape[-1] not in (1, 2):
        raise ImportModelError(f"{x.type}; expected real, or real and imaginary, parts at the end")
    axis = _axis(call, x.type.rank)
    if x.type.shape[-1] == 1:
        x = _lengthened(call, x, x.type.rank - 1, 2)
    length = x.type.shape[axis]
    if call.has(1):
        length = int(call.array(1, "the length").reshape(()))
        x = _lengthened(call, x, axis, length)
    result = call.add(Fourier(axis, inverse), x)
    if inverse:
        return call.add(Scale(1 / length), result)
    return _lengthened(call, result, axis, length // 2 + 1) if onesided else result


def _axis(call: Call, rank: int) -> int:
    """The dim of signals, which is not the last."""
    axis = int(call.attribute("axis", 1)) if call.opset < 20 else -2
    if call.opset >= 20 and call.has(2):
        axis = int(call.array(2, "the axis").reshape(()))
    return normalize_axis("DFT", axis, rank)


def _lengthened(call: Call, x: Value, dim: int, length: int) -> Value:
    """`x` with zeros behind a dim, or without what is behind a length."""
    shape = x.type.shape
    if length <= shape[dim]:
        stops = [
            length if each == dim and length < size else None for each, size in enumerate(shape)
        ]
        return sliced(call, x, [slice(0, stop, 1) for stop in stops])
    if length > 1 << 24:
        raise ImportModelError(f"a length of {length:,}; expected at most {1 << 24:,}")
    behind = tuple(length - size if each == dim else 0 for each, size in enumerate(shape))
    return call.add(Pad((0,) * len(shape), behind), x)
