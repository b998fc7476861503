"""Converters of attention and of rotary embeddings, and what other converters share with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distir.errors import ImportModelError
from distir.importers.onnx_call import Call, converts
from distir.importers.onnx_ops.shapes import expanded, sliced
from distir.ir.core import Value
from distir.ir.types import DType
from distir.ops.activations import Tanh
from distir.ops.arithmetic import Add, Mul, Sub
from distir.ops.attention import FusedAttention, seen
from distir.ops.comparisons import Less, Where
from distir.ops.linalg import MatMul
from distir.ops.lookup import Gather
from distir.ops.norm import Softmax
from distir.ops.positions import Pad
from distir.ops.tensor import Concat, Reshape, Scale, Transpose


def heads_apart(call: Call, x: Value, heads: int) -> Value:
    """Reshapes `[batch, sequence, heads · depth]` to `[batch, heads, sequence, depth]`."""
    if x.type.rank == 4:
        return x
    batch, rows, width = x.type.shape
    if heads < 1 or width % heads:
        raise ImportModelError(f"{heads} heads in {x.type}; expected a divisor of {width}")
    split = call.add(Reshape((batch, rows, heads, width // heads)), x)
    return call.add(Transpose((0, 2, 1, 3)), split)


@converts("Attention")
def attention(call: Call) -> Sequence[Value | None]:
    """Attention, with past keys and values joined in front."""
    heads, groups = (int(call.attribute(name, 0)) for name in ("q_num_heads", "kv_num_heads"))
    query = heads_apart(call, call.operand(0), heads)
    key = heads_apart(call, call.operand(1), groups)
    value = heads_apart(call, call.operand(2), groups)
    past = 0
    if call.has(4) and call.has(5) and call.type(4).num_elements:
        past = call.type(4).shape[2]
        key = call.add(Concat(2), call.operand(4), key)
        value = call.add(Concat(2), call.operand(5), value)
    mask = _attention_mask(call, key.type.shape[2], query.type.dtype) if call.has(3) else None
    is_causal = bool(call.attribute("is_causal", 0))
    if call.has(6):
        within = _within_lengths(call, query, key, is_causal)
        mask, is_causal = within if mask is None else call.add(Add(), mask, within), False
    call.without_effect("softmax_precision")  # kernels keep scores in single precision
    is_causal, window = _window(call, is_causal=is_causal)
    form = Scores(
        float(call.attribute("scale", 0.0)),
        float(call.attribute("softcap", 0.0)),
        is_causal=is_causal,
        past=past,
        window=window,
    )
    result = attended(call, query, key, value, mask, form)
    return (heads_together(call, result) if call.type(0).rank == 3 else result, key, value)


def _window(call: Call, *, is_causal: bool) -> tuple[bool, int]:
    """Whether rows see no later columns, and the window (`FusedAttention`) that is as wide as the
    op says to both sides, or to the left of what is causal. Others are told, and not applied."""
    left, right = (int(call.attribute(f"{side}_window_size", -1)) for side in ("left", "right"))
    right = 0 if is_causal else right
    if not call.has(6) and (right in (0, left)):
        return right == 0, left + 1
    if max(left, right) >= 0:
        wide = f"its window of {left:,} to the left and {right:,} to the right"
        call.note(f"attention reads the whole sequence; {wide} is not applied")
    return is_causal, 0


def heads_together(call: Call, x: Value) -> Value:
    """Reshapes `[batch, heads, sequence, depth]` to `[batch, sequence, heads · depth]`."""
    batch, heads, rows, depth = x.type.shape
    moved = call.add(Transpose((0, 2, 1, 3)), x)
    return call.add(Reshape((batch, rows, heads * depth)), moved)


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores are made of queries and keys."""

    scale: float
    """Their factor; 0: 1 over the square root of the depth."""
    softcap: float = 0.0
    """They are `softcap · tanh(scores / softcap)`; 0: they are not capped."""
    is_causal: bool = False
    past: int = 0
    """Columns in front of those of the rows themselves."""
    window: int = 0
    """That of `FusedAttention`."""


def attended(
    call: Call, query: Value, key: Value, value: Value, mask: Value | None, form: Scores
) -> Value:
    """Attention on `[batch, heads, sequence, depth]`, of which keys and values may have fewer
    heads; products and a softmax if the scores are capped."""
    scale = form.scale or 1 / math.sqrt(query.type.shape[3])
    op = FusedAttention(scale, form.is_causal, window=form.window)
    if (form.past or form.softcap) and (form.is_causal or form.window):
        op, mask = FusedAttention(scale), _hidden(call, query, key, form, mask)
    if form.softcap:
        return _capped_attention(call, query, key, value, mask, scale, form.softcap)
    masks = () if mask is None else (mask,)
    return call.add(op, query, key, value, *masks)


_LOWEST = -3.4028234663852886e38
"""What is added to scores of columns that a row does not see."""


