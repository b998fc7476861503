"""`config.json` of LLaMA and of families that came of it, with RMS norms and gated feed-forward
parts: Mistral, Qwen, Gemma, Phi-3, OLMo, Granite, SmolLM, GLM and others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from distir.importers.config_fields import (
    MODEL_TYPES,
    Fields,
    attention_windows,
    but_every,
    dropping,
    rotary_base,
    rotary_fraction,
    rotation_notes,
    unrotated_notes,
)
from distir.models.transformer import TransformerConfig, llama_config


@MODEL_TYPES.register("llama")
def _llama(name: str, fields: Fields) -> TransformerConfig:
    return like_llama(name, fields)


@MODEL_TYPES.register("mistral")
def _mistral(name: str, fields: Fields) -> TransformerConfig:
    return replace(like_llama(name, fields), windows=attention_windows(fields, listed=False))


@MODEL_TYPES.register("ministral")
def _ministral(name: str, fields: Fields) -> TransformerConfig:
    return replace(like_llama(name, fields), windows=attention_windows(fields))


@MODEL_TYPES.register("ministral3")
def _ministral3(name: str, fields: Fields) -> TransformerConfig:
    return replace(like_llama(name, fields), windows=attention_windows(fields, usual=0))


def like_llama(
    name: str,
    fields: Fields,
    *,
    head_dim: int = 0,
    epsilon: float = 1e-6,
    tied: bool = False,
) -> TransformerConfig:
    """A model as in LLaMA's files. What a file means that says nothing of it: `head_dim` the width
    of heads (0: the model's over the heads), `epsilon` of norms, `tied` whether the head has the
    embedding's table."""
    heads = fields.count("num_attention_heads")
    base = llama_config(
        name,
        layers=fields.count("num_hidden_layers"),
        hidden=fields.count("hidden_size"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", head_dim),
        ffn=fields.count("intermediate_size"),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings"),
    )
    bias = fields.flag("attention_bias", False)
    return replace(
        base,
        norm_epsilon=fields.epsilon("rms_norm_eps", epsilon),
        rotary_base=rotary_base(fields, "rope_theta"),
        activation=fields.activation("hidden_act", "silu"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=fields.flag("mlp_bias", False),
        tied_embeddings=fields.flag("tie_word_embeddings", tied),
        attention_dropout=fields.number("attention_dropout", 0.0) or None,
    )


@MODEL_TYPES.register("qwen2")
def _qwen2(name: str, fields: Fields) -> TransformerConfig:
    fields.only("mlp_bias", False)
    windows = attention_windows(fields, behind(fields, 28), used=False)
    return replace(like_llama(name, fields), qkv_bias=True, windows=windows)


def behind(fields: Fields, usual: int) -> Callable[[int], bool]:
    """All layers but the first ones, as many as `max_window_layers` has it."""
    first = fields.integer("max_window_layers", usual)
    return lambda layer: layer >= first


@MODEL_TYPES.register("qwen3")
def _qwen3(name: str, fields: Fields) -> TransformerConfig:
    fields.only("mlp_bias", False)
    windows = attention_windows(fields, behind(fields, 28), used=False)
    return replace(like_llama(name, fields), qk_norm=True, windows=windows)


@MODEL_TYPES.register("phi3")
def _phi3(name: str, fields: Fields) -> TransformerConfig:
    for option in ("attention_bias", "mlp_bias"):
        fields.only(option, False)
    part = rotary_fraction(fields, "partial_rotary_factor", 1.0)
    config = replace(
        like_llama(name, fields, epsilon=1e-5),
        rotary_fraction=part,
        windows=attention_windows(fields, usual=0, listed=False),
    )
    layers, weights = ("resid_pdrop", 0.0), ("attention_dropout", 0.0)
    return dropping(config, fields, layers, weights, ("embd_pdrop", 0.0))


@MODEL_TYPES.register("gemma")
def _gemma(name: str, fields: Fields) -> TransformerConfig:
    """Gemma's norms scale by 1 plus their weights, which are as many."""
    fields.only("mlp_bias", False)
    base = like_llama(name, fields, head_dim=256, tied=True)
    return replace(
        base,
        causal=not fields.flag("use_bidirectional_attention", False),
        activation=fields.activation("hidden_activation", "gelu_pytorch_tanh"),
        embedding_scale=math.sqrt(base.hidden),
    )


@MODEL_TYPES.register("gemma2")
def _gemma2(name: str, fields: Fields) -> TransformerConfig:
    capped = {"attn_logit_softcapping": "attention scores", "final_logit_softcapping": "logits"}
    notes = [
        f"{what} are not capped; the model's {option} is not applied"
        for option, what in capped.items()
        if fields.has(option)
    ]
    base = _gemma(name, fields)
    return replace(
        base,
        part_norms=True,
        windows=attention_windows(fields, but_every(fields, 2)),
        notes=(*base.notes, *notes),
    )


@MODEL_TYPES.register("gemma3_text")
def _gemma3(name: str, fields: Fields) -> TransformerConfig:
    windows = attention_windows(fields, but_every(fields, 6))
    return replace(_gemma2(name, fields), qk_norm=True, windows=windows)


@MODEL_TYPES.register("olmo2")
def _olmo2(name: str, fields: Fields) -> TransformerConfig:
    return replace(_behind(name, fields), qk_norm_joint=True)


@MODEL_TYPES.register("olmo3")
def _olmo3(name: str, fields: Fields) -> TransformerConfig:
    return replace(_olmo2(name, fields), windows=attention_windows(fields, but_every(fields, 4)))


@MODEL_TYPES.register("exaone4")
def _exaone4(name: str, fields: Fields) -> TransformerConfig:
    windows = attention_windows(fields, but_every(fields, 4))
    notes = rotation_notes(windows)
    return replace(_behind(name, fields), qk_norm=True, windows=windows, notes=notes)


def _behind(name: str, fields: Fields) -> TransformerConfig:
    """Norms stand behind attention and feed-forward, and none before."""
    fields.only("mlp_bias", False)
    return replace(like_llama(name, fields, epsilon=1e-5), norm_first=False, part_norms=True)


@MODEL_TYPES.register("granite")
def _granite(name: str, fields: Fields) -> TransformerConfig:
    return granite_scaled(like_llama(name, fields), fields)


def granite_scaled(config: TransformerConfig, fields: Fields) -> TransformerConfig:
    """The configuration of a Granite with the factors of its files, as far as they are applied."""
    left_out = {"residual_multiplier": "results of layers", "logits_scaling": "logits"}
    notes = [
        f"{what} are not scaled; the model's {option} is not applied"
        for option, what in left_out.items()
        if fields.number(option, 1.0) != 1
    ]
    scale = fields.number("embedding_multiplier", 1.0)
    return replace(config, embedding_scale=scale, notes=(*config.notes, *notes))


@MODEL_TYPES.register("smollm3")
def _smollm3(name: str, fields: Fields) -> TransformerConfig:
    listed, every = fields.integers("no_rope_layers"), fields.count("no_rope_layer_interval", 4)

    def is_rotated(layer: int) -> bool:
        return bool(listed[layer % len(listed)]) if listed else (layer + 1) % every > 0

    windows = attention_windows(fields, lambda layer: not is_rotated(layer), used=False, usual=0)
    base = like_llama(name, fields, tied=True)
    return replace(base, windows=windows, notes=(*base.notes, *unrotated_notes(fields)))


@MODEL_TYPES.register("seed_oss")
def _seed_oss(name: str, fields: Fields) -> TransformerConfig:
    config = replace(
        like_llama(name, fields, head_dim=128),
        qkv_bias=fields.flag("attention_bias", True),
        output_bias=fields.flag("attention_out_bias", False),
    )
    return dropping(config, fields, ("residual_dropout", 0.1), ("attention_dropout", 0.1))


@MODEL_TYPES.register("ernie4_5")
def _ernie(name: str, fields: Fields) -> TransformerConfig:
    return like_ernie(name, fields, head_dim=128)


def like_ernie(name: str, fields: Fields, *, head_dim: int = 0) -> TransformerConfig:
    """A model as in ERNIE's files; see `like_llama`."""
    bias = fields.flag("use_bias", False)
    base = like_llama(name, fields, head_dim=head_dim, epsilon=1e-5, tied=True)
    return replace(base, qkv_bias=bias, output_bias=bias, ffn_bias=bias)


@MODEL_TYPES.register("glm")
def _glm(name: str, fields: Fields) -> TransformerConfig:
    fields.only("mlp_bias", False)
    return replace(
        like_llama(name, fields, head_dim=128, epsilon=1.5625e-7),
        rotary_fraction=rotary_fraction(fields, "partial_rotary_factor", 0.5),
        qkv_bias=fields.flag("attention_bias", True),
        output_bias=False,
    )


@MODEL_TYPES.register("glm4")
def _glm4(name: str, fields: Fields) -> TransformerConfig:
    return replace(_glm(name, fields), part_norms=True)
