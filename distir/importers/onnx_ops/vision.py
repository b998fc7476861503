"""Converters of ops of convolutional networks: convolution, pooling, normalization, resizing."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_call import Call, converts
from distir.importers.onnx_ops.shapes import expanded
from distir.ir.core import Array, Value
from distir.ir.types import DType
from distir.ops import channel_norm, conv, pooling
from distir.ops.arithmetic import Add, Mul, Reciprocal, Sqrt, Sub
from distir.ops.lookup import Gather
from distir.ops.norm import LayerNormalization
from distir.ops.reduce import ReduceMax, ReduceMean
from distir.ops.sampling import GridSample
from distir.ops.tensor import Expand, Reshape, Scale, Transpose
from distir.ops.window import KernelWindow


def _window(
    call: Call, space: Sequence[int], kernel: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, pads and dilations of a convolution or pooling; automatic padding is computed."""
    rank = len(space)
    if len(kernel) != rank:
        raise ImportModelError(f"a kernel of {len(kernel)} dims; expected {rank}")
    strides = tuple(call.attribute("strides") or (1,) * rank)
    dilations = tuple(call.attribute("dilations") or (1,) * rank)
    pads = tuple(call.attribute("pads") or (0,) * 2 * rank)
    mode = str(call.attribute("auto_pad", "NOTSET"))
    if mode == "VALID":
        pads = (0,) * 2 * rank
    elif mode.startswith("SAME"):
        totals = [
            max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
            for n, s, d, k in zip(space, strides, dilations, kernel, strict=True)
        ]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = tuple(small + large if mode == "SAME_UPPER" else large + small)
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank:
        raise ImportModelError(f"strides {strides}, dilations {dilations}, pads {pads}")
    if not all(0 < n < 1 << 24 for n in (*strides, *dilations, *kernel)):
        raise ImportModelError(f"strides {strides}, dilations {dilations}, kernel {tuple(kernel)}")
    if not all(0 <= n < 1 << 24 for n in pads):
        raise ImportModelError(f"pads {pads}; expected at least 0")
    return strides, pads, dilations


@converts("Conv")
def convolution(call: Call) -> Value:
    """Conv."""
    call.without_effect("kernel_shape")  # the weight has it
    kernel = call.type(1).shape[2:]
    window = _window(call, call.type().shape[2:], kernel)
    op = conv.Conv(*window, int(call.attribute("group", 1)))
    return _biased(call, call.add(op, call.operand(0), call.operand(1)))


def _biased(call: Call, product: Value) -> Value:
    """A result with the bias per channel added, if there is one."""
    if not call.has(2):
        return product
    channels = (product.type.shape[1],) + (1,) * (product.type.rank - 2)
    return call.add(Add(), product, call.add(Reshape(channels), call.operand(2)))


@converts("ConvTranspose")
def transposed_convolution(call: Call) -> Value:
    """ConvTranspose; the size of its result is computed from the attributes."""
    call.without_effect("kernel_shape")  # the weight has it
    space, kernel = call.type().shape[2:], call.type(1).shape[2:]
    rank = len(space)
    mode = str(call.attribute("auto_pad", "NOTSET"))
    strides = tuple(call.attribute("strides") or (1,) * rank)
    dilations = tuple(call.attribute("dilations") or (1,) * rank)
    extra = tuple(call.attribute("output_padding") or (0,) * rank)
    wanted = tuple(call.attribute("output_shape") or ())[-rank:]
    if mode.startswith("SAME"):
        wanted = wanted or tuple(n * s for n, s in zip(space, strides, strict=True))
    full = [
        s * (n - 1) + e + (k - 1) * d + 1
        for s, n, e, k, d in zip(strides, space, extra, kernel, dilations, strict=True)
    ]
    pads = tuple(call.attribute("pads") or (0,) * 2 * rank)
    if wanted:
        totals = [max(0, f - n) for f, n in zip(full, wanted, strict=True)]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = tuple(small + large if mode == "SAME_UPPER" else large + small)
    elif mode == "VALID":
        pads = (0,) * 2 * rank
    result = wanted or tuple(f - pads[d] - pads[rank + d] for d, f in enumerate(full))
    if not all(0 < n < 1 << 24 for n in (*strides, *dilations, *kernel, *result)) or min(pads) < 0:
        raise ImportModelError(f"strides {strides}, dilations {dilations}, pads {pads}")
    # Elements of the result that no window reaches do not change the number of windows.
    op = conv.ConvTranspose(result, strides, pads, dilations, int(call.attribute("group", 1)))
    return _biased(call, call.add(op, call.operand(0), call.operand(1)))


