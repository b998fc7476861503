"""`config.json` of LLaMA and of families that came of it, with RMS norms and gated feed-forward
parts: Mistral, Mixtral, GPT-OSS, Qwen, Gemma, Phi-3, OLMo, GLM, DeepSeek."""

from __future__ import annotations

import math
from dataclasses import replace

from distir.importers.config_fields import (
    MODEL_TYPES,
    Fields,
    dropping,
    rotary_base,
    rotary_fraction,
    window_notes,
)
from distir.models.experts import Experts
from distir.models.latent import Latent
from distir.models.transformer import TransformerConfig, llama_config

_WAYS_TO_CHOOSE = ("greedy", "group_limited_greedy", "noaux_tc")
"""How DeepSeek's routers choose experts: among all, among those of the best groups, or so with
scores that are corrected by how much experts were chosen."""


@MODEL_TYPES.register("llama")
@MODEL_TYPES.register("mistral")
def _llama(name: str, fields: Fields) -> TransformerConfig:
    return _like_llama(name, fields)


def _like_llama(name: str, fields: Fields, head_dim: int = 0) -> TransformerConfig:
    """`head_dim` is what a file means that says nothing of it; 0: the width over the heads."""
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
        norm_epsilon=fields.epsilon("rms_norm_eps", 1e-6),
        rotary_base=rotary_base(fields, "rope_theta"),
        activation=fields.activation("hidden_act", "silu"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=fields.flag("mlp_bias", False),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_dropout=fields.number("attention_dropout", 0.0) or None,
        notes=window_notes(fields),
    )


@MODEL_TYPES.register("qwen2")
def _qwen2(name: str, fields: Fields) -> TransformerConfig:
    fields.only("mlp_bias", False)
    return replace(_llama(name, fields), qkv_bias=True)


@MODEL_TYPES.register("qwen3")
def _qwen3(name: str, fields: Fields) -> TransformerConfig:
    fields.only("mlp_bias", False)
    return replace(_llama(name, fields), qk_norm=True)


@MODEL_TYPES.register("phi3")
def _phi3(name: str, fields: Fields) -> TransformerConfig:
    for option in ("attention_bias", "mlp_bias"):
        fields.only(option, False)
    part = rotary_fraction(fields, "partial_rotary_factor", 1.0)
    config = replace(_llama(name, fields), rotary_fraction=part)
    layers, weights = ("resid_pdrop", 0.0), ("attention_dropout", 0.0)
    return dropping(config, fields, layers, weights, ("embd_pdrop", 0.0))


