"""T5 (Raffel et al. 2020): encoder and decoder; a bias on attention scores stands for positions.

The bias is trained, so that attention is always spelled out, as frameworks run it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from distir.ir import Builder, DType, Function, Value
from distir.models.layers import (
    AttentionKind,
    attend,
    drop,
    embed,
    linear,
    merge_heads,
    normalize,
    split_heads,
)
from distir.models.sizes import check_sizes
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add
from distir.ops.attention import hiding_mask
from distir.ops.linalg import MatMul
from distir.ops.tensor import Scale, Transpose


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Config:
    """Sizes of a T5 model; encoder and decoder have `layers` layers each."""

    name: str
    layers: int
    hidden: int
    heads: int
    head_dim: int
    ffn: int
    vocabulary: int = 32128
    buckets: int = 32
    """Number of buckets of distances between positions; the bias is trained per bucket."""
    farthest: int = 128
    """Distance from which on all distances share a bucket."""
    norm_epsilon: float = 1e-6
    dropout: float = 0.1
    """Fraction dropped, in training: after embeddings, of attention weights, inside and after
    feed-forward, and after attention and each stack."""
    sequence_length: int = 512
    longest: None = None

    def __post_init__(self) -> None:
        check_sizes(self, f"T5 {self.name}")

    def build(
        self, batch_size: int, sequence_length: int, attention: AttentionKind = "eager"
    ) -> Function:
        """The function from `ids` and `decoder_ids` to logits; attention is always eager."""
        return build_t5(self, batch_size, sequence_length, sequence_length)


def build_t5(
    config: T5Config, batch_size: int, sequence_length: int, target_length: int
) -> Function:
    """The function from `ids`, `[batch, sequence]`, and `decoder_ids`, `[batch, target]`, to
    logits, `[batch, target, vocabulary]`."""
    builder = Builder(config.name)
    ids = builder.input("ids", (batch_size, sequence_length), DType.INT64)
    targets = builder.input("decoder_ids", (batch_size, target_length), DType.INT64)
    tokens = builder.parameter("embedding.token.weight", (config.vocabulary, config.hidden))
    memory = _stack(builder, config, "encoder", embed(builder, ids, tokens), None)
    x = _stack(builder, config, "decoder", embed(builder, targets, tokens), memory)
    builder.origin = "head"
    x = builder.add(Scale(1 / math.sqrt(config.hidden)), x)
    return builder.build([builder.add(MatMul(), x, builder.add(Transpose((1, 0)), tokens))])


def _stack(builder: Builder, config: T5Config, name: str, x: Value, memory: Value | None) -> Value:
    """All layers of the encoder, or of the decoder if there is a `memory` to attend to; `x` and the
    result are `[batch, sequence, hidden]`."""
    bias = _position_bias(builder, config, f"{name}.position_bias", x, decoder=memory is not None)
    x = drop(builder, x, config.dropout)
    for layer in range(config.layers):
        place = f"{name}.{layer}"
        y = _norm(builder, config, x, f"{place}.attention_norm")
        x = builder.add(Add(), x, _attention(builder, config, f"{place}.attention", y, y, bias))
        if memory is not None:
            y = _norm(builder, config, x, f"{place}.cross_norm")
            y = _attention(builder, config, f"{place}.cross", y, memory, None)
            x = builder.add(Add(), x, y)
        y = _norm(builder, config, x, f"{place}.ffn_norm")
        x = builder.add(Add(), x, _feed_forward(builder, config, f"{place}.ffn", y))
    return drop(builder, _norm(builder, config, x, f"{name}.norm"), config.dropout)


def _position_bias(
    builder: Builder, config: T5Config, name: str, x: Value, *, decoder: bool
) -> Value:
    """The bias that all layers of a stack add to their scores: `[heads, sequence, sequence]`."""
    builder.origin = name
    length = x.type.shape[1]
    table = builder.parameter(f"{name}.weight", (config.buckets, config.heads))
    buckets = builder.constant(_buckets(config, length, decoder=decoder), DType.INT64, name)
    bias = builder.add(Transpose((2, 0, 1)), embed(builder, buckets, table))
    if not decoder:
        return bias
    return builder.add(Add(), bias, hiding_mask(builder, length, length, causal=True))


def _buckets(config: T5Config, length: int, *, decoder: bool) -> Any:
    """The bucket of every pair of row and column, `[length, length]`.

    Short distances have a bucket each, longer ones share buckets on a logarithmic scale. An encoder
    uses half of the buckets for columns to the right of the row.
    """
    import numpy as np

    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    count = config.buckets if decoder else config.buckets // 2
    right = 0 if decoder else count * (distance < 0)
    distance = np.maximum(distance, 0) if decoder else np.abs(distance)
    near = count // 2
    scale = np.log(np.maximum(distance, 1) / near) / np.log(config.farthest / near)
    far = np.minimum(near + (scale * (count - near)).astype(np.int64), count - 1)
    return right + np.where(distance < near, distance, far)


def _attention(
    builder: Builder, config: T5Config, name: str, x: Value, memory: Value, bias: Value | None
) -> Value:
    """Attention of the rows of `x` to those of `memory`; scores are not scaled."""
    builder.origin = name

    def project(value: Value, part: str) -> Value:
        width = config.heads * config.head_dim
        projected = linear(builder, value, f"{name}.{part}", width, bias=False)
        return split_heads(builder, projected, config.heads)

    y = attend(
        builder,
        project(x, "query"),
        project(memory, "key"),
        project(memory, "value"),
        "eager",
        mask=bias,
        scale=1.0,
        dropout=config.dropout,
    )
    y = linear(builder, merge_heads(builder, y), f"{name}.output", config.hidden, bias=False)
    return drop(builder, y, config.dropout)


def _feed_forward(builder: Builder, config: T5Config, name: str, x: Value) -> Value:
    builder.origin = name
    inner = builder.add(Relu(), linear(builder, x, f"{name}.up", config.ffn, bias=False))
    inner = drop(builder, inner, config.dropout)
    y = linear(builder, inner, f"{name}.down", config.hidden, bias=False)
    return drop(builder, y, config.dropout)


def _norm(builder: Builder, config: T5Config, x: Value, name: str) -> Value:
    builder.origin = name
    return normalize(builder, x, name, "rms", config.norm_epsilon)
