"""What ONNX's rarer ops become: piecewise functions, indexing, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_convert import Call, Constant, converts
from distir.importers.onnx_ops import expanded, positive_indices, sliced
from distir.ir.core import Op, Value
from distir.ir.types import DType, TensorType
from distir.ops import lookup, positions
from distir.ops.activations import Clip, Elu, HardSigmoid, LeakyRelu, Mish, Relu, Softplus, Tanh
from distir.ops.arithmetic import (
    Abs,
    Add,
    Ceil,
    Cos,
    Div,
    Floor,
    Mod,
    Mul,
    Neg,
    Round,
    Sign,
    Sin,
    Sqrt,
    Sub,
)
from distir.ops.attention import FusedAttention
from distir.ops.base import normalize_axis
from distir.ops.comparisons import Equal, Greater, IsInf, Max, Min, Where, Xor
from distir.ops.elementwise import Cast
from distir.ops.linalg import MatMul
from distir.ops.lookup import Gather
from distir.ops.norm import Softmax
from distir.ops.reduce import ReduceSum
from distir.ops.tensor import Concat, Reshape, Scale, Transpose

Array = Any

# --- functions of one element --------------------------------------------------------------------


def _number(name: str, default: float) -> Callable[[Call], float]:
    return lambda call: float(call.attribute(name, default))


_alpha = {
    "LeakyRelu": _number("alpha", 0.01),
    "Elu": _number("alpha", 1.0),
    "Celu": _number("alpha", 1.0),
    "HardSigmoid": _number("alpha", 0.2),
    "Selu": _number("alpha", 1.67326319217681884765625),
    "ThresholdedRelu": _number("alpha", 1.0),
}
_UNARY: dict[str, Callable[[Call], Op]] = {
    "Abs": lambda call: Abs(),
    "Sign": lambda call: Sign(),
    "Floor": lambda call: Floor(),
    "Ceil": lambda call: Ceil(),
    "Round": lambda call: Round(),
    "Sin": lambda call: Sin(),
    "Cos": lambda call: Cos(),
    "Softplus": lambda call: Softplus(),
    "Mish": lambda call: Mish(),
    "LeakyRelu": lambda call: LeakyRelu(_alpha["LeakyRelu"](call)),
    "Elu": lambda call: Elu(_alpha["Elu"](call)),
    "HardSigmoid": lambda call: HardSigmoid(
        _alpha["HardSigmoid"](call), float(call.attribute("beta", 0.5))
    ),
    "IsInf": lambda call: IsInf(
        bool(call.attribute("detect_negative", 1)), bool(call.attribute("detect_positive", 1))
    ),
}


@converts(*_UNARY)
def unary(call: Call) -> Value:
    """The op of the same name."""
    return call.add(_UNARY[call.node.op_type](call), call.operand(0))


@converts("HardSwish")
def hard_swish(call: Call) -> Value:
    """`x · HardSigmoid(x)`."""
    x = call.operand(0)
    return call.add(Mul(), x, call.add(HardSigmoid(1 / 6, 0.5), x))


@converts("Celu")
def celu(call: Call) -> Value:
    """Elu of `x / alpha`, times alpha."""
    alpha = _alpha["Celu"](call)
    inner = call.add(Scale(1 / alpha), call.operand(0))
    return call.add(Scale(alpha), call.add(Elu(1.0), inner))


@converts("Selu")
def selu(call: Call) -> Value:
    """Elu times gamma."""
    gamma = float(call.attribute("gamma", 1.05070102214813232421875))
    return call.add(Scale(gamma), call.add(Elu(_alpha["Selu"](call)), call.operand(0)))


@converts("ThresholdedRelu")
def thresholded_relu(call: Call) -> Value:
    """`x` where larger than alpha, else 0."""
    x = call.operand(0)
    alpha = call.scalar(_alpha["ThresholdedRelu"](call), x.type.dtype)
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
    """Clip with bounds known beforehand; else Max and Min."""
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
    """One Max or Min after the other."""
    op = Max() if call.node.op_type == "Max" else Min()
    values = call.operands()
    result = values[0]
    for value in values[1:]:
        result = call.add(op, result, value)
    return result


@converts("Xor")
def xor(call: Call) -> Value:
    """Xor."""
    return call.add(Xor(), call.operand(0), call.operand(1))


@converts("Mod")
def mod(call: Call) -> Value:
    """Mod."""
    op = Mod(bool(call.attribute("fmod", 0)))
    return call.add(op, call.operand(0), call.operand(1))


# --- indexing ------------------------------------------------------------------------------------


@converts("Trilu")
def trilu(call: Call) -> Value:
    """Trilu with a diagonal known beforehand."""
    k = int(call.array(1, "the diagonal").reshape(())) if call.has(1) else 0
    return call.add(positions.Trilu(bool(call.attribute("upper", 1)), k), call.operand(0))


@converts("CumSum")
def cumsum(call: Call) -> Value:
    """CumSum along a dim known beforehand."""
    axis = int(call.array(1, "the axis").reshape(()))
    axis = normalize_axis("CumSum", axis, call.type().rank)
    op = positions.CumSum(
        axis, bool(call.attribute("exclusive", 0)), bool(call.attribute("reverse", 0))
    )
    return call.add(op, call.operand(0))


@converts("ArgMax", "ArgMin")
def arg_max(call: Call) -> Value:
    """ArgMax, of minus x for ArgMin."""
    axis = normalize_axis("ArgMax", int(call.attribute("axis", 0)), call.type().rank)
    op = positions.ArgMax(
        axis, bool(call.attribute("keepdims", 1)), bool(call.attribute("select_last_index", 0))
    )
    x = call.operand(0)
    return call.add(op, call.add(Neg(), x) if call.node.op_type == "ArgMin" else x)


@converts("TopK")
def top_k(call: Call) -> Sequence[Value]:
    """TopK; its result is in order also where that is not asked for."""
    sizes = call.integer_list("k", 1, since=10)
    k = int(call.attribute("k")) if call.opset < 10 else (sizes or (0,))[0]
    axis = normalize_axis("TopK", int(call.attribute("axis", -1)), call.type().rank)
    return call.apply(positions.TopK(k, axis, bool(call.attribute("largest", 1))), call.operand(0))


@converts("OneHot")
def one_hot(call: Call) -> Value:
    """`on` where the position equals the index, else `off`. Indices count from the start."""
    import numpy as np

    rank = call.type().rank + 1
    axis = normalize_axis("OneHot", int(call.attribute("axis", -1)), rank)
    depth = int(call.array(1, "the depth").reshape(-1)[0])
    off_on = call.array(2, "the values").reshape(-1)
    if not 0 < depth < 1 << 24:
        raise ImportModelError(f"a depth of {depth}")
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
    """GatherND; a view if it takes every element in order, as masks of recent exports do."""
    import numpy as np

    data, index = call.type(0), call.known(1)
    if index is not None and index.size and not call.attribute("batch_dims", 0):
        (result,) = lookup.GatherND().infer(data, call.type(1))
        sizes = data.shape[: index.shape[-1]]
        wrapped = np.where(index < 0, index + np.asarray(sizes), index)
        if (wrapped < 0).any() or (wrapped >= np.asarray(sizes)).any():
            raise ImportModelError(f"indices outside of {data}")
        order = np.ravel_multi_index(tuple(np.moveaxis(wrapped, -1, 0)), sizes).reshape(-1)
        if len(order) == math.prod(sizes) and (order == np.arange(len(order))).all():
            return call.add(Reshape(result.shape), call.operand(0))
    if _looks_up_one_row(call):
        # A batch of 1: what is left is a lookup in the second dim, which follows the batch.
        places = call.operand(1)
        cut = slice(1, 2, 1)
        places = sliced(call, places, [slice(0, None, 1)] * (places.type.rank - 1) + [cut])
        places = call.add(Reshape(places.type.shape[1:-1]), places)
        return call.add(Gather(1), call.operand(0), places)
    op = lookup.GatherND(int(call.attribute("batch_dims", 0)))
    return call.add(op, call.operand(0), call.operand(1))


def _looks_up_one_row(call: Call) -> bool:
    data, index = call.type(0).shape, call.type(1).shape
    return (
        isinstance(call.entry(1), Constant)
        and not call.attribute("batch_dims", 0)
        and len(index) > 1
        and (data[0], index[0], index[-1]) == (1, 1, 2)
    )


@converts("ScatterElements", "Scatter", "ScatterND")
def scatter(call: Call) -> Value:
    """ScatterElements or ScatterND that replaces or adds."""
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
    """Pad with a constant; other modes pick the elements to repeat."""
    import numpy as np

    x = call.operand(0)
    rank = x.type.rank
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
    mode = str(call.attribute("mode", "constant"))
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
        raise ImportModelError(f"the padding mode {mode!r}")
    return mode


@converts("NonZero")
def non_zero(call: Call) -> Array:
    """A constant: the shape of the result depends on the values."""
    import numpy as np

    return np.stack(np.nonzero(call.array(0, "the shape"))).astype(np.int64)


@converts("EyeLike")
def eye_like(call: Call) -> Any:
    """A constant."""
    import numpy as np

    from distir.importers.onnx_file import as_dtype, read_dtype

    shape = call.type().shape
    if len(shape) != 2 or math.prod(shape) > 1 << 22:
        raise ImportModelError(f"a diagonal of {call.type()}")
    code = call.attribute("dtype")
    dtype = call.type().dtype if code is None else read_dtype(int(code), "the result")
    array = as_dtype(np.eye(*shape, k=int(call.attribute("k", 0))), dtype)
    return Constant(TensorType(shape, dtype), array, call.node.results[0])


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
    moved = call.add(Transpose((0, 3, 5, 1, 2, 4)), call.add(Reshape(split), x))
    return call.add(Reshape((n, channels * block**2, height // block, width // block)), moved)


@converts("LpNormalization")
def lp_normalization(call: Call) -> Value:
    """`x` divided by its norm."""
    axis = normalize_axis("LpNormalization", int(call.attribute("axis", -1)), call.type().rank)
    x = call.operand(0)
    if int(call.attribute("p", 2)) == 1:
        size = call.add(ReduceSum((axis,)), call.add(Abs(), x))
    else:
        size = call.add(Sqrt(), call.add(ReduceSum((axis,)), call.add(Mul(), x, x)))
    return call.add(Div(), x, size)


# --- attention -----------------------------------------------------------------------------------


def _heads_apart(call: Call, x: Value, heads: int) -> Value:
    """`[batch, sequence, heads · depth]` as `[batch, heads, sequence, depth]`."""
    if x.type.rank == 4:
        return x
    batch, rows, width = x.type.shape
    if heads < 1 or width % heads:
        raise ImportModelError(f"{heads} heads in {x.type}")
    split = call.add(Reshape((batch, rows, heads, width // heads)), x)
    return call.add(Transpose((0, 2, 1, 3)), split)


@converts("Attention")
def attention(call: Call) -> Sequence[Value | None]:
    """FusedAttention, with heads apart and past keys and values in front; spelled out if the
    scores are capped."""
    heads, groups = (int(call.attribute(name, 0)) for name in ("q_num_heads", "kv_num_heads"))
    query = _heads_apart(call, call.operand(0), heads)
    key = _heads_apart(call, call.operand(1), groups)
    value = _heads_apart(call, call.operand(2), groups)
    past = 0
    if call.has(4) and call.has(5) and call.type(4).num_elements:
        past = call.type(4).shape[2]
        key = call.add(Concat(2), call.operand(4), key)
        value = call.add(Concat(2), call.operand(5), value)
    mask = _attention_mask(call, query.type.dtype) if call.has(3) else None
    scale = float(call.attribute("scale", 0.0)) or 1 / math.sqrt(query.type.shape[3])
    is_causal = bool(call.attribute("is_causal", 0))
    if is_causal and past:
        mask, is_causal = _shifted_causal_mask(call, query, key, past, mask), False
    softcap = float(call.attribute("softcap", 0.0))
    if softcap:
        result = _capped_attention(call, query, key, value, mask, scale, is_causal, softcap)
    else:
        masks = () if mask is None else (mask,)
        result = call.add(FusedAttention(scale, is_causal), query, key, value, *masks)
    if call.type(0).rank == 3:
        batch, count, rows, depth = result.type.shape
        moved = call.add(Transpose((0, 2, 1, 3)), result)
        result = call.add(Reshape((batch, rows, count * depth)), moved)
    return (result, key, value)


def _attention_mask(call: Call, dtype: DType) -> Value:
    """The mask as a term of the scores."""
    mask = call.operand(3)
    if mask.type.dtype is not DType.BOOL:
        return mask
    lowest = call.scalar(-3.4028234663852886e38, dtype)
    return call.add(Where(), mask, call.scalar(0.0, dtype), lowest)


def _shifted_causal_mask(
    call: Call, query: Value, key: Value, past: int, mask: Value | None
) -> Value:
    import numpy as np

    rows, columns = query.type.shape[2], key.type.shape[2]
    if rows * columns > 1 << 24:
        raise ImportModelError(f"a causal mask of {rows} by {columns}")
    allowed = np.arange(rows)[:, None] + past >= np.arange(columns)[None, :]
    values = np.where(allowed, np.float32(0), np.finfo(np.float32).min)
    causal = call.builder.constant(values, query.type.dtype, "causal mask")
    return causal if mask is None else call.add(Add(), mask, causal)


def _capped_attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    scale: float,
    is_causal: bool,
    softcap: float,
) -> Value:
    groups, per_group = key.type.shape[1], query.type.shape[1] // key.type.shape[1]
    if is_causal:
        mask = _shifted_causal_mask(call, query, key, 0, mask)
    if per_group > 1:
        key, value = (_repeated_heads(call, x, per_group) for x in (key, value))
    assert groups
    scores = call.add(MatMul(), query, call.add(Transpose((0, 1, 3, 2)), key))
    capped = call.add(Tanh(), call.add(Scale(scale / softcap), scores))
    scores = call.add(Scale(softcap), capped)
    if mask is not None:
        scores = call.add(Add(), scores, mask)
    return call.add(MatMul(), call.add(Softmax(-1), scores), value)


def _repeated_heads(call: Call, x: Value, times: int) -> Value:
    batch, groups, rows, depth = x.type.shape
    apart = call.add(Reshape((batch, groups, 1, rows, depth)), x)
    wide = expanded(call, apart, (batch, groups, times, rows, depth))
    return call.add(Reshape((batch, groups * times, rows, depth)), wide)


@converts("RotaryEmbedding", "com.microsoft:RotaryEmbedding")
def rotary_embedding(call: Call) -> Value:
    """Products with cosines and sines, written out."""
    is_microsoft = bool(call.node.domain)
    where, first = (1, 2) if is_microsoft else (3, 1)
    x = call.operand(0)
    is_flat = x.type.rank == 3
    heads = int(call.attribute("num_heads", 0))
    if is_flat:
        batch, rows, width = x.type.shape
        width_per_head = 2 * call.type(first).shape[-1] if not heads else width // heads
        x = call.add(Reshape((batch, rows, width // width_per_head, width_per_head)), x)
    else:
        x = call.add(Transpose((0, 2, 1, 3)), x)
    rotated = int(call.attribute("rotary_embedding_dim", 0)) or x.type.shape[3]
    tables: list[Value] = []
    for position in (first, first + 1):
        table = call.operand(position)
        if call.has(where):
            table = call.add(Gather(0), table, call.operand(where))
        if table.type.rank != 3:
            raise ImportModelError(f"the table of rotary factors is {table.type}")
        a, b, c = table.type.shape
        tables.append(call.view(table, (a, b, 1, c), (0, 1, 3)))
    cut = [slice(0, None, 1)] * 3
    moving = sliced(call, x, [*cut, _cut(0, rotated, x.type.shape[3])])
    result = _rotated(call, moving, tables[0], tables[1], bool(call.attribute("interleaved", 0)))
    if rotated != x.type.shape[3]:
        rest = sliced(call, x, [*cut, slice(rotated, None, 1)])
        result = call.add(Concat(3), result, rest)
    if is_flat:
        return call.add(Reshape(call.type().shape), result)
    return call.add(Transpose((0, 2, 1, 3)), result)


def _cut(start: int, stop: int, size: int) -> slice:
    return slice(0, None, 1) if (start, stop) == (0, size) else slice(start, stop, 1)


def _rotated(call: Call, x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    """Pairs of elements turned by their angles; pairs are neighbours or half the size apart."""
    *leading, size = x.type.shape
    half = size // 2
    split = (*leading, half, 2) if interleaved else (*leading, 2, half)
    dim = len(leading) + (1 if interleaved else 0)
    pairs = call.add(Reshape(split), x)
    parts: list[Value] = []
    for start in (0, 1):
        cuts = [slice(0, None, 1)] * len(split)
        cuts[dim] = slice(start, start + 1, 1)
        parts.append(call.add(Reshape((*leading, half)), sliced(call, pairs, cuts)))
    a, b = parts
    mul, add, sub = Mul(), Add(), Sub()
    first = call.add(sub, call.add(mul, a, cosine), call.add(mul, b, sine))
    second = call.add(add, call.add(mul, a, sine), call.add(mul, b, cosine))
    unit = list(split)
    unit[dim] = 1
    joined = call.add(
        Concat(dim), *(call.add(Reshape(tuple(unit)), part) for part in (first, second))
    )
    return call.add(Reshape(x.type.shape), joined)


@converts("com.microsoft:FusedMatMul")
def fused_matmul(call: Call) -> Value:
    """MatMul of transposed operands, times alpha."""
    values: list[Value] = []
    for position, name in enumerate(("transA", "transB")):
        value = call.operand(position)
        if call.attribute(name, 0):
            rank = value.type.rank
            value = call.add(Transpose((*range(rank - 2), rank - 1, rank - 2)), value)
        values.append(value)
    result = call.add(MatMul(), *values)
    alpha = float(call.attribute("alpha", 1.0))
    return result if alpha == 1.0 else call.add(Scale(alpha), result)
