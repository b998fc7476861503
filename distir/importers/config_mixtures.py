"""`config.json` of mixtures of experts with RMS norms: Mixtral, Llama 4, GPT-OSS, Qwen, OLMoE,
Granite, DeepSeek, Kimi, GLM, dots.llm1, MiniMax-M2, ERNIE."""

from __future__ import annotations

from dataclasses import replace

from distir.importers.config_fields import (
    MODEL_TYPES,
    Fields,
    attention_windows,
    but_every,
    rotary_fraction,
    unrotated_notes,
)
from distir.importers.config_llama import behind, granite_scaled, like_ernie, like_llama
from distir.models.experts import Experts
from distir.models.latent import Latent
from distir.models.transformer import TransformerConfig

_WAYS_TO_CHOOSE = ("greedy", "group_limited_greedy", "noaux_tc")
"""How DeepSeek's routers choose experts: among all, among those of the best groups, or so with
scores that are corrected by how much experts were chosen."""

_PREDICTING = ("num_nextn_predict_layers", "num_mtp_modules")
"""Names of the number of layers that predict further tokens."""


@MODEL_TYPES.register("olmoe")
def _olmoe(name: str, fields: Fields) -> TransformerConfig:
    fields.only("clip_qkv", None)
    experts = Experts(
        count=fields.count("num_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn=fields.count("intermediate_size"),
        normalized=fields.flag("norm_topk_prob", False),
    )
    base = like_llama(name, fields, epsilon=1e-5)
    return replace(base, qk_norm_joint=True, experts=experts)


@MODEL_TYPES.register("mixtral")
def _mixtral(name: str, fields: Fields) -> TransformerConfig:
    fields.only("attention_bias", False)
    return replace(
        like_llama(name, fields, epsilon=1e-5),
        experts=_few_experts(fields),
        windows=attention_windows(fields, usual=0, listed=False),
    )


def _few_experts(fields: Fields) -> Experts:
    return Experts(
        count=fields.count("num_local_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn=fields.count("intermediate_size"),
    )


@MODEL_TYPES.register("granitemoe")
def _granite_moe(name: str, fields: Fields) -> TransformerConfig:
    fields.only("mlp_bias", False)
    base = replace(like_llama(name, fields), experts=_few_experts(fields))
    return granite_scaled(base, fields)


@MODEL_TYPES.register("minimax_m2")
def _minimax_m2(name: str, fields: Fields) -> TransformerConfig:
    """The last `rotary_dim` of older files is in newer ones a part of heads."""
    base = like_llama(name, fields, head_dim=128)
    part = rotary_fraction(fields, "partial_rotary_factor", 1.0)
    rotated = fields.count("rotary_dim", 0)
    experts = replace(_few_experts(fields), scoring="sigmoid", corrected=True)
    return replace(
        base,
        rotary_fraction=rotated / base.depth if rotated else part,
        qk_norm_joint=True,
        experts=experts,
        notes=(*base.notes, *_prediction_notes(fields)),
    )


@MODEL_TYPES.register("gpt_oss")
def _gpt_oss(name: str, fields: Fields) -> TransformerConfig:
    """Of the scores of experts those of the chosen ones alone go through the softmax, which is the
    same as to make their weights add up to 1."""
    base = like_llama(name, fields, head_dim=64, epsilon=1e-5)
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
        qkv_bias=bias,
        output_bias=bias,
        experts=experts,
        windows=attention_windows(fields, but_every(fields, 2), usual=128),
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
    first = fields.integer("max_window_layers", 28)
    windows = attention_windows(fields, lambda layer: layer < first and layer % 2 == 0, used=False)
    return replace(like_llama(name, fields), qkv_bias=bias, experts=experts, windows=windows)


@MODEL_TYPES.register("qwen3_moe")
def _qwen3_moe(name: str, fields: Fields) -> TransformerConfig:
    fields.only("mlp_bias", False)
    return replace(
        like_llama(name, fields),
        qk_norm=True,
        experts=_qwen_experts(fields),
        windows=attention_windows(fields, used=False, listed=False),
    )


def _qwen_experts(fields: Fields) -> Experts:
    if fields.has("mlp_only_layers"):
        raise fields.error(
            "layers without experts that are listed (mlp_only_layers) are not supported; an ONNX "
            "export of the model works"
        )
    every = fields.count("decoder_sparse_step", 1)
    # Files of transformers 5 have another name for it.
    count = fields.count("num_local_experts" if fields.has("num_local_experts") else "num_experts")
    return Experts(
        count=count,
        top_k=fields.count("num_experts_per_tok"),
        ffn=fields.count("moe_intermediate_size"),
        normalized=fields.flag("norm_topk_prob", False),
        dense_layers=every - 1,
        every=every,
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
    fields.only("mlp_bias", False)
    latent = Latent(
        query_rank=fields.integer("q_lora_rank", 0),
        key_rank=fields.count("kv_lora_rank"),
        plain_dim=fields.count("qk_nope_head_dim"),
        rotary_dim=fields.count("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
    )
    base = like_llama(name, fields, head_dim=latent.rotary_dim)
    experts = _deepseek_experts(fields, scoring=scoring, choosing=choosing)
    notes = (*base.notes, *_prediction_notes(fields))
    return replace(base, experts=experts, latent=latent, head_dim=0, notes=notes)


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
    corrected = choosing == "noaux_tc"
    groups = 1 if choosing == "greedy" else fields.count("n_group", 1)
    width, every = fields.count("moe_intermediate_size"), fields.count("moe_layer_freq", 1)
    dense_layers = fields.integer("first_k_dense_replace", dense)
    return Experts(
        count=fields.count("n_routed_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn=width,
        scoring="sigmoid" if scoring == "sigmoid" else "softmax",
        normalized=fields.flag("norm_topk_prob", normalized),
        scale=fields.number("routed_scaling_factor", 1.0),
        corrected=corrected,
        shared_ffn=width * fields.integer("n_shared_experts", shared),
        dense_layers=dense_layers + -dense_layers % every,
        every=every,
        groups=groups,
        chosen_groups=fields.count("topk_group", 1) if groups > 1 else 1,
        group_best=2 if corrected and groups > 1 else 1,
    )


def _prediction_notes(fields: Fields) -> tuple[str, ...]:
    left_out = [each for each in _PREDICTING if fields.integer(each, 0)]
    return tuple(f"layers that predict further tokens ({each}) are left out" for each in left_out)


_OF_GLM = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
"""How GLM's routers score and choose, which its files need not say."""


@MODEL_TYPES.register("glm4_moe")
def _glm4_moe(name: str, fields: Fields) -> TransformerConfig:
    for option, value in (("mlp_bias", False), *_OF_GLM.items()):
        fields.only(option, value)
    base = like_llama(name, fields, epsilon=1e-5)
    return replace(
        base,
        rotary_fraction=rotary_fraction(fields, "partial_rotary_factor", 0.5),
        output_bias=False,
        qk_norm=fields.flag("use_qk_norm", False),
        experts=_deepseek_experts(
            fields, scoring="sigmoid", choosing="noaux_tc", normalized=True, shared=1, dense=1
        ),
        notes=(*base.notes, *_prediction_notes(fields)),
    )


@MODEL_TYPES.register("dots1")
def _dots1(name: str, fields: Fields) -> TransformerConfig:
    """Published files call the way of scoring by the name of the way of choosing."""
    fields.choice("scoring_func", ("noaux_tc", "sigmoid"), "sigmoid")
    as_meant = fields.completed({}, {"scoring_func": "sigmoid"})
    experts = _deepseek_experts(as_meant, scoring="sigmoid", choosing="noaux_tc")
    windows = attention_windows(fields, behind(fields, 62))
    return replace(like_llama(name, fields), qk_norm=True, experts=experts, windows=windows)


@MODEL_TYPES.register("ernie4_5_moe")
def _ernie_moe(name: str, fields: Fields) -> TransformerConfig:
    base, every = like_ernie(name, fields), fields.count("moe_layer_interval", 1)
    last = fields.integer("moe_layer_end_index", -1)
    if last not in (-1, base.layers - 1):
        raise fields.error(
            f"moe_layer_end_index is {last}; only that of the last layer, {base.layers - 1}, is "
            "supported; an ONNX export of the model works"
        )
    start, width = fields.integer("moe_layer_start_index", 1), fields.count("moe_intermediate_size")
    experts = Experts(
        count=fields.count("moe_num_experts"),
        top_k=fields.count("moe_k"),
        ffn=width,
        corrected=True,
        shared_ffn=width * fields.integer("moe_num_shared_experts", 0),
        dense_layers=start + (-start - 1) % every,
        every=every,
    )
    return replace(base, experts=experts, notes=(*base.notes, *_prediction_notes(fields)))


@MODEL_TYPES.register("llama4_text")
def _llama4(name: str, fields: Fields) -> TransformerConfig:
    """A token's weight is applied behind the activations of its expert, where Llama 4 multiplies
    what goes in: other numbers, but as many operations."""
    base = like_llama(name, fields, head_dim=128, epsilon=1e-5)
    every = fields.count("interleave_moe_layer_step", 1)
    experts = replace(
        _few_experts(fields),
        scoring="sigmoid",
        normalized=False,
        shared_ffn=base.ffn,
        dense_layers=every - 1,
        every=every,
    )
    listed = fields.integers("moe_layers")
    if listed and listed != [layer for layer in range(base.layers) if experts.are_in(layer)]:
        raise fields.error("moe_layers are not those of interleave_moe_layer_step")
    notes = [*base.notes, *unrotated_notes(fields)]
    if fields.flag("use_qk_norm", True):
        notes.append("queries and keys are not normalized; the model's use_qk_norm is not applied")
    if chunk := fields.integer("attention_chunk_size", 8192):
        chunks = f"the model's attention_chunk_size of {chunk:,} is not applied"
        notes.append(f"attention reads the whole sequence; {chunks}")
    ffn = fields.count("intermediate_size_mlp", 16384)
    return replace(base, ffn=ffn, experts=experts, notes=tuple(notes))
