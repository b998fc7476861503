"""Transformers with one stack of layers: GPT-2 and GPT-3, LLaMA, Mistral and Mixtral, Qwen, Gemma,
DeepSeek, OPT, GPT-NeoX, Falcon, BERT and others.

One configuration describes them all; parameters and the order of ops are those of the originals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from distir.errors import ImportModelError
from distir.ir import Builder, DType, Function, Value
from distir.models.experts import Experts, mixture
from distir.models.latent import Latent, latent_queries_keys_values
from distir.models.layers import (
    ACTIVATIONS,
    Activation,
    AttentionKind,
    Norm,
    attend,
    drop,
    embed,
    gated_feed_forward,
    linear,
    merge_heads,
    normalize,
    positions,
    rotary_tables,
    rotate,
    split_heads,
)
from distir.models.sizes import check_sizes
from distir.ops.arithmetic import Add
from distir.ops.attention import hiding_mask
from distir.ops.linalg import MatMul
from distir.ops.tensor import Scale, Split, Transpose


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TransformerConfig:
    """Sizes and choices of a transformer. The defaults are GPT-2's."""

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence_length: int
    """The longest sequence that the model is made for; the number of learned positions."""
    kv_heads: int = 0
    """Heads of keys and values, each shared by a group of query heads; 0: as many as `heads`."""
    head_dim: int = 0
    """Width of a head; 0: `hidden / heads`."""
    ffn: int = 0
    """Width inside the feed-forward part; 0: `4 · hidden`."""
    experts: Experts | None = None
    """The mixture of experts that every feed-forward part is, if it is one."""
    latent: Latent | None = None
    """The low-rank latent that keys and values come from, if there is one; then `kv_heads`,
    `head_dim` and `fused_qkv` do not apply."""

    norm: Norm = "layer"
    norm_epsilon: float = 1e-5
    norm_bias: bool = True
    """Whether layer norms have biases."""
    norm_first: bool = True
    """Whether norms stand before attention and feed-forward, and one at the end; otherwise they
    stand behind each sum, unless `part_norms` says where."""
    part_norms: bool = False
    """Whether the results of attention and feed-forward are normalized before they are added, and
    the sum at the end: in place of norms behind each sum, or beside those before (Gemma 2)."""
    embedding_norm: bool = False
    """Whether the embeddings are normalized."""
    qk_norm: bool = False
    """Whether every head of queries and keys is normalized."""
    qk_norm_joint: bool = False
    """Whether it is all heads of queries, and of keys, together that are normalized (OLMo 2)."""
    parallel: bool = False
    """Whether attention and feed-forward read the same input, and both are added to it."""
    shared_norm: bool = False
    """Whether they share one norm of it."""
    embedding_scale: float = 1.0
    """Factor of token embeddings (Gemma)."""

    learned_positions: bool = True
    position_offset: int = 0
    """Number of rows of the position table before the first position (OPT has 2)."""
    rotary_fraction: float = 0.0
    """Fraction of every head that rotary embedding rotates; 0: no rotary embedding."""
    rotary_base: float = 10000.0
    segments: int = 0
    """Number of segment embeddings; all tokens are in segment 0."""

    activation: Activation = "gelu_tanh"
    gated: bool = False
    """Whether feed-forward is `down(activation(gate(x)) · up(x))`."""
    fused_qkv: bool = True
    """Whether queries, keys and values come from one product."""
    qkv_bias: bool = True
    """Whether the products that make queries, keys and values, or their latents, have biases."""
    output_bias: bool = True
    ffn_bias: bool = True

    dropout: float = 0.0
    """Fraction dropped, in training, after embedding, attention and feed-forward."""
    attention_dropout: float | None = None
    """Fraction of the attention weights dropped; None: the same as `dropout`."""
    inner_dropout: float = 0.0
    """Fraction dropped inside feed-forward parts that are not gated, after the activation."""

    causal: bool = True
    windows: tuple[int, ...] = ()
    """How far the layers look, in turns: the first layer has the first window, and behind the last
    the first comes again. A token sees those that are less than a window away, itself included;
    0: all. Empty: all layers see all."""
    tied_embeddings: bool = True
    """Whether the head's matrix is the table of token embeddings."""
    head_transform: bool = False
    """Whether a linear layer, the activation and a norm stand before the head (BERT)."""
    head_bias: bool = False

    notes: tuple[str, ...] = ()
    """Properties of the model that this description leaves out, in words."""

    def __post_init__(self) -> None:
        check_sizes(self, f"transformer {self.name}")
        for field in ("layers", "hidden", "heads", "vocabulary", "sequence_length"):
            self._require(getattr(self, field) >= 1, f"{field} must be at least 1")
        self._require(
            self.head_dim > 0 or self.latent is not None or self.hidden % self.heads == 0,
            f"hidden ({self.hidden}) is not divisible by heads ({self.heads}); state head_dim",
        )
        self._require(
            self.heads % self.num_kv_heads == 0,
            f"heads ({self.heads}) is not divisible by kv_heads ({self.num_kv_heads})",
        )
        self._require(
            not self.fused_qkv or self.num_kv_heads == self.heads,
            "fused_qkv needs as many kv_heads as heads",
        )
        self._require(
            0 <= self.rotary_fraction <= 1,
            f"rotary_fraction is {self.rotary_fraction}; expected a part of a head, from 0 to 1",
        )
        self._require(
            self.norm_epsilon >= 0, f"norm_epsilon is {self.norm_epsilon}; expected at least 0"
        )
        self._require(
            not self.parallel or not self.part_norms, "part_norms and parallel exclude each other"
        )
        self._require(self.parallel or not self.shared_norm, "shared_norm needs parallel")
        self._require(
            not self.qk_norm or not self.qk_norm_joint,
            "qk_norm and qk_norm_joint exclude each other",
        )
        self._require(
            self.embedding_scale > 0,
            f"embedding_scale is {self.embedding_scale}; expected above 0",
        )
        self._require(
            all(each >= 0 for each in self.windows),
            f"windows are {self.windows}; expected at least 0 each",
        )
        self._require(self.rotary_base > 0, f"rotary_base is {self.rotary_base}; expected above 0")
        for part in (self.dropout, self.attention_dropout or 0.0, self.inner_dropout):
            self._require(0 <= part < 1, f"a dropout is {part}; expected at least 0, below 1")
        if self.experts is not None:
            count, top_k = self.experts.count, self.experts.top_k
            self._require(
                0 < top_k <= count, f"{top_k} of {count} experts per token; expected at least one"
            )

    def __repr__(self) -> str:
        """What is not as in GPT-2: all that there is would fill a screen."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        stated = [f"{each.name}={value!r}" for each, value in values if value != each.default]
        return f"TransformerConfig({', '.join(stated)})"

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise ImportModelError(f"transformer {self.name}: {message}")

    @property
    def num_kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def depth(self) -> int:
        """Width of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def ffn_width(self) -> int:
        """Width inside the feed-forward part."""
        return self.ffn or 4 * self.hidden

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """The window of each layer."""
        turns = self.windows or (0,)
        return tuple([turns[layer % len(turns)] for layer in range(self.layers)])

    @property
    def longest(self) -> int | None:
        """The longest sequence that can be built; None if there is no limit."""
        return self.sequence_length if self.learned_positions else None

    def build(
        self, batch_size: int, sequence_length: int, attention: AttentionKind = "fused"
    ) -> Function:
        """The function from `ids` to logits."""
        return build_transformer(self, batch_size, sequence_length, attention)