def _attention_mask(call: Call, columns: int, dtype: DType) -> Value:
    """The mask as a term of the scores: zero, or very negative, as it is in columns behind those
    that a mask with fewer has."""
    mask = call.operand(3)
    if mask.type.dtype is DType.BOOL:
        mask = _seen(call, mask, dtype)
    missing = columns - mask.type.shape[-1]
    if missing <= 0:
        return mask
    before = (0,) * mask.type.rank
    return call.add(Pad(before, (*before[1:], missing), _LOWEST), mask)


def _seen(call: Call, allowed: Value, dtype: DType) -> Value:
    """The term of the scores that is zero where it is allowed to look, else very negative."""
    return call.add(Where(), allowed, call.scalar(0.0, dtype), call.scalar(_LOWEST, dtype))


def _within_lengths(call: Call, query: Value, key: Value, is_causal: bool) -> Value:
    """The term of the scores for samples whose keys have the lengths of operand 6: behind them is
    padding, and the last row of a causal mask is the one of the last key."""
    import numpy as np

    batch, _, rows, _ = query.type.shape
    dtype = call.type(6).dtype
    ends = call.add(Reshape((batch, 1, 1, 1)), call.operand(6))
    if is_causal:
        behind = np.arange(1 - rows, 1)[:, None]
        ends = call.add(Add(), ends, call.builder.constant(behind, dtype, "rows"))
    columns = call.builder.constant(np.arange(key.type.shape[2]), dtype, "columns")
    return _seen(call, call.add(Less(), columns, ends), query.type.dtype)


def _hidden(call: Call, query: Value, key: Value, form: Scores, mask: Value | None) -> Value:
    """The mask, and added to it what hides columns that a row does not see."""
    import numpy as np

    rows, columns = query.type.shape[2], key.type.shape[2]
    if rows * columns > 1 << 24:
        raise ImportModelError(
            f"a mask of {rows} by {columns}; expected at most {1 << 24} elements"
        )
    places = form.past + np.arange(rows), np.arange(columns)
    allowed = seen(*places, causal=form.is_causal, window=form.window)
    values = np.where(allowed, np.float32(0), np.finfo(np.float32).min)
    name = "window mask" if form.window else "causal mask"
    hidden = call.builder.constant(values, query.type.dtype, name)
    return hidden if mask is None else call.add(Add(), mask, hidden)


def _capped_attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    scale: float,
    softcap: float,
) -> Value:
    """Attention whose scores are `softcap · tanh(scores / softcap)`, spelled out."""
    per_group = query.type.shape[1] // key.type.shape[1]
    if per_group > 1:
        key, value = (_repeated_heads(call, x, per_group) for x in (key, value))
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
    """Products with cosines and sines."""
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
    where = _positions(call, where, x.type.shape[1]) if call.has(where) else None
    tables = rotary_tables(call, first, where)
    result = rotated_by(
        call, x, tables, rotated, is_interleaved=bool(call.attribute("interleaved", 0))
    )
    if is_flat:
        return call.add(Reshape(call.type().shape), result)
    return call.add(Transpose((0, 2, 1, 3)), result)


def _positions(call: Call, position: int, rows: int) -> Value:
    """The positions that an operand has, or begins."""
    import numpy as np

    given = call.operand(position)
    if given.type.shape != (1,):
        return given
    counted = call.builder.constant(np.arange(rows)[None], given.type.dtype, "positions")
    return call.add(Add(), call.add(Reshape((1, 1)), given), counted)


def rotary_tables(call: Call, first: int, where: Value | None) -> tuple[Value, Value]:
    """The cosines and sines of a call, its operands `first` and the next, as
    `[batch or 1, sequence, 1, angles]`: looked up by positions `where`, if these are given."""
    tables: list[Value] = []
    for position in (first, first + 1):
        table = call.untrained(position)
        if where is not None:
            table = call.add(Gather(0), table, where)
        if table.type.rank != 3:
            raise ImportModelError(f"the table of rotary factors is {table.type}; expected 3 dims")
        a, b, c = table.type.shape
        tables.append(call.view(table, (a, b, 1, c), (0, 1, 3)))
    cosine, sine = tables
    return cosine, sine


def rotated_by(
    call: Call, x: Value, tables: tuple[Value, Value], rotated: int, *, is_interleaved: bool
) -> Value:
    """`[batch, sequence, heads, depth]` of which the first `rotated` of the depth are rotated."""
    cut = [slice(0, None, 1)] * 3
    moving = sliced(call, x, [*cut, _cut(0, rotated, x.type.shape[3])])
    result = _rotated(call, moving, *tables, is_interleaved)
    if rotated == x.type.shape[3]:
        return result
    return call.add(Concat(3), result, sliced(call, x, [*cut, slice(rotated, None, 1)]))


def _cut(start: int, stop: int, size: int) -> slice:
    return slice(0, None, 1) if (start, stop) == (0, size) else slice(start, stop, 1)


def _rotated(call: Call, x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    """Pairs of elements rotated by their angles. The elements of a pair are neighbours if
    `interleaved`, otherwise half the size of the dim apart."""
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
