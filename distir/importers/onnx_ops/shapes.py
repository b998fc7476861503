"""Converters of ops on shapes and on the order of elements, and of constants that follow from
shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from distir.errors import ImportModelError
from distir.importers.onnx_call import MOST_FOLDED_ELEMENTS, Call, OnnxConstant, converts
from distir.importers.onnx_file import as_dtype, check_shape, read_dtype
from distir.ir.core import Array, Value
from distir.ir.types import DType, TensorType
from distir.limits import MOST_DIMS
from distir.ops.base import broadcast_shapes, normalize_axes, normalize_axis
from distir.ops.tensor import Concat, Expand, Reshape, Slice, Split, Transpose


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
    if len(sizes) > MOST_DIMS:
        raise ImportModelError(f"a shape of {len(sizes)} dims; expected at most {MOST_DIMS}")
    shape = list(sizes)
    if not call.attribute("allowzero", 0):
        shape = [source[i] if size == 0 else size for i, size in enumerate(shape)]
    if shape.count(-1) > 1 or any(size < -1 for size in shape):
        raise ImportModelError(
            f"a Reshape to {list(sizes)}; expected sizes of at least 0, and at most one -1"
        )
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
    """A Reshape that drops dims of size 1. Others, which PyTorch's squeeze leaves, stay if the file
    states a result that has them."""
    shape = call.type().shape
    axes = call.integer_list("axes", 1, since=13)
    units = [dim for dim, size in enumerate(shape) if size == 1]
    dropped = units if axes is None else normalize_axes("Squeeze", axes, len(shape))
    left = [dim for dim in range(len(shape)) if dim not in dropped or dim not in units]
    staying = [dim for dim in dropped if dim in left]
    if staying and call.node.ranks.get(call.node.results[0]) != len(left):
        raise ImportModelError(f"dims {staying} of {call.type()} are squeezed but not 1")
    kept = [left.index(dim) if dim in left else None for dim in range(len(shape))]
    return call.view(call.operand(0), [shape[dim] for dim in left], kept)


@converts("Transpose")
def transpose(call: Call) -> Value:
    """Transpose; without `perm`, the dims are reversed. Some exporters count dims from the end."""
    rank = call.type().rank
    dims = call.attribute("perm") or range(rank)[::-1]
    order = tuple(normalize_axis("Transpose", int(dim), rank) for dim in dims)
    x = call.operand(0)
    return x if order == tuple(range(rank)) else call.add(Transpose(order), x)


@converts("Expand")
def expand(call: Call) -> Value:
    """Expand to the shape that both shapes broadcast to."""
    target = call.integers(1, "the shape")
    shape = broadcast_shapes("Expand", call.type().shape, target)
    return expanded(call, call.operand(0), shape)


def expanded(call: Call, x: Value, shape: tuple[int, ...]) -> Value:
    """`x` broadcast to `shape`; no op if it has that shape."""
    return x if x.type.shape == shape else call.add(Expand(shape), x)


@converts("Tile")
def tile(call: Call) -> Value:
    """Expand of dims of size 1; other dims are reshaped so that they have one in front."""
    shape = call.type().shape
    repeats = call.integers(1, "the repeats")
    if len(repeats) != len(shape) or any(count < 0 for count in repeats):
        raise ImportModelError(
            f"repeats {list(repeats)} of {call.type()}; expected one number per dim, at least 0"
        )
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
    """Split into parts of the sizes given, or into equal parts."""
    axis = normalize_axis("Split", int(call.attribute("axis", 0)), call.type().rank)
    total = call.type().shape[axis]
    sizes = call.integer_list("split", 1, since=13)
    if sizes is None:
        count = int(call.attribute("num_outputs", 0)) or len(call.node.results)
        if not 0 < count <= max(total, 1):
            raise ImportModelError(
                f"{call.type()} is split into {count} parts; expected at most {total}"
            )
        part = -(-total // count)
        sizes = tuple(min(part, total - part * i) for i in range(count))
    if any(size < 0 for size in sizes):
        raise ImportModelError(f"parts of sizes {list(sizes)}; expected sizes of at least 0")
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
    """A slice of the same elements with a start of at least 0; `slice(0, None, 1)` for all."""
    start, stop, step = cut.indices(size)
    if range(start, stop, step) == range(size):
        return slice(0, None, 1)
    return slice(start, None if stop < 0 else stop, step)


def sliced(call: Call, x: Value, cuts: Sequence[slice]) -> Value:
    """`x[cuts]`, with one slice per dim; no op if all elements are taken."""
    if all(cut == slice(0, None, 1) for cut in cuts):
        return x
    op = Slice(
        tuple(cut.start for cut in cuts),
        tuple(cut.stop for cut in cuts),
        tuple(cut.step for cut in cuts),
    )
    return call.add(op, x)


@converts("ConstantOfShape")
def constant_of_shape(call: Call) -> Any:
    """A constant, broadcast from one element so that it takes no memory."""
    import numpy as np

    shape = call.integers(0, "the shape")
    check_shape("the result", shape)
    value = call.attribute("value")
    number = value.load().reshape(-1)[0] if value is not None else np.float32(0)
    dtype = value.dtype if value is not None else DType.FLOAT32
    name = call.node.results[0]
    is_small = math.prod(shape) <= MOST_FOLDED_ELEMENTS
    array = np.broadcast_to(number, shape) if is_small else None
    return OnnxConstant(TensorType(shape, dtype), array, name)


@converts("Range")
def range_of(call: Call) -> Array:
    """A constant: its bounds must be known."""
    call.without_effect("stash_type")
    import numpy as np

    start, limit, delta = (call.array(i, "the length").reshape(()) for i in range(3))
    if delta == 0 or not (count := math.ceil((limit - start) / delta)) < 1 << 24:
        raise ImportModelError(
            f"a range from {start} to {limit} in steps of {delta}; expected less than {1 << 24} "
            "numbers, and steps other than 0"
        )
    return (start + delta * np.arange(max(count, 0))).astype(start.dtype)


@converts("EyeLike")
def eye_like(call: Call) -> Any:
    """A constant with ones on a diagonal."""
    import numpy as np

    shape = call.type().shape
    if len(shape) != 2 or math.prod(shape) > 1 << 22:
        raise ImportModelError(
            f"EyeLike of {call.type()}; expected 2 dims and at most {1 << 22} elements"
        )
    code = call.attribute("dtype")
    dtype = call.type().dtype if code is None else read_dtype(int(code), "the result")
    array = as_dtype(np.eye(*shape, k=int(call.attribute("k", 0))), dtype)
    return OnnxConstant(TensorType(shape, dtype), array, call.node.results[0])


@converts("DepthToSpace")
def depth_to_space(call: Call) -> Value:
    """Reshape, Transpose, Reshape."""
    x = call.operand(0)
    n, channels, height, width = x.type.shape
    block = int(call.attribute("blocksize", 0))
    if block < 1 or channels % block**2:
        raise ImportModelError(f"blocks of {block} from {x.type}")
    depth = channels // block**2
    is_crd = call.attribute("mode", "DCR") == "CRD"
    split = (
        (n, depth, block, block, height, width)
        if is_crd
        else (n, block, block, depth, height, width)
    )
    order = (0, 1, 4, 2, 5, 3) if is_crd else (0, 3, 4, 1, 5, 2)
    moved = call.add(Transpose(order), call.add(Reshape(split), x))
    return call.add(Reshape((n, depth, height * block, width * block)), moved)


@converts("SpaceToDepth")
def space_to_depth(call: Call) -> Value:
    """Reshape, Transpose, Reshape."""
    x = call.operand(0)
    n, channels, height, width = x.type.shape
    block = int(call.attribute("blocksize", 0))
    if block < 1 or height % block or width % block:
        raise ImportModelError(f"blocks of {block} from {x.type}")
    split = (n, channels, height // block, block, width // block, block)
    is_crd = call.attribute("mode", "DCR") == "CRD"
    order = (0, 1, 3, 5, 2, 4) if is_crd else (0, 3, 5, 1, 2, 4)
    moved = call.add(Transpose(order), call.add(Reshape(split), x))
    return call.add(Reshape((n, channels * block**2, height // block, width // block)), moved)