def windows_in_turns(windows: Sequence[int]) -> tuple[int, ...]:
    """The fewest windows that, in turns, are those of the layers (`TransformerConfig.windows`)."""
    count = len(windows)
    turns = range(1, count + 1)
    few = next(n for n in turns if all(windows[i] == windows[i - n] for i in range(n, count)))
    return tuple(windows[:few]) if any(windows) else ()


def llama_config(
    name: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocabulary: int,
    sequence_length: int,
    head_dim: int = 0,
) -> TransformerConfig:
    """A configuration with LLaMA's choices: RMS norms, rotary embedding, gated SiLU, no biases, and
    a head that is not tied to the embedding."""
    return TransformerConfig(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocabulary=vocabulary,
        sequence_length=sequence_length,
        head_dim=head_dim,
        norm="rms",
        learned_positions=False,
        rotary_fraction=1.0,
        activation="silu",
        gated=True,
        fused_qkv=False,
        qkv_bias=False,
        output_bias=False,
        ffn_bias=False,
        tied_embeddings=False,
    )


def bert_config(
    name: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    sequence_length: int,
) -> TransformerConfig:
    """A configuration with BERT's choices: an encoder with norms behind the sums, and a head that
    predicts masked words."""
    return TransformerConfig(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        sequence_length=sequence_length,
        segments=2,
        dropout=0.1,
        norm_epsilon=1e-12,
        norm_first=False,
        embedding_norm=True,
        activation="gelu",
        fused_qkv=False,
        causal=False,
        head_transform=True,
        head_bias=True,
    )


