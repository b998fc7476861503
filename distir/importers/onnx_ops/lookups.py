"""Converters of ops that look up elements, write elements, or sort them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_call import Call, OnnxConstant, converts
from distir.importers.onnx_ops.shapes import sliced
from distir.importers.strided import strided_view
from distir.ir.core import Array, Value
from distir.ir.types import DType
from distir.ops import lookup, positions
from distir.ops.arithmetic import Neg
from distir.ops.base import normalize_axis
from distir.ops.comparisons import Equal, Where
from distir.ops.elementwise import Cast
from distir.ops.lookup import Gather
from distir.ops.tensor import Reshape


@converts("Gather")
def gather(call: Call) -> Value:
    """Gather with indices counted from the start; a view if the indices are evenly spaced and the
    data is computed."""
    axis = normalize_axis("Gather", int(call.attribute("axis", 0)), call.type().rank)
    return _looked_up(call, axis, positive_indices(call, 1, call.type().shape[axis]))


def _looked_up(call: Call, axis: int, indices: Value) -> Value:
    """The rows of the first operand at indices along a dim."""
    known = call.builder.constants.get(indices)
    if known is not None and isinstance(call.entry(0), Value):
        view = strided_view(call.type().shape, axis, known)
        if view is not None:
            return reduce(lambda x, op: call.add(op, x), view, call.operand(0))
    return call.add(Gather(axis), call.operand(0), indices)


def positive_indices(call: Call, position: int, size: int) -> Value:
    """The operand with negative indices counted from the start, if they are known. Raises
    `ImportModelError` if known indices lie outside a dim of this size."""
    import numpy as np

    array = call.known(position)
    if call.type(position).dtype.is_float:
        raise ImportModelError(f"indices of type {call.type(position)}; expected integers")
    if array is None or array.size == 0 or (array.min() >= 0 and array.max() < size):
        return call.operand(position)
    if array.min() < -size or array.max() >= size:
        raise ImportModelError(
            f"indices {array.min()} … {array.max()} into a dim of size {size}; expected at least "
            f"{-size} and at most {size - 1}"
        )
    wrapped = np.where(array < 0, array + size, array).astype(array.dtype)
    name = call.node.operands[position]
    return call.resolve(OnnxConstant(call.type(position), wrapped, name))


@converts("Trilu")
def trilu(call: Call) -> Value:
    """Trilu whose diagonal is a constant."""
    k = int(call.array(1, "the diagonal").reshape(())) if call.has(1) else 0
    return call.add(positions.Trilu(bool(call.attribute("upper", 1)), k), call.operand(0))


@converts("CumSum", "CumProd")
def running(call: Call) -> Value:
    """CumSum or CumProd along a dim that is a constant."""
    cls = positions.CumSum if call.node.op_type == "CumSum" else positions.CumProd
    axis = int(call.array(1, "the axis").reshape(()))
    axis = normalize_axis(call.node.op_type, axis, call.type().rank)
    op = cls(axis, bool(call.attribute("exclusive", 0)), bool(call.attribute("reverse", 0)))
    return call.add(op, call.operand(0))


@converts("ArgMax", "ArgMin")
def arg_max(call: Call) -> Value:
    """ArgMax; ArgMin is the ArgMax of `−x`."""
    axis = normalize_axis("ArgMax", int(call.attribute("axis", 0)), call.type().rank)
    op = positions.ArgMax(
        axis, bool(call.attribute("keepdims", 1)), bool(call.attribute("select_last_index", 0))
    )
    x = call.operand(0)
    return call.add(op, call.add(Neg(), x) if call.node.op_type == "ArgMin" else x)


@converts("TopK")
def top_k(call: Call) -> Sequence[Value]:
    """TopK; its result is sorted even if the file does not want it sorted."""
    call.without_effect("sorted")
    sizes = call.integer_list("k", 1, since=10)
    k = int(call.attribute("k")) if call.opset < 10 else (sizes or (0,))[0]
    axis = normalize_axis("TopK", int(call.attribute("axis", -1)), call.type().rank)
    return call.apply(positions.TopK(k, axis, bool(call.attribute("largest", 1))), call.operand(0))


@converts("OneHot")
def one_hot(call: Call) -> Value:
    """`on` where the position equals the index, else `off`. Indices must count from the start."""
    import numpy as np

    rank = call.type().rank + 1
    axis = normalize_axis("OneHot", int(call.attribute("axis", -1)), rank)
    depth = int(call.array(1, "the depth").reshape(-1)[0])
    off_on = call.array(2, "the values").reshape(-1)
    if not 0 < depth < 1 << 24:
        raise ImportModelError(f"a depth of {depth}; expected at least 1 and less than {1 << 24}")
    indices = call.operand(0)
    if indices.type.dtype.is_float:
        indices = call.add(Cast(DType.INT64), indices)
    shape = (*indices.type.shape[:axis], 1, *indices.type.shape[axis:])
    indices = call.add(Reshape(shape), indices)
    numbers = np.arange(depth).reshape((-1,) + (1,) * (rank - axis - 1))
    dtype = call.type(2).dtype
    places = call.builder.constant(numbers, indices.type.dtype, "classes")
    is_hot = call.add(Equal(), indices, places)
    on, off = (call.scalar(float(off_on[i]), dtype) for i in (1, 0))
    if off_on[0] == 0 and off_on[1] == 1:
        return call.add(Cast(dtype), is_hot)
    return call.add(Where(), is_hot, on, off)


@converts("GatherElements")
def gather_elements(call: Call) -> Value:
    """GatherElements."""
    axis = normalize_axis("GatherElements", int(call.attribute("axis", 0)), call.type().rank)
    indices = positive_indices(call, 1, call.type().shape[axis])
    return call.add(lookup.GatherElements(axis), call.operand(0), indices)


@converts("GatherND")
def gather_nd(call: Call) -> Value:
    """GatherND; a Reshape if it takes every element in order, as masks of recent exports do; a
    Gather if its tuples have one index."""
    import numpy as np

    data, index = call.type(0), call.known(1)
    if index is not None and index.size and not call.attribute("batch_dims", 0):
        (result,) = lookup.GatherND().infer(data, call.type(1))
        sizes = data.shape[: index.shape[-1]]
        wrapped = np.where(index < 0, index + np.asarray(sizes), index)
        if (wrapped < 0).any() or (wrapped >= np.asarray(sizes)).any():
            raise ImportModelError(f"indices outside {data}; expected them inside")
        order = np.ravel_multi_index(tuple(np.moveaxis(wrapped, -1, 0)), sizes).reshape(-1)
        if len(order) == math.prod(sizes) and (order == np.arange(len(order))).all():
            return call.add(Reshape(result.shape), call.operand(0))
    if _looks_up_one_row(call):
        # The batch is 1, so that this is a lookup in the second dim.
        places = call.operand(1)
        cut = slice(1, 2, 1)
        places = sliced(call, places, [slice(0, None, 1)] * (places.type.rank - 1) + [cut])
        places = call.add(Reshape(places.type.shape[1:-1]), places)
        return call.add(Gather(1), call.operand(0), places)
    batch_dims = int(call.attribute("batch_dims", 0))
    if call.type(1).shape[-1] == 1 and not batch_dims:
        # Rows of a table, such as the weights of the expert that each token chose.
        if index is not None:
            type = call.type(1).with_shape(index.shape[:-1])
            known = OnnxConstant(type, np.where(index < 0, index + data.shape[0], index)[..., 0])
            return _looked_up(call, 0, call.resolve(known))
        places = call.operand(1)
        places = call.add(Reshape(places.type.shape[:-1]), places)
        return call.add(lookup.Gather(0), call.operand(0), places)
    return call.add(lookup.GatherND(batch_dims), call.operand(0), call.operand(1))


def _looks_up_one_row(call: Call) -> bool:
    """Whether constant tuples (sample, place) look up places of a single sample."""
    data, index = call.type(0).shape, call.type(1).shape
    return (
        isinstance(call.entry(1), OnnxConstant)
        and not call.attribute("batch_dims", 0)
        and len(index) > 1
        and (data[0], index[0], index[-1]) == (1, 1, 2)
    )


@converts("ScatterElements", "Scatter", "ScatterND")
def scatter(call: Call) -> Value:
    """ScatterElements or ScatterND that replaces elements or adds to them."""
    reduction = str(call.attribute("reduction", "none"))
    if reduction not in ("none", "add"):
        raise UnsupportedOpError(
            f"{call.node.label}: reduction {reduction!r} is not supported; none and add are"
        )
    adds = reduction == "add"
    if call.node.op_type == "ScatterND":
        return call.add(lookup.ScatterND(adds), *call.operands())
    axis = normalize_axis("ScatterElements", int(call.attribute("axis", 0)), call.type().rank)
    return call.add(lookup.ScatterElements(axis, adds), *call.operands())


@converts("Pad")
def pad(call: Call) -> Value:
    """Pad with a constant; other modes are a Gather of the elements that are repeated."""
    import numpy as np

    x = call.operand(0)
    rank = x.type.rank
    mode = str(call.attribute("mode", "constant"))
    pads = call.integer_list("pads", 1, since=11) or call.attribute("paddings") or (0,) * 2 * rank
    axes = call.integers(3, "the axes") if call.has(3) else tuple(range(rank))
    if len(pads) != 2 * len(axes) or max(map(abs, pads), default=0) > 1 << 32:
        raise ImportModelError(f"pads {list(pads)} of {x.type}")
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        dim = normalize_axis("Pad", axis, rank)
        before[dim], after[dim] = pads[position], pads[len(axes) + position]
    cuts = [
        slice(max(0, -b), None if e >= 0 else n + e, 1) if b < 0 or e < 0 else slice(0, None, 1)
        for b, e, n in zip(before, after, x.type.shape, strict=True)
    ]
    x = sliced(call, x, cuts)
    before, after = [max(0, n) for n in before], [max(0, n) for n in after]
    if not any(before) and not any(after):
        return x
    if mode == "constant":
        value = call.attribute("value", 0.0)
        if call.opset >= 11:
            value = call.array(2, "the padding").reshape(-1)[0].item() if call.has(2) else 0.0
        return call.add(positions.Pad(tuple(before), tuple(after), float(value)), x)
    for dim, size in enumerate(x.type.shape):
        if before[dim] or after[dim]:
            if max(before[dim], after[dim]) > 1 << 20:
                raise ImportModelError(f"pads {list(pads)} of {x.type}")
            places = np.pad(np.arange(size), (before[dim], after[dim]), mode=_pad_mode(mode))
            x = call.add(Gather(dim), x, call.builder.constant(places, DType.INT64, "places"))
    return x


def _pad_mode(mode: str) -> Any:
    if mode not in ("reflect", "edge", "wrap"):
        raise ImportModelError(
            f"unknown padding mode {mode!r}; expected constant, reflect, edge or wrap"
        )
    return mode


@converts("NonZero")
def non_zero(call: Call) -> Array:
    """A constant; its operand must be one, because the shape of the result depends on values."""
    import numpy as np

    return np.stack(np.nonzero(call.array(0, "the shape"))).astype(np.int64)