@converts("Col2Im")
def col2im(call: Call) -> Value:
    """Moves where blocks tile the image; otherwise a transposed convolution with ones, for every
    channel on its own, as elements that lie in several blocks are added up."""
    columns = call.operand(0)
    image, block = call.integers(1, "the sizes"), call.integers(2, "the block")
    rank = len(block)
    strides = tuple(call.attribute("strides") or (1,) * rank)
    pads = tuple(call.attribute("pads") or (0,) * 2 * rank)
    dilations = tuple(call.attribute("dilations") or (1,) * rank)
    counts = KernelWindow(strides, pads, dilations).result_sizes(image, block)
    if columns.type.rank != 3:
        raise ImportModelError(f"{columns.type} as blocks; expected [batch, rows, columns]")
    n, rows, number = columns.type.shape
    places = math.prod(block)
    if rows % places or number != math.prod(counts):
        raise ImportModelError(
            f"{columns.type} as blocks {list(block)} of {list(image)}; expected a multiple of "
            f"{places} rows, and {math.prod(counts)} columns"
        )
    channels = rows // places
    if block == strides and image == tuple(map(operator.mul, block, counts)):
        split = call.add(Reshape((n, channels, *block, *counts)), columns)
        order = [place for d in range(rank) for place in (2 + rank + d, 2 + d)]
        return call.add(Reshape((n, channels, *image)), call.add(Transpose((0, 1, *order)), split))
    patches = call.add(Reshape((n, rows, *counts)), columns)
    op = conv.ConvTranspose(image, strides, pads, dilations, channels)
    return call.add(op, patches, _places(call, channels, block))


def _places(call: Call, channels: int, block: tuple[int, ...]) -> Value:
    """Weights of a transposed convolution that put each of a channel's rows at its place in a
    block."""
    import numpy as np

    ones = np.eye(math.prod(block)).reshape(-1, 1, *block)
    weights = np.tile(ones, (channels, 1, *(1 for _ in block)))
    return call.builder.constant(weights, call.type().dtype, "places in a block")


_Sizes = tuple[int, ...]


