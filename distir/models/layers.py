"""Layers that models are built from. Each function adds ops to a builder and returns the result."""

from __future__ import annotations

import math
from typing import Literal, get_args

from distir.ir import Builder, DType, Op, Value
from distir.ops.activations import Dropout, Gelu, Relu, Silu
from distir.ops.arithmetic import Add, Mul, Neg
from distir.ops.attention import FusedAttention, spell_out
from distir.ops.linalg import MatMul
from distir.ops.lookup import Gather
from distir.ops.norm import LayerNormalization, RMSNormalization
from distir.ops.tensor import Concat, Reshape, Split, Transpose

AttentionKind = Literal["fused", "eager"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
"""`fused`: one op, whose kernel never writes the scores to memory; `eager`: products and a softmax.
"""

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Norm = Literal["layer", "rms"]

ACTIVATIONS: dict[Activation, Op] = {
    "gelu": Gelu(),
    "gelu_tanh": Gelu("tanh"),
    "relu": Relu(),
    "silu": Silu(),
}


def linear(builder: Builder, x: Value, name: str, features: int, *, bias: bool = True) -> Value:
    """`x[..., n] @ weight[n, features] + bias`."""
    weight = builder.parameter(f"{name}.weight", (x.type.shape[-1], features))
    y = builder.add(MatMul(), x, weight)
    if not bias:
        return y
    return builder.add(Add(), y, builder.parameter(f"{name}.bias", (features,)))


def gated_feed_forward(
    builder: Builder, x: Value, name: str, width: int, activation: Activation, *, bias: bool = False
) -> Value:
    """`down(activation(gate(x)) · up(x))` of inner width `width`."""
    gate = linear(builder, x, f"{name}.gate", width, bias=bias)
    gate = builder.add(ACTIVATIONS[activation], gate)
    inner = builder.add(Mul(), gate, linear(builder, x, f"{name}.up", width, bias=bias))
    return linear(builder, inner, f"{name}.down", x.type.shape[-1], bias=bias)


def normalize(
    builder: Builder, x: Value, name: str, norm: Norm, epsilon: float, *, bias: bool = True
) -> Value:
    """A norm over the last dim, with a trained scale, and a trained bias if it is a layer norm that
    has one."""
    width = x.type.shape[-1:]
    scale = builder.parameter(f"{name}.weight", width)
    if norm == "rms":
        return builder.add(RMSNormalization(epsilon=epsilon), x, scale)
    operands = (scale, builder.parameter(f"{name}.bias", width)) if bias else (scale,)
    return builder.add(LayerNormalization(epsilon=epsilon), x, *operands)


def embed(builder: Builder, ids: Value, table: Value) -> Value:
    """Looks up rows of `table`, `[rows, width]`: `ids[...] -> [..., width]`."""
    return builder.add(Gather(), table, ids)


def positions(builder: Builder, length: int, first: int = 0) -> Value:
    """The constant `[[first, first + 1, …]]`, shape `[1, length]`."""
    import numpy as np

    return builder.constant(np.arange(first, first + length)[None], DType.INT64, "positions")


def split_heads(builder: Builder, x: Value, heads: int) -> Value:
    """`[batch, sequence, heads · depth] -> [batch, heads, sequence, depth]`."""
    batch, sequence, width = x.type.shape
    x = builder.add(Reshape((batch, sequence, heads, width // heads)), x)
    return builder.add(Transpose((0, 2, 1, 3)), x)


def merge_heads(builder: Builder, x: Value) -> Value:
    """The inverse of `split_heads`."""
    batch, heads, sequence, depth = x.type.shape
    x = builder.add(Transpose((0, 2, 1, 3)), x)
    return builder.add(Reshape((batch, sequence, heads * depth)), x)


def rotary_tables(builder: Builder, length: int, depth: int, base: float) -> tuple[Value, Value]:
    """Cosines and sines of `position · base^(-2i/depth)`, `[length, depth]` each, where i runs from
    0 to `depth / 2 - 1` twice."""
    import numpy as np

    frequencies = base ** (-np.arange(0, depth, 2) / depth)
    angles = np.tile(np.outer(np.arange(length), frequencies), 2)
    return (
        builder.constant(np.cos(angles), DType.FLOAT32, "rotary.cos"),
        builder.constant(np.sin(angles), DType.FLOAT32, "rotary.sin"),
    )


def rotate(builder: Builder, x: Value, tables: tuple[Value, Value]) -> Value:
    """Rotary position embedding (Su et al. 2021): `x·cos + rotate_half(x)·sin`.

    `tables` are cosines and sines, `[sequence, depth]`. Only the first `depth` elements of the last
    dim are rotated.
    """
    cosine, sine = tables
    depth, width = cosine.type.shape[-1], x.type.shape[-1]
    if depth < width:
        turned, rest = builder.apply(Split(-1, (depth, width - depth)), x)
        return builder.add(Concat(-1), rotate(builder, turned, tables), rest)
    first, second = builder.apply(Split(-1, (depth // 2, depth // 2)), x)
    half = builder.add(Concat(-1), builder.add(Neg(), second), first)
    return builder.add(Add(), builder.add(Mul(), x, cosine), builder.add(Mul(), half, sine))


def drop(builder: Builder, x: Value, ratio: float) -> Value:
    """Dropout; no op if the ratio is 0."""
    # All layers have one seed, so that equal layers stay equal.
    return builder.apply(Dropout(ratio), x)[0] if ratio else x


def attend(
    builder: Builder,
    query: Value,
    key: Value,
    value: Value,
    kind: AttentionKind,
    *,
    causal: bool = False,
    mask: Value | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    window: int = 0,
) -> Value:
    """Attention of queries, keys and values, `[batch, heads, sequence, depth]` each.

    Scores are scaled by `scale`, by default `depth ** -0.5`; then `mask` is added to them.
    `dropout` is the fraction of attention weights that is dropped, and `window` that of
    `FusedAttention`.
    """
    if scale is None:
        scale = 1 / math.sqrt(query.type.shape[-1])
    op = FusedAttention(scale, causal, dropout, window=window)
    masks = () if mask is None else (mask,)
    if kind == "fused":
        return builder.add(op, query, key, value, *masks)
    return spell_out(builder, op, query, key, value, *masks)
