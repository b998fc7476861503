"""`config.json` of GPT-2 and of other decoders with layer norms: StarCoder, GPT-J, GPT-NeoX, Phi,
Falcon, StableLM, Command R, OPT."""

from __future__ import annotations

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
)
from distir.models.transformer import TransformerConfig


@MODEL_TYPES.register("gpt2")
def _gpt2(name: str, fields: Fields) -> TransformerConfig:
    return _like_gpt2(name, fields, dropout=0.1)


def _like_gpt2(name: str, fields: Fields, dropout: float) -> TransformerConfig:
    """`dropout` is what a file means that says nothing of it."""
    config = TransformerConfig(
        name=name,
        layers=fields.count("n_layer"),
        hidden=fields.count("n_embd"),
        heads=fields.count("n_head"),
        ffn=fields.count("n_inner", 0),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("n_positions"),
        norm_epsilon=fields.epsilon("layer_norm_epsilon", 1e-5),
        activation=fields.activation("activation_function", "gelu_new"),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
    )
    of_layers = fields.number("resid_pdrop", dropout)
    return dropping(
        config,
        fields,
        ("resid_pdrop", dropout),
        ("attn_pdrop", dropout),
        ("embd_pdrop", of_layers),
    )


@MODEL_TYPES.register("gpt_bigcode")
def _gpt_bigcode(name: str, fields: Fields) -> TransformerConfig:
    config = replace(
        _gpt2(name, fields),
        activation=fields.activation("activation_function", "gelu_pytorch_tanh"),
    )
    if not fields.flag("multi_query", True):
        return config
    return replace(config, kv_heads=1, fused_qkv=False)


@MODEL_TYPES.register("gptj")
def _gptj(name: str, fields: Fields) -> TransformerConfig:
    config = _like_gpt2(name, fields, dropout=0.0)
    rotated = fields.count("rotary_dim", 64)
    if rotated > config.depth:
        raise fields.error(f"rotary_dim is {rotated}; expected at most a head's {config.depth}")
    return replace(
        config,
        parallel=True,
        shared_norm=True,
        learned_positions=False,
        rotary_fraction=rotated / config.depth,
        fused_qkv=False,
        qkv_bias=False,
        output_bias=False,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        head_bias=True,
    )