@dataclass(frozen=True, slots=True)
class _Shared:
    """Choices and values that all layers share."""

    attention: AttentionKind
    rotary: tuple[Value, Value] | None
    masks: Mapping[int, Value]
    """By window, what is added to scores; nothing where attention itself hides what is not seen."""


def build_transformer(
    config: TransformerConfig,
    batch_size: int,
    sequence_length: int,
    attention: AttentionKind = "fused",
) -> Function:
    """The function from `ids`, int64 `[batch, sequence]`, to logits,
    `[batch, sequence, vocabulary]`.

    Raises `ImportModelError` if the sequence is longer than the table of positions.
    """
    if config.longest is not None and sequence_length > config.longest:
        raise ImportModelError(
            f"{config.name} has a table of {config.longest} positions, but the sequence length is "
            f"{sequence_length}; expected at most {config.longest}"
        )
    builder = Builder(config.name)
    builder.notes.extend(config.notes)
    ids = builder.input("ids", (batch_size, sequence_length), DType.INT64)
    tokens = builder.parameter("embedding.token.weight", (config.vocabulary, config.hidden))
    x = _embedding(builder, config, ids, tokens)
    x = add_layers(builder, config, x, attention)
    return builder.build([_head(builder, config, x, tokens)])


def add_layers(
    builder: Builder, config: TransformerConfig, x: Value, attention: AttentionKind
) -> Value:
    """All layers on `x`, `[batch, sequence, hidden]`, and, if norms come first, the last norm."""
    shared = _shared(builder, config, x.type.shape[1], attention)
    experts = config.experts
    for layer, window in enumerate(config.layer_windows):
        there = experts if experts is not None and experts.are_in(layer) else None
        own = replace(config, experts=there, windows=(window,))
        x = _layer(builder, own, x, f"layers.{layer}", shared)
    builder.origin = "head"
    return _norm(builder, config, x, "norm") if config.norm_first or config.part_norms else x


def _embedding(builder: Builder, config: TransformerConfig, ids: Value, tokens: Value) -> Value:
    """The sum of token, position and segment embeddings (those that the model has):
    `[batch, sequence, hidden]`."""
    builder.origin = "embedding"
    length = ids.type.shape[1]
    x = embed(builder, ids, tokens)
    if config.embedding_scale != 1:
        x = builder.add(Scale(config.embedding_scale), x)
    if config.learned_positions:
        rows = config.sequence_length + config.position_offset
        table = builder.parameter("embedding.position.weight", (rows, config.hidden))
        places = positions(builder, length, config.position_offset)
        x = builder.add(Add(), x, embed(builder, places, table))
    if config.segments:
        import numpy as np

        table = builder.parameter("embedding.segment.weight", (config.segments, config.hidden))
        segment = builder.constant(np.zeros((1, length), np.int64), DType.INT64, "segments")
        x = builder.add(Add(), x, embed(builder, segment, table))
    if config.embedding_norm:
        x = _norm(builder, config, x, "embedding.norm")
    return drop(builder, x, config.dropout)


def _shared(
    builder: Builder, config: TransformerConfig, length: int, attention: AttentionKind
) -> _Shared:
    turned = 2 * int(config.depth * config.rotary_fraction / 2)
    if config.latent is not None:
        turned = config.latent.rotary_dim
    return _Shared(
        attention=attention,
        rotary=rotary_tables(builder, length, turned, config.rotary_base) if turned else None,
        masks={
            window: hiding_mask(builder, length, length, causal=config.causal, window=window)
            for window in {*config.layer_windows}
            if attention == "eager" and (config.causal or window)
        },
    )


def _layer(
    builder: Builder, config: TransformerConfig, x: Value, name: str, shared: _Shared
) -> Value:
    """One layer on `x`, `[batch, sequence, hidden]`; the result has the same shape."""

    def attention(x: Value) -> Value:
        return _attention(builder, config, x, f"{name}.attention", shared)

    def feed_forward(x: Value) -> Value:
        return _feed_forward(builder, config, x, f"{name}.ffn")

    def norm(x: Value, part: str) -> Value:
        builder.origin = f"{name}.{part}_norm"
        return _norm(builder, config, x, f"{name}.{part}_norm")

    def add(x: Value, y: Value) -> Value:
        return builder.add(Add(), x, y)

    if config.parallel:
        read = norm(x, "attention")
        branches = attention(read), feed_forward(read if config.shared_norm else norm(x, "ffn"))
        return add(add(*branches), x)
    if config.norm_first or config.part_norms:
        for part, run in (("attention", attention), ("ffn", feed_forward)):
            y = run(norm(x, part) if config.norm_first else x)
            x = add(x, norm(y, f"{part}_output") if config.part_norms else y)
        return x
    x = norm(add(x, attention(x)), "attention")
    return norm(add(x, feed_forward(x)), "ffn")