@MODEL_TYPES.register("gemma")
def _gemma(name: str, fields: Fields) -> TransformerConfig:
    """Gemma's norms scale by 1 plus their weights, which are as many."""
    fields.only("mlp_bias", False)
    base = _like_llama(name, fields, head_dim=256)
    return replace(
        base,
        causal=not fields.flag("use_bidirectional_attention", False),
        activation=fields.activation("hidden_activation", "gelu_pytorch_tanh"),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
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
    return replace(base, part_norms=True, notes=(*base.notes, *notes))


@MODEL_TYPES.register("gemma3_text")
def _gemma3(name: str, fields: Fields) -> TransformerConfig:
    return replace(_gemma2(name, fields), qk_norm=True)


@MODEL_TYPES.register("olmo2")
def _olmo2(name: str, fields: Fields) -> TransformerConfig:
    fields.only("mlp_bias", False)
    base = replace(_llama(name, fields), norm_first=False, part_norms=True, qk_norm_joint=True)
    return replace(base, norm_epsilon=fields.epsilon("rms_norm_eps", 1e-5))


@MODEL_TYPES.register("olmoe")
def _olmoe(name: str, fields: Fields) -> TransformerConfig:
    fields.only("clip_qkv", None)
    experts = Experts(
        count=fields.count("num_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn=fields.count("intermediate_size"),
        normalized=fields.flag("norm_topk_prob", False),
    )
    base = replace(_llama(name, fields), qk_norm_joint=True, experts=experts)
    return replace(base, norm_epsilon=fields.epsilon("rms_norm_eps", 1e-5))


@MODEL_TYPES.register("mixtral")
def _mixtral(name: str, fields: Fields) -> TransformerConfig:
    fields.only("attention_bias", False)
    return replace(
        _llama(name, fields),
        experts=Experts(
            count=fields.count("num_local_experts"),
            top_k=fields.count("num_experts_per_tok"),
            ffn=fields.count("intermediate_size"),
        ),
    )


@MODEL_TYPES.register("gpt_oss")
def _gpt_oss(name: str, fields: Fields) -> TransformerConfig:
    """Of the scores of experts those of the chosen ones alone go through the softmax, which is the
    same as to make their weights add up to 1."""
    base = _llama(name, fields)
    bias = fields.flag("attention_bias", True)
    notes = ["attention has no sinks, of which each head of the model has one"]
    if fields.number("swiglu_limit", 7.0):
        notes.append("activations have no limit; the model's swiglu_limit is not applied")
    experts = Experts(
        count=fields.count("num_local_experts"),
        top_k=fields.count("num_experts_per_tok", fields.integer("experts_per_token", 4)),
        ffn=fields.count("intermediate_size"),
        biases=True,
    )
    return replace(
        base,
        norm_epsilon=fields.epsilon("rms_norm_eps", 1e-5),
        qkv_bias=bias,
        output_bias=bias,
        experts=experts,
        notes=(*base.notes, *notes),
    )


@MODEL_TYPES.register("qwen2_moe")
def _qwen2_moe(name: str, fields: Fields) -> TransformerConfig:
    experts = replace(
        _qwen_experts(fields),
        shared_ffn=fields.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    bias = fields.flag("qkv_bias", True)
    return replace(_llama(name, fields), qkv_bias=bias, experts=experts)


@MODEL_TYPES.register("qwen3_moe")
def _qwen3_moe(name: str, fields: Fields) -> TransformerConfig:
    return replace(_qwen3(name, fields), experts=_qwen_experts(fields))


def _qwen_experts(fields: Fields) -> Experts:
    if fields.integer("decoder_sparse_step", 1) != 1 or fields.has("mlp_only_layers"):
        raise fields.error(
            "a mix of layers with and without experts (decoder_sparse_step, mlp_only_layers) is "
            "not supported; an ONNX export of the model works"
        )
    # Files of transformers 5 have another name for it.
    count = fields.count("num_local_experts" if fields.has("num_local_experts") else "num_experts")
    return Experts(
        count=count,
        top_k=fields.count("num_experts_per_tok"),
        ffn=fields.count("moe_intermediate_size"),
        normalized=fields.flag("norm_topk_prob", False),
    )


@MODEL_TYPES.register("deepseek_v2")
def _deepseek_v2(name: str, fields: Fields) -> TransformerConfig:
    return _deepseek(name, fields, scoring="softmax", choosing="greedy")


@MODEL_TYPES.register("deepseek_v3")
@MODEL_TYPES.register("kimi_k2")
def _deepseek_v3(name: str, fields: Fields) -> TransformerConfig:
    return _deepseek(name, fields, scoring="sigmoid", choosing="noaux_tc")


def _deepseek(name: str, fields: Fields, *, scoring: str, choosing: str) -> TransformerConfig:
    """The configuration; files of transformers leave out how scores are made and experts chosen."""
    if fields.integer("moe_layer_freq", 1) != 1:
        raise fields.error("moe_layer_freq other than 1 is not supported; an ONNX export works")
    fields.only("mlp_bias", False)
    base = _llama(name, fields)
    latent = Latent(
        query_rank=fields.integer("q_lora_rank", 0),
        key_rank=fields.count("kv_lora_rank"),
        plain_dim=fields.count("qk_nope_head_dim"),
        rotary_dim=fields.count("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
    )
    experts = _deepseek_experts(fields, scoring=scoring, choosing=choosing)
    notes = (*base.notes, *_prediction_notes(fields))
    return replace(base, experts=experts, latent=latent, notes=notes)


def _deepseek_experts(
    fields: Fields,
    *,
    scoring: str,
    choosing: str,
    normalized: bool = False,
    shared: int = 0,
    dense: int = 0,
) -> Experts:
    """The mixture, with what a file means that leaves fields out."""
    choosing = fields.choice("topk_method", _WAYS_TO_CHOOSE, choosing)
    scoring = fields.choice("scoring_func", ("sigmoid", "softmax"), scoring)
    corrected, grouped = choosing == "noaux_tc", choosing != "greedy"
    width = fields.count("moe_intermediate_size")
    return Experts(
        count=fields.count("n_routed_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn=width,
        scoring="sigmoid" if scoring == "sigmoid" else "softmax",
        normalized=fields.flag("norm_topk_prob", normalized),
        scale=fields.number("routed_scaling_factor", 1.0),
        corrected=corrected,
        shared_ffn=width * fields.integer("n_shared_experts", shared),
        dense_layers=fields.integer("first_k_dense_replace", dense),
        groups=fields.count("n_group", 1) if grouped else 1,
        chosen_groups=fields.count("topk_group", 1) if grouped else 1,
        group_best=2 if corrected else 1,
    )


def _prediction_notes(fields: Fields) -> tuple[str, ...]:
    if not fields.integer("num_nextn_predict_layers", 0):
        return ()
    return ("layers that predict further tokens (num_nextn_predict_layers) are left out",)


_OF_GLM = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
"""How GLM's routers score and choose, which its files need not say."""


@MODEL_TYPES.register("glm4_moe")
def _glm4_moe(name: str, fields: Fields) -> TransformerConfig:
    for option, value in (("mlp_bias", False), *_OF_GLM.items()):
        fields.only(option, value)
    base = _llama(name, fields)
    return replace(
        base,
        norm_epsilon=fields.epsilon("rms_norm_eps", 1e-5),
        rotary_fraction=rotary_fraction(fields, "partial_rotary_factor", 0.5),
        output_bias=False,
        qk_norm=fields.flag("use_qk_norm", False),
        experts=_deepseek_experts(
            fields, scoring="sigmoid", choosing="noaux_tc", normalized=True, shared=1, dense=1
        ),
        notes=(*base.notes, *_prediction_notes(fields)),
    )
