"""Multi-head latent attention: keys and values come from a low-rank latent (DeepSeek-AI 2024,
section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass

from distir.errors import ImportModelError
from distir.ir import Builder, Value
from distir.models.layers import linear, normalize, rotate, split_heads
from distir.models.sizes import check_sizes
from distir.ops.tensor import Concat, Expand, Reshape, Split, Transpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Ranks of the latents, and widths of the parts of a head."""

    query_rank: int
    """Rank of the latent of queries; 0: queries come straight from the input."""
    key_rank: int
    """Rank of the latent that keys and values share."""
    plain_dim: int
    """Width of the part of a query or key without positions."""
    rotary_dim: int
    """Width of the part with rotary positions; all heads share that part of the keys."""
    value_dim: int
    """Width of a value."""

    def __post_init__(self) -> None:
        check_sizes(
            self,
            "latent attention",
            needed=("key_rank", "plain_dim", "rotary_dim", "value_dim"),
        )
        if self.rotary_dim % 2:
            raise ImportModelError(
                f"latent attention: the part of a head with rotary positions (qk_rope_head_dim) is "
                f"{self.rotary_dim} wide; expected an even number, as they turn pairs of elements"
            )


def latent_queries_keys_values(
    builder: Builder,
    x: Value,
    name: str,
    latent: Latent,
    heads: int,
    rotary: tuple[Value, Value],
    epsilon: float,
    *,
    bias: bool,
) -> tuple[Value, Value, Value]:
    """Queries and keys `[batch, heads, sequence, plain + rotary]`, and values
    `[batch, heads, sequence, value]`, from `x`, `[batch, sequence, hidden]`. With `bias`, the
    products that make the latents have biases."""
    plain, turned = latent.plain_dim, latent.rotary_dim
    query = x
    if latent.query_rank:
        query = linear(builder, x, f"{name}.query_down", latent.query_rank, bias=bias)
        query = normalize(builder, query, f"{name}.query_norm", "rms", epsilon)
    query = linear(builder, query, f"{name}.query", heads * (plain + turned), bias=False)
    query = split_heads(builder, query, heads)
    query, query_turned = builder.apply(Split(-1, (plain, turned)), query)
    query = builder.add(Concat(-1), query, rotate(builder, query_turned, rotary))

    joined = linear(builder, x, f"{name}.key_down", latent.key_rank + turned, bias=bias)
    low, key_turned = builder.apply(Split(-1, (latent.key_rank, turned)), joined)
    low = normalize(builder, low, f"{name}.key_norm", "rms", epsilon)
    both = linear(builder, low, f"{name}.key_value", heads * (plain + latent.value_dim), bias=False)
    both = split_heads(builder, both, heads)
    key, value = builder.apply(Split(-1, (plain, latent.value_dim)), both)
    batch, sequence, _ = x.type.shape
    key_turned = builder.add(Reshape((batch, sequence, 1, turned)), key_turned)
    key_turned = rotate(builder, builder.add(Transpose((0, 2, 1, 3)), key_turned), rotary)
    key_turned = builder.add(Expand((batch, heads, sequence, turned)), key_turned)
    return query, builder.add(Concat(-1), key, key_turned), value