def _attention(
    builder: Builder, config: TransformerConfig, x: Value, name: str, shared: _Shared
) -> Value:
    builder.origin = name
    query, key, value = _queries_keys_values(builder, config, x, name, shared.rotary)
    (window,) = config.windows  # of this layer alone
    mask = shared.masks.get(window)
    dropped = config.dropout if config.attention_dropout is None else config.attention_dropout
    y = attend(
        builder,
        query,
        key,
        value,
        shared.attention,
        causal=config.causal and mask is None,
        mask=mask,
        dropout=dropped,
        window=window if mask is None else 0,
    )
    y = merge_heads(builder, y)
    y = linear(builder, y, f"{name}.output", config.hidden, bias=config.output_bias)
    return drop(builder, y, config.dropout)


def _queries_keys_values(
    builder: Builder,
    config: TransformerConfig,
    x: Value,
    name: str,
    rotary: tuple[Value, Value] | None,
) -> tuple[Value, Value, Value]:
    """Queries, keys and values, `[batch, heads, sequence, depth]` each; keys and values have
    `num_kv_heads` heads."""
    if config.latent is not None:
        assert rotary is not None
        return latent_queries_keys_values(
            builder,
            x,
            name,
            config.latent,
            config.heads,
            rotary,
            config.norm_epsilon,
            bias=config.qkv_bias,
        )
    heads, kv_heads, depth = config.heads, config.num_kv_heads, config.depth
    bias = config.qkv_bias
    if config.fused_qkv:
        width = heads * depth
        joined = linear(builder, x, f"{name}.qkv", 3 * width, bias=bias)
        query, key, value = builder.apply(Split(-1, (width,) * 3), joined)
    else:
        query = linear(builder, x, f"{name}.query", heads * depth, bias=bias)
        key = linear(builder, x, f"{name}.key", kv_heads * depth, bias=bias)
        value = linear(builder, x, f"{name}.value", kv_heads * depth, bias=bias)
    if config.qk_norm_joint:
        query = _norm(builder, config, query, f"{name}.query_norm")
        key = _norm(builder, config, key, f"{name}.key_norm")
    query = split_heads(builder, query, heads)
    key = split_heads(builder, key, kv_heads)
    if config.qk_norm:
        query = _norm(builder, config, query, f"{name}.query_norm")
        key = _norm(builder, config, key, f"{name}.key_norm")
    if rotary is not None:
        query, key = rotate(builder, query, rotary), rotate(builder, key, rotary)
    return query, key, split_heads(builder, value, kv_heads)


def _feed_forward(builder: Builder, config: TransformerConfig, x: Value, name: str) -> Value:
    builder.origin = name
    if config.experts is not None:
        y = mixture(builder, x, name, config.experts, config.activation, gated=config.gated)
    elif config.gated:
        y = gated_feed_forward(
            builder, x, name, config.ffn_width, config.activation, bias=config.ffn_bias
        )
    else:
        up = linear(builder, x, f"{name}.up", config.ffn_width, bias=config.ffn_bias)
        inner = builder.add(ACTIVATIONS[config.activation], up)
        inner = drop(builder, inner, config.inner_dropout)
        y = linear(builder, inner, f"{name}.down", config.hidden, bias=config.ffn_bias)
    return drop(builder, y, config.dropout)


def _norm(builder: Builder, config: TransformerConfig, x: Value, name: str) -> Value:
    return normalize(builder, x, name, config.norm, config.norm_epsilon, bias=config.norm_bias)


def _head(builder: Builder, config: TransformerConfig, x: Value, tokens: Value) -> Value:
    """Logits `[batch, sequence, vocabulary]`."""
    if config.head_transform:
        x = linear(builder, x, "head.transform", config.hidden)
        x = builder.add(ACTIVATIONS[config.activation], x)
        x = _norm(builder, config, x, "head.norm")
    if not config.tied_embeddings:
        return linear(builder, x, "head", config.vocabulary, bias=config.head_bias)
    logits = builder.add(MatMul(), x, builder.add(Transpose((1, 0)), tokens), name="logits")
    if not config.head_bias:
        return logits
    return builder.add(Add(), logits, builder.parameter("head.bias", (config.vocabulary,)))