def _pool_window(call: Call) -> tuple[tuple[_Sizes, _Sizes, _Sizes, _Sizes], _Sizes]:
    """Kernel, strides, pads and dilations of a pooling, and the padding at the end that is added
    because sizes are rounded up."""
    space = call.type().shape[2:]
    kernel = tuple(call.attribute("kernel_shape") or ())
    strides, pads, dilations = _window(call, space, kernel)
    rank = len(space)
    overhang = [0] * rank
    if call.attribute("ceil_mode", 0):
        for d in range(rank):
            span = dilations[d] * (kernel[d] - 1) + 1
            room = space[d] + pads[d] + pads[rank + d] - span
            count = -(-room // strides[d]) + 1
            if (count - 1) * strides[d] >= space[d] + pads[d]:
                count -= 1
            overhang[d] = max(0, (count - 1) * strides[d] - room)
    grown = (*pads[:rank], *(p + o for p, o in zip(pads[rank:], overhang, strict=True)))
    return (kernel, strides, grown, dilations), tuple(overhang)


@converts("MaxPool")
def max_pool(call: Call) -> Value:
    """MaxPool; the positions of the maxima that ONNX returns too are not supported."""
    call.without_effect("storage_order")
    window, _ = _pool_window(call)
    return call.add(pooling.MaxPool(*window), call.operand(0))


@converts("AveragePool")
def average_pool(call: Call) -> Value:
    """AveragePool."""
    window, overhang = _pool_window(call)
    counts = bool(call.attribute("count_include_pad", 0))
    return call.add(pooling.AveragePool(*window, overhang, counts), call.operand(0))


@converts("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Value:
    """ReduceMean or ReduceMax over space."""
    axes = tuple(range(2, call.type().rank))
    op = ReduceMean(axes) if call.node.op_type == "GlobalAveragePool" else ReduceMax(axes)
    return call.add(op, call.operand(0))


@converts("BatchNormalization")
def batch_normalization(call: Call) -> Sequence[Value] | Value:
    """BatchNormalization with given statistics; in training mode, products and sums with the
    statistics of the whole batch, however it is distributed."""
    call.without_effect("momentum", "spatial", "is_test")
    epsilon = float(call.attribute("epsilon", 1e-5))
    is_training = bool(call.attribute("training_mode", 0))
    if call.opset < 14:
        is_training = sum(map(bool, call.node.results)) > 1
    if not is_training:
        trained = (call.operand(position) for position in range(3))
        statistics = (call.untrained(position) for position in (3, 4))
        return call.add(channel_norm.BatchNormalization(epsilon), *trained, *statistics)
    x, scale, bias, mean, variance = call.operands()
    rest = tuple(dim for dim in range(x.type.rank) if dim != 1)
    column = (x.type.shape[1],) + (1,) * (x.type.rank - 2)
    center = call.add(ReduceMean(rest), x)
    centered = call.add(Sub(), x, center)
    square = call.add(ReduceMean(rest), call.add(Mul(), centered, centered))
    shifted = call.add(Add(), square, call.scalar(epsilon, x.type.dtype))
    inverse = call.add(Reciprocal(), call.add(Sqrt(), shifted))
    normal = call.add(Mul(), centered, inverse)
    scaled = call.add(Mul(), normal, call.add(Reshape(column), scale))
    result = call.add(Add(), scaled, call.add(Reshape(column), bias))
    momentum = float(call.attribute("momentum", 0.9))
    running = [
        call.add(
            Add(),
            call.add(Scale(momentum), old),
            call.add(Scale(1 - momentum), call.add(Reshape(old.type.shape), new)),
        )
        for old, new in ((mean, center), (variance, square))
    ]
    return (result, *running, *running)[: max(1, len(call.node.results))]


@converts("LRN")
def local_response_normalization(call: Call) -> Value:
    """LRN."""
    op = channel_norm.LRN(
        int(call.attribute("size", 1)),
        float(call.attribute("alpha", 1e-4)),
        float(call.attribute("beta", 0.75)),
        float(call.attribute("bias", 1.0)),
    )
    return call.add(op, call.operand(0))


def _normalized_groups(call: Call, groups: int) -> Value:
    """The operand normalized over each group of channels and space: the last dim of a Reshape."""
    x = call.operand(0)
    batch, channels, *space = x.type.shape
    if groups < 1 or channels % groups:
        raise ImportModelError(
            f"{groups} groups of {channels} channels; expected a divisor of {channels}"
        )
    rest = channels // groups * math.prod(space)
    flat = call.add(Reshape((batch, groups, rest)), x)
    ones = call.add(Expand((rest,)), call.scalar(1.0, x.type.dtype))
    op = LayerNormalization(2, float(call.attribute("epsilon", 1e-5)))
    return call.add(Reshape(x.type.shape), call.add(op, flat, ones))


def _per_channel(call: Call, position: int) -> Value:
    """A vector with one number per channel (or per group), reshaped so that it broadcasts to
    `[batch, channels, *space]`."""
    channels = call.type().shape[1]
    vector = call.operand(position)
    shape = (channels,) + (1,) * (call.type().rank - 2)
    if vector.type.num_elements != channels:  # one per group, as before opset 21
        groups = vector.type.num_elements
        if channels % max(groups, 1):
            raise ImportModelError(
                f"{vector.type} for {channels} channels; expected one number per channel or group"
            )
        apart = call.add(Reshape((groups, 1)), vector)
        vector = expanded(call, apart, (groups, channels // groups))
    return call.add(Reshape(shape), vector)


@converts("InstanceNormalization", "GroupNormalization")
def group_normalization(call: Call) -> Value:
    """A norm over each group of channels, then a scale and a bias."""
    call.without_effect("stash_type")
    is_instance = call.node.op_type == "InstanceNormalization"
    groups = call.type().shape[1] if is_instance else int(call.attribute("num_groups", 0))
    scaled = call.add(Mul(), _normalized_groups(call, groups), _per_channel(call, 1))
    return call.add(Add(), scaled, _per_channel(call, 2))


# --- resizing ------------------------------------------------------------------------------------


@converts("GridSample")
def grid_sample(call: Call) -> Value:
    """GridSample, whose modes had other names before opset 20."""
    mode = str(call.attribute("mode", "linear")).removeprefix("bi")
    padding = str(call.attribute("padding_mode", "zeros"))
    op = GridSample(mode, padding, bool(call.attribute("align_corners", 0)))
    return call.add(op, call.operand(0), call.operand(1))


@converts("Resize", "Upsample")
def resize(call: Call) -> Value:
    """Dim by dim, looks up the nearest elements, or adds neighbours with weights."""
    # Those of other modes, which exporters write all the same.
    call.without_effect("cubic_coeff_a", "nearest_mode", "exclude_outside", "extrapolation_value")
    x = call.operand(0)
    shape = x.type.shape
    is_old = call.opset < 11 or call.node.op_type == "Upsample"
    if is_old:
        scales = call.attribute("scales")
        if scales is None:
            scales = tuple(call.array(1, "the scales").reshape(-1).tolist())
        sizes = [_scaled(n, s) for n, s in zip(shape, scales, strict=True)]
    else:
        scales, sizes = _resized(call)
    if not all(0 < n < 1 << 20 for n in sizes):
        raise ImportModelError(f"sizes {sizes}; expected at least 1 and less than {1 << 20}")
    if call.attribute("antialias", 0) and any(n < m for n, m in zip(sizes, shape, strict=True)):
        raise UnsupportedOpError(f"{call.node.label}: antialias is not supported; set it to 0")
    # How elements are looked up, where all are taken as they are.
    call.without_effect("mode", "coordinate_transformation_mode")
    for dim, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        if size != shape[dim] or scale != 1:
            x = _resample(call, x, dim, size, float(scale), is_old)
    return x


def _resized(call: Call) -> tuple[list[float], list[int]]:
    """The scale and the size of the result, per dim."""
    shape = call.type().shape
    axes = call.attribute("axes") or tuple(range(len(shape)))
    scales, sizes = [1.0] * len(shape), list(shape)
    if str(call.attribute("keep_aspect_ratio_policy", "stretch")) != "stretch":
        raise UnsupportedOpError(
            f"{call.node.label}: keep_aspect_ratio_policy is not supported; export with sizes"
        )
    if call.has(3) and call.type(3).num_elements:
        for axis, size in zip(axes, call.integers(3, "the sizes"), strict=True):
            sizes[axis] = size
            scales[axis] = size / shape[axis]
        return scales, sizes
    for axis, scale in zip(axes, call.array(2, "the scales").reshape(-1).tolist(), strict=True):
        scales[axis] = scale
        sizes[axis] = _scaled(shape[axis], scale)
    return scales, sizes


def _scaled(size: int, scale: float) -> int:
    """A size times a scale, rounded down, in the single precision in which files have scales: 0.7
    of 10 is 7, though the number that stands for 0.7 is less."""
    import numpy as np

    return math.floor(np.float32(size) * np.float32(scale))


def _resample(call: Call, x: Value, dim: int, size: int, scale: float, is_old: bool) -> Value:
    """The operand resized along one dim."""
    import numpy as np

    old = x.type.shape[dim]
    places = _coordinates(call, old, size, scale, is_old)
    mode = str(call.attribute("mode", "nearest"))
    if mode == "nearest":
        rounding = "floor" if is_old else str(call.attribute("nearest_mode", "round_prefer_floor"))
        return _picked(call, x, dim, np.clip(_rounded(places, rounding), 0, old - 1))
    low = np.floor(places).astype(np.int64)
    part = places - low
    if mode in ("linear", "bilinear"):
        taps = [(low, 1 - part), (low + 1, part)]
    elif mode == "cubic":
        taps = _cubic_taps(low, part, float(call.attribute("cubic_coeff_a", -0.75)))
    else:
        raise ImportModelError(f"unknown mode {mode!r}; expected nearest, linear or cubic")
    if call.attribute("exclude_outside", 0):
        taps = [(index, weight * ((index >= 0) & (index < old))) for index, weight in taps]
        total = sum(weight for _, weight in taps)
        taps = [(index, weight / total) for index, weight in taps]
    column = (-1,) + (1,) * (x.type.rank - dim - 1)
    terms: list[Value] = []
    for index, weight in taps:
        if not weight.any():
            continue
        picked = _picked(call, x, dim, np.clip(index, 0, old - 1))
        factors = call.builder.constant(weight.reshape(column), x.type.dtype, "weights")
        terms.append(call.add(Mul(), picked, factors))
    result = terms[0]
    for term in terms[1:]:
        result = call.add(Add(), result, term)
    return result


def _picked(call: Call, x: Value, dim: int, index: Array) -> Value:
    """`x` at these positions of a dim; an Expand if every element is repeated equally often."""
    import numpy as np

    old, size = x.type.shape[dim], len(index)
    if size % old == 0 and np.array_equal(index, np.repeat(np.arange(old), size // old)):
        before, after = x.type.shape[:dim], x.type.shape[dim + 1 :]
        apart = call.add(Reshape((*before, old, 1, *after)), x)
        wide = expanded(call, apart, (*before, old, size // old, *after))
        return call.add(Reshape((*before, size, *after)), wide)
    places = call.builder.constant(index.astype(np.int64), DType.INT64, "places")
    return call.add(Gather(dim), x, places)


def _rounded(places: Array, mode: str) -> Array:
    """Positions as whole numbers, by ONNX's `nearest_mode`."""
    import numpy as np

    if mode == "floor":
        return np.floor(places).astype(np.int64)
    if mode == "ceil":
        return np.ceil(places).astype(np.int64)
    if mode == "round_prefer_ceil":
        return np.floor(places + 0.5).astype(np.int64)
    return np.ceil(places - 0.5).astype(np.int64)


def _coordinates(call: Call, old: int, new: int, scale: float, is_old: bool) -> Array:
    """The position in the operand of each element of the result along a dim."""
    import numpy as np

    mode = str(call.attribute("coordinate_transformation_mode", "half_pixel"))
    mode = "asymmetric" if is_old else mode
    x = np.arange(new, dtype=np.float64)
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * (old - 1) / (new - 1) if new > 1 else np.zeros(1)
    if mode == "pytorch_half_pixel" and new == 1:
        return np.zeros(1)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (x + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        adjustment = new / (scale * old)
        center = old / 2
        return center * (1 - adjustment) + (x + 0.5) / scale - 0.5
    raise UnsupportedOpError(f"{call.node.label}: coordinate mode {mode!r} is not supported")


def _cubic_taps(low: Array, t: Array, a: float) -> list[tuple[Array, Array]]:
    """Keys' cubic convolution (1981): the indices of four neighbours and their weights."""
    return [
        (low - 1, ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a),
        (low, ((a + 2) * t - (a + 3)) * t * t + 1),
        (low + 1, ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1),
        (low + 2, ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a),
    ]
