"""Converters of the ops that ONNX Runtime adds to ONNX: attention, embeddings, packed weights.

Its optimizer and its model builder write them in the place of what exporters spell out. What they
compute is specified in its ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_by_name import converted_as
from distir.importers.onnx_call import Call, OnnxConstant, converts
from distir.importers.onnx_ops.attention import (
    Scores,
    attended,
    heads_apart,
    heads_together,
    rotary_tables,
    rotated_by,
)
from distir.importers.onnx_ops.products import gemm
from distir.importers.onnx_ops.vision import convolution
from distir.ir.core import Value
from distir.ir.types import DType, TensorType
from distir.ops import norm
from distir.ops.arithmetic import Add
from distir.ops.comparisons import Less, Where
from distir.ops.elementwise import Cast
from distir.ops.linalg import MatMul
from distir.ops.lookup import Gather
from distir.ops.reduce import ReduceSum
from distir.ops.tensor import Concat, Reshape, Split

# --- products with what follows them --------------------------------------------------------------

_ACTIVATIONS = {
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""The activations that the runtime fuses, with their attributes as its lists of parameters have
them."""


def _activation(call: Call) -> str:
    """The activation that a fused op names; empty if it names none."""
    name = str(call.attribute("activation", ""))
    if name and name not in _ACTIVATIONS:
        raise UnsupportedOpError(
            f"{call.node.label}: activation {name!r} is not supported; expected one of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return name


def _activated(call: Call, value: Value, attributes: Mapping[str, float]) -> Value:
    """What the activation that a fused op names makes of a value; the value if it names none."""
    name = _activation(call)
    if not name:
        return value
    opset = 6 if name == "Clip" else call.opset  # later ones have its bounds as operands
    return converted_as(replace(call, opset=opset), name, [value], attributes)


@converts("com.microsoft:FusedConv")
def fused_convolution(call: Call) -> Value:
    """Conv, plus another tensor if there is one, and an activation."""
    found = convolution(call)
    if call.has(3):
        found = call.add(Add(), found, call.operand(3))
    names = _ACTIVATIONS.get(_activation(call), ())
    given = call.attribute("activation_params") or ()
    return _activated(call, found, dict(zip(names, given, strict=False)))


@converts("com.microsoft:FusedGemm")
def fused_gemm(call: Call) -> Value:
    """Gemm and an activation."""
    prefix = "activation_"
    named = call.attributes().items()
    own = {key[len(prefix) :]: each for key, each in named if key.startswith(prefix)}
    return _activated(call, gemm(call), own)


# --- attention ------------------------------------------------------------------------------------


@converts("com.microsoft:Attention")
def attention(call: Call) -> Sequence[Value | None]:
    """A product that makes queries, keys and values, and attention."""
    heads = int(call.attribute("num_heads"))
    made = call.add(MatMul(), call.operand(0), call.operand(1))
    if call.has(2):
        made = call.add(Add(), made, call.operand(2))
    width = made.type.shape[2]
    sizes = tuple(int(n) for n in call.attribute("qkv_hidden_sizes") or ()) or (width // 3,) * 3
    query, key, value = (heads_apart(call, x, heads) for x in call.apply(Split(2, sizes), made))
    past = call.type(4).shape[3] if call.has(4) else 0
    if past:
        key, value = (
            call.add(Concat(2), before, own)
            for before, own in zip(_halves(call, call.operand(4)), (key, value), strict=True)
        )
    if call.attribute("do_rotary", 0):
        call.note("queries and keys are not rotated; the tables of angles are not in the file")
    mask = _masked(call, 3, 5, query, key)
    result = attended(call, query, key, value, mask, _scores(call, past))
    return (heads_together(call, result), _both(call, key, value))


def _halves(call: Call, both: Value) -> list[Value]:
    """Keys and values that are one tensor `[2, batch, heads, rows, depth]`."""
    parts = call.apply(Split(0, (1, 1)), both)
    return [call.add(Reshape(both.type.shape[1:]), part) for part in parts]


def _both(call: Call, key: Value, value: Value) -> Value | None:
    """Keys and values as one tensor, if an op or the user reads it."""
    if len(call.node.results) < 2 or not call.node.results[1]:
        return None
    parts = [call.add(Reshape((1, *each.type.shape)), each) for each in (key, value)]
    return call.add(Concat(0), *parts)


@converts("com.microsoft:MultiHeadAttention")
def multi_head_attention(call: Call) -> Sequence[Value | None]:
    """Attention of queries, keys and values that come apart or packed, with past keys and values
    joined in front."""
    heads = int(call.attribute("num_heads"))
    query, key, value = (heads_apart(call, x, heads) for x in _biased(call, _unpacked(call)))
    past = _past(call, 6)
    key, value = _with_past(call, 6, past, key, value)
    mask = _masked(call, 4, 5, query, key)
    result = attended(call, query, key, value, mask, _scores(call, past))
    return (heads_together(call, result), key, value)


def _unpacked(call: Call) -> list[Value]:
    """Queries, keys and values as `[batch, sequence, heads · depth]`, or, where they have heads
    already, as `[batch, heads, sequence, depth]`."""
    if call.has(2):
        return [call.operand(position) for position in range(3)]
    if call.has(1):  # [batch, sequence, heads, 2, depth]
        return [call.operand(0), *_packed(call, call.operand(1))]
    return _packed(call, call.operand(0))


def _packed(call: Call, x: Value) -> list[Value]:
    if x.type.rank != 5:
        raise ImportModelError(f"packed keys and values are {x.type}; expected 5 dims")
    batch, rows, heads, count, depth = x.type.shape
    parts = call.apply(Split(3, (1,) * count), x)
    return [call.add(Reshape((batch, rows, heads * depth)), part) for part in parts]


def _biased(call: Call, made: Sequence[Value]) -> Sequence[Value]:
    """Queries, keys and values with their biases, which are one vector, added."""
    if not call.has(3):
        return made
    sizes = tuple(x.type.num_elements // (x.type.shape[0] * x.type.shape[-2]) for x in made)
    biased: list[Value] = []
    for x, bias in zip(made, call.apply(Split(0, sizes), call.operand(3)), strict=True):
        if x.type.rank == 4:
            _, heads, _, depth = x.type.shape
            bias = call.add(Reshape((heads, 1, depth)), bias)
        biased.append(call.add(Add(), x, bias))
    return biased


@converts("com.microsoft:GroupQueryAttention")
def group_query_attention(call: Call) -> Sequence[Value | None]:
    """Causal attention whose keys and values have fewer heads, with rotated queries and keys, and
    past keys and values in front."""
    heads, groups = (int(call.attribute(name)) for name in ("num_heads", "kv_num_heads"))
    if call.has(1):
        made = [call.operand(position) for position in range(3)]
    else:
        depth = call.type().shape[2] // (heads + 2 * groups)
        sizes = tuple(count * depth for count in (heads, groups, groups))
        made = list(call.apply(Split(2, sizes), call.operand(0)))
    past = _past(call, 3)
    if call.attribute("do_rotary", 0):
        made[:2] = _rotated(call, made[:2], (heads, groups), past)
    query, key, value = (
        heads_apart(call, x, count) for x, count in zip(made, (heads, groups, groups), strict=True)
    )
    key, value = _with_past(call, 3, past, key, value)
    if call.attribute("smooth_softmax", 0) or call.has(11):
        call.note("a sink of attention is not applied")
    window = max(0, int(call.attribute("local_window_size", -1)))
    form = replace(_scores(call, past, is_causal=True), window=window)
    result = attended(call, query, key, value, _operand(call, 10), form)
    return (heads_together(call, result), key, value)


def _rotated(call: Call, made: Sequence[Value], heads: Sequence[int], past: int) -> list[Value]:
    """Queries and keys, `[batch, sequence, heads · depth]`, rotated by their positions."""
    import numpy as np

    rows = made[0].type.shape[1]
    where = _operand(call, 9)
    if where is None:
        where = call.builder.constant(np.arange(past, past + rows)[None], DType.INT64, "positions")
    tables = rotary_tables(call, 7, where)
    angles = tables[0].type.shape[3]
    is_interleaved = bool(call.attribute("rotary_interleaved", 0))
    found: list[Value] = []
    for x, count in zip(made, heads, strict=True):
        batch, rows, width = x.type.shape
        apart = call.add(Reshape((batch, rows, count, width // count)), x)
        turned = rotated_by(call, apart, tables, 2 * angles, is_interleaved=is_interleaved)
        found.append(call.add(Reshape(x.type.shape), turned))
    return found


def _past(call: Call, position: int) -> int:
    """The rows of past keys, the operand at a position: 0 if there are none."""
    return call.type(position).shape[2] if call.has(position) else 0


def _with_past(
    call: Call, position: int, past: int, key: Value, value: Value
) -> tuple[Value, Value]:
    """Keys and values behind the `past` ones, which are the operands at a position and the next."""
    if not past:
        return key, value
    return (
        call.add(Concat(2), call.operand(position), key),
        call.add(Concat(2), call.operand(position + 1), value),
    )


def _scores(call: Call, past: int, *, is_causal: bool = False) -> Scores:
    return Scores(
        float(call.attribute("scale", 0.0)),
        float(call.attribute("softcap", 0.0)),
        is_causal=is_causal or bool(call.attribute("unidirectional", 0)),
        past=past,
    )


def _operand(call: Call, position: int) -> Value | None:
    """An operand that may be absent."""
    return call.operand(position) if call.has(position) else None


def _masked(call: Call, position: int, added: int, query: Value, key: Value) -> Value | None:
    """What is added to scores: a term for columns that are padding, which the operand at a position
    tells, and the operand `added`, each if it is given."""
    terms = [
        term
        for term in (_padding(call, position, query, key), _operand(call, added))
        if term is not None
    ]
    return reduce(lambda a, b: call.add(Add(), a, b), terms) if terms else None


def _padding(call: Call, position: int, query: Value, key: Value) -> Value | None:
    """A term of scores that is very negative in columns that are padding. The operand has the
    number of columns of each sample that are none, or says of each column whether it is none, for
    all rows or for each of them."""
    import numpy as np

    if not call.has(position):
        return None
    batch, columns = key.type.shape[0], key.type.shape[2]
    shape, known = call.type(position).shape, call.known(position)
    dtype = query.type.dtype
    if shape == (batch,):
        if known is not None and (known >= columns).all():
            return None
        numbers = call.builder.constant(np.arange(columns), DType.INT64, "columns")
        lengths = call.add(Cast(DType.INT64), call.operand(position))
        allowed = call.add(Less(), numbers, call.add(Reshape((batch, 1, 1, 1)), lengths))
    elif shape in ((batch, columns), (batch, query.type.shape[2], columns)):
        spread = (batch, 1, *shape[1:]) if len(shape) == 3 else (batch, 1, 1, columns)
        allowed = call.add(Cast(DType.BOOL), call.operand(position))
        allowed = call.add(Reshape(spread), allowed)
    else:
        raise ImportModelError(
            f"a mask of {call.type(position)}; expected [{batch}], [{batch}, {columns}] or "
            f"[{batch}, {query.type.shape[2]}, {columns}]"
        )
    lowest = call.scalar(float(call.attribute("mask_filter_value", -10000.0)), dtype)
    return call.add(Where(), allowed, call.scalar(0.0, dtype), lowest)


# --- embeddings, and packed weights ---------------------------------------------------------------


@converts("com.microsoft:EmbedLayerNormalization")
def embed_layer_normalization(call: Call) -> Sequence[Value | OnnxConstant | None]:
    """The norm of the sum of the rows of up to three tables: of words, positions and segments. The
    second result are the lengths of samples, the third is the sum."""
    import numpy as np

    batch, rows = call.type().shape
    where = _operand(call, 8)
    if where is None:
        where = call.builder.constant(np.arange(rows)[None], DType.INT64, "positions")
    total = call.add(
        Add(),
        call.add(Gather(0), call.operand(2), call.operand(0)),
        call.add(Gather(0), call.operand(3), where),
    )
    if call.has(1) and call.has(4):
        total = call.add(Add(), total, call.add(Gather(0), call.operand(4), call.operand(1)))
    op = norm.LayerNormalization(2, float(call.attribute("epsilon", 1e-12)))
    normal = call.add(op, total, call.operand(5), call.operand(6))
    if call.has(7):
        lengths = call.add(ReduceSum((1,), keepdims=False), call.operand(7))
    else:
        full = np.full(batch, rows, np.int32)
        lengths = OnnxConstant(TensorType((batch,), DType.INT32), full, "lengths")
    return (normal, lengths, total)


@converts("com.microsoft:MatMulNBits")
def matmul_of_few_bits(call: Call) -> Value:
    """A product with a matrix that is stored in few bits."""
    x = call.operand(0)
    shape = (int(call.attribute("K")), int(call.attribute("N")))
    matrix = _of_few_bits(call, 1, shape, x.type.dtype)
    result = call.add(MatMul(), x, matrix)
    return call.add(Add(), result, call.operand(5)) if call.has(5) else result


@converts("com.microsoft:GatherBlockQuantized")
def gather_of_few_bits(call: Call) -> Value:
    """Rows of a table that is stored in few bits, two or more numbers to a byte."""
    *leading, last = call.type().shape
    is_packed = call.type().dtype is DType.UINT8
    width = last * 8 // int(call.attribute("bits", 4)) if is_packed else last
    table = _of_few_bits(call, 0, (*leading, width), call.type(2).dtype)
    return call.add(Gather(int(call.attribute("gather_axis", 0))), table, call.operand(1))


def _of_few_bits(call: Call, position: int, shape: tuple[int, ...], dtype: DType) -> Value:
    """A parameter in the place of an operand that is stored in few bits, as wide as activations; a
    note says so."""
    bits = call.attribute("bits", 4)
    call.note(f"weights that the file stores in {bits} bits are simulated as {dtype.short_name}")
    name = call.node.operands[position]
    known = (x for x in call.builder.parameters if (x.name, x.type.shape) == (name, shape))
    return next(known, None) or call.builder.parameter(name, shape, dtype)