def _decoder(name: str, fields: Fields) -> TransformerConfig:
    """A decoder with rotary embedding and the names of fields that most have."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    return TransformerConfig(
        name=name,
        layers=fields.count("num_hidden_layers"),
        hidden=fields.count("hidden_size"),
        heads=heads,
        kv_heads=kv_heads,
        ffn=fields.count("intermediate_size"),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings"),
        learned_positions=False,
        rotary_fraction=1.0,
        rotary_base=rotary_base(fields, "rope_theta"),
        fused_qkv=False,
    )


@MODEL_TYPES.register("phi")
def _phi(name: str, fields: Fields) -> TransformerConfig:
    fields.only("qk_layernorm", False)
    config = replace(
        _decoder(name, fields),
        norm_epsilon=fields.epsilon("layer_norm_eps", 1e-5),
        parallel=True,
        shared_norm=True,
        rotary_fraction=rotary_fraction(fields, "partial_rotary_factor", 0.5),
        activation=fields.activation("hidden_act", "gelu_new"),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        head_bias=True,
    )
    of_embedding = ("embd_pdrop", 0.0)
    layers, weights = ("resid_pdrop", 0.0), ("attention_dropout", 0.0)
    return dropping(config, fields, layers, weights, of_embedding)


@MODEL_TYPES.register("starcoder2")
def _starcoder2(name: str, fields: Fields) -> TransformerConfig:
    bias = fields.flag("use_bias", True)
    config = replace(
        _decoder(name, fields),
        norm_epsilon=fields.epsilon("norm_epsilon", 1e-5),
        activation=fields.activation("hidden_act", "gelu_pytorch_tanh"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        windows=attention_windows(fields, usual=0, listed=False),
    )
    of_embedding = ("embedding_dropout", 0.0)
    layers, weights = ("residual_dropout", 0.0), ("attention_dropout", 0.0)
    return dropping(config, fields, layers, weights, of_embedding)


@MODEL_TYPES.register("stablelm")
def _stablelm(name: str, fields: Fields) -> TransformerConfig:
    fields.only("qk_layernorm", False)
    parallel = fields.flag("use_parallel_residual", False)
    config = replace(
        _decoder(name, fields),
        norm_epsilon=fields.epsilon("layer_norm_eps", 1e-5),
        parallel=parallel,
        shared_norm=parallel,
        rotary_fraction=rotary_fraction(fields, "partial_rotary_factor", 0.25),
        activation=fields.activation("hidden_act", "silu"),
        gated=True,
        qkv_bias=fields.flag("use_qkv_bias", False),
        output_bias=False,
        ffn_bias=False,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
    )
    return dropping(config, fields, ("hidden_dropout", 0.0), ("attention_dropout", 0.0))


@MODEL_TYPES.register("cohere")
def _cohere(name: str, fields: Fields) -> TransformerConfig:
    fields.only("use_qk_norm", False)
    bias = fields.flag("attention_bias", False)
    notes: tuple[str, ...] = ()
    if fields.number("logit_scale", 0.0625) != 1:
        notes = ("logits are not scaled; the model's logit_scale is not applied",)
    return replace(
        _decoder(name, fields),
        norm_epsilon=fields.epsilon("layer_norm_eps", 1e-5),
        norm_bias=False,
        parallel=True,
        shared_norm=True,
        activation=fields.activation("hidden_act", "silu"),
        gated=True,
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=False,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        attention_dropout=fields.number("attention_dropout", 0.0) or None,
        notes=notes,
    )


@MODEL_TYPES.register("cohere2")
def _cohere2(name: str, fields: Fields) -> TransformerConfig:
    base = _cohere(name, fields)
    windows = attention_windows(fields, but_every(fields, 4))
    return replace(
        base,
        head_dim=fields.count("head_dim", 128),
        windows=windows,
        notes=(*base.notes, *rotation_notes(windows)),
    )


@MODEL_TYPES.register("falcon")
def _falcon(name: str, fields: Fields) -> TransformerConfig:
    """Falcon as of 40B has a new decoder: as many heads of keys as it says, and two norms."""
    fields.only("alibi", False)
    newer = fields.flag("new_decoder_architecture", False)
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    few = 1 if fields.flag("multi_query", True) else heads
    parallel = newer or fields.flag("parallel_attn", True)
    norms = fields.count("num_ln_in_parallel_attn", 2) if newer else 1
    bias = fields.flag("bias", False)
    config = TransformerConfig(
        name=name,
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.count("num_kv_heads", heads) if newer else few,
        ffn=fields.count("ffn_hidden_size", 4 * hidden),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings", 2048),
        norm_epsilon=fields.epsilon("layer_norm_epsilon", 1e-5),
        parallel=parallel,
        shared_norm=parallel and norms == 1,
        learned_positions=False,
        rotary_fraction=1.0,
        rotary_base=rotary_base(fields, "rope_theta"),
        activation=fields.activation("activation", "gelu"),
        fused_qkv=False,
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
    )
    return dropping(config, fields, ("hidden_dropout", 0.0), ("attention_dropout", 0.0))


@MODEL_TYPES.register("gpt_neox")
def _gpt_neox(name: str, fields: Fields) -> TransformerConfig:
    bias = fields.flag("attention_bias", True)
    config = TransformerConfig(
        name=name,
        layers=fields.count("num_hidden_layers"),
        hidden=fields.count("hidden_size"),
        heads=fields.count("num_attention_heads"),
        ffn=fields.count("intermediate_size"),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings"),
        norm_epsilon=fields.epsilon("layer_norm_eps", 1e-5),
        parallel=fields.flag("use_parallel_residual", True),
        learned_positions=False,
        rotary_fraction=rotary_fraction(fields, "rotary_pct", 0.25),
        rotary_base=rotary_base(fields, "rotary_emb_base"),
        activation=fields.activation("hidden_act", "gelu"),
        qkv_bias=bias,
        output_bias=bias,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
    )
    return dropping(config, fields, ("hidden_dropout", 0.0), ("attention_dropout", 0.0))


@MODEL_TYPES.register("opt")
def _opt(name: str, fields: Fields) -> TransformerConfig:
    hidden = fields.count("hidden_size")
    embedded = fields.count("word_embed_proj_dim", hidden)
    if embedded != hidden:
        raise fields.error(
            f"word_embed_proj_dim ({embedded}) differs from hidden_size ({hidden}), which is not "
            "supported; an ONNX export of the model works"
        )
    bias = fields.flag("enable_bias", True)
    config = TransformerConfig(
        name=name,
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        heads=fields.count("num_attention_heads"),
        ffn=fields.count("ffn_dim"),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings"),
        position_offset=2,
        norm_first=fields.flag("do_layer_norm_before", True),
        activation=fields.activation("activation_function", "relu"),
        fused_qkv=False,
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
    )
    return dropping(config, fields, ("dropout", 0.1), ("attention_dropout", 0.0))
