"""Writes a model configuration as a Hugging Face `config.json`: the inverse of `config.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from distir.errors import ImportModelError
from distir.importers.config import MODEL_TYPES
from distir.importers.config_fields import ACTIVATION_NAMES, Fields
from distir.models.experts import Experts
from distir.models.transformer import TransformerConfig

Written = dict[str, Any]
"""Fields of a `config.json`."""

NOTHING = object()
"""Stands for `null`, where a family takes what is left out for something."""

_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATION_NAMES.items())}


def config_text(config: TransformerConfig) -> str | None:
    """A `config.json` that describes this model; None if no family of `config.json` does.

    What is written is read again, and only what is the same model then counts.
    """
    for model_type, write in FAMILIES.items():
        fields: Written = {"model_type": model_type}
        fields |= {
            name: None if value is NOTHING else value
            for name, value in write(config).items()
            if value is not None
        }
        try:
            found = MODEL_TYPES.get(model_type)(config.name, Fields(fields, model_type))
        except ImportModelError:
            continue
        if _plain(found) == _plain(config):
            return json.dumps(fields, indent=2) + "\n"
    return None


def _plain(config: TransformerConfig) -> TransformerConfig:
    """A configuration with its sizes stated, and without its notes."""
    dropout = config.dropout if config.attention_dropout is None else config.attention_dropout
    return replace(
        config,
        notes=(),
        kv_heads=config.num_kv_heads,
        head_dim=config.depth,
        ffn=config.ffn_width,
        attention_dropout=dropout,
        windows=config.layer_windows,
    )


def _usual(config: TransformerConfig) -> Written:
    """What most families call by the same names."""
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn_width,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.sequence_length,
        "hidden_act": _ACTIVATIONS.get(config.activation),
        "tie_word_embeddings": config.tied_embeddings,
    }


def _llama(config: TransformerConfig) -> Written:
    return {
        **_usual(config),
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.depth,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rotary_base,
        "attention_bias": config.output_bias,
        "mlp_bias": config.ffn_bias,
        "attention_dropout": config.attention_dropout or None,
    }


def _windowed(
    write: Callable[[TransformerConfig], Written], *, listed: bool = True, optional: bool = False
) -> Callable[[TransformerConfig], Written]:
    """The fields of a family whose layers may have windows: all of them, or those that are
    `listed`; `optional`: a window that is stated counts only if the file says so."""

    def fields(config: TransformerConfig) -> Written:
        windows = config.layer_windows
        window = max(windows)
        if optional and not window:
            return write(config)
        kinds = ["sliding_attention" if each else "full_attention" for each in windows]
        return {
            **write(config),
            "sliding_window": window or NOTHING,
            "layer_types": kinds if listed else None,
            "use_sliding_window": True if optional else None,
        }

    return fields


def _phi3(config: TransformerConfig) -> Written:
    return {
        **_llama(config),
        "partial_rotary_factor": config.rotary_fraction,
        "embd_pdrop": config.dropout,
        **dict(_dropout(config, "resid_pdrop", "attention_dropout")),
    }


def _gemma(config: TransformerConfig) -> Written:
    return {
        **_llama(config),
        "hidden_activation": _fused(config),
        "use_bidirectional_attention": None if config.causal else True,
    }


def _fused(config: TransformerConfig) -> str | None:
    """The activation as families name it that compute GELU's tanh in one op, where GPT-2 has
    several."""
    if config.activation == "gelu_tanh":
        return "gelu_pytorch_tanh"
    return _ACTIVATIONS.get(config.activation)


def _granite(config: TransformerConfig) -> Written:
    return {**_llama(config), "embedding_multiplier": config.embedding_scale}


def _seed_oss(config: TransformerConfig) -> Written:
    return {
        **_llama(config),
        "attention_bias": config.qkv_bias,
        "attention_out_bias": config.output_bias,
        **dict(_dropout(config, "residual_dropout", "attention_dropout")),
    }


def _ernie(config: TransformerConfig) -> Written:
    return {**_llama(config), "use_bias": config.ffn_bias}


def _glm(config: TransformerConfig) -> Written:
    return {
        **_llama(config),
        "partial_rotary_factor": config.rotary_fraction,
        "attention_bias": config.qkv_bias,
    }


def _mixtral(config: TransformerConfig) -> Written:
    experts = config.experts
    if experts is None:
        return {}
    return {
        **_llama(config),
        "intermediate_size": experts.ffn,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
    }


def _granite_moe(config: TransformerConfig) -> Written:
    return {**_mixtral(config), "embedding_multiplier": config.embedding_scale}


def _minimax_m2(config: TransformerConfig) -> Written:
    return {**_mixtral(config), "partial_rotary_factor": config.rotary_fraction}


def _llama4(config: TransformerConfig) -> Written:
    experts = config.experts
    if experts is None:
        return {}
    return {
        **_mixtral(config),
        "intermediate_size_mlp": config.ffn_width,
        "interleave_moe_layer_step": experts.every,
    }


def _ernie_moe(config: TransformerConfig) -> Written:
    experts = config.experts
    if experts is None:
        return {}
    return {
        **_ernie(config),
        "moe_num_experts": experts.count,
        "moe_k": experts.top_k,
        "moe_intermediate_size": experts.ffn,
        "moe_num_shared_experts": experts.shared_ffn // experts.ffn,
        "moe_layer_start_index": experts.dense_layers,
        "moe_layer_interval": experts.every,
    }


def _qwen_moe(config: TransformerConfig) -> Written:
    experts = config.experts
    if experts is None:
        return {}
    return {
        **_llama(config),
        "num_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn,
        "norm_topk_prob": experts.normalized,
        "shared_expert_intermediate_size": experts.shared_ffn,
        "decoder_sparse_step": experts.every,
    }


def _olmoe(config: TransformerConfig) -> Written:
    experts = config.experts
    if experts is None:
        return {}
    return {**_qwen_moe(config), "intermediate_size": experts.ffn}


def _deepseek_v2(config: TransformerConfig) -> Written:
    return _deepseek(config, corrected=False)


def _deepseek_v3(config: TransformerConfig) -> Written:
    return _deepseek(config, corrected=True)


def _deepseek(config: TransformerConfig, corrected: bool) -> Written:
    """The third version corrects the scores of experts by how much they were chosen."""
    experts, latent = config.experts, config.latent
    if experts is None or latent is None or experts.corrected != corrected:
        return {}
    return {
        **_llama(config),
        **_deepseek_experts(experts),
        "head_dim": None,
        "q_lora_rank": latent.query_rank or NOTHING,
        "kv_lora_rank": latent.key_rank,
        "qk_nope_head_dim": latent.plain_dim,
        "qk_rope_head_dim": latent.rotary_dim,
        "v_head_dim": latent.value_dim,
    }


def _deepseek_experts(experts: Experts) -> Written:
    grouped = "group_limited_greedy" if experts.groups > 1 else "greedy"
    return {
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn,
        "scoring_func": experts.scoring,
        "norm_topk_prob": experts.normalized,
        "routed_scaling_factor": experts.scale,
        "topk_method": "noaux_tc" if experts.corrected else grouped,
        "n_shared_experts": experts.shared_ffn // experts.ffn,
        "first_k_dense_replace": experts.dense_layers,
        "moe_layer_freq": experts.every,
        "n_group": experts.groups,
        "topk_group": experts.chosen_groups,
    }


def _dots1(config: TransformerConfig) -> Written:
    if config.experts is None:
        return {}
    return {**_llama(config), **_deepseek_experts(config.experts)}


def _glm4_moe(config: TransformerConfig) -> Written:
    if config.experts is None:
        return {}
    return {**_dots1(config), **_glm(config), "use_qk_norm": config.qk_norm}


def _dropout(config: TransformerConfig, hidden: str, attention: str) -> Iterator[tuple[str, float]]:
    yield hidden, config.dropout
    of_weights = config.attention_dropout
    yield attention, config.dropout if of_weights is None else of_weights


def _gpt2(config: TransformerConfig) -> Written:
    return {
        "n_layer": config.layers,
        "n_embd": config.hidden,
        "n_head": config.heads,
        "n_inner": config.ffn_width,
        "vocab_size": config.vocabulary,
        "n_positions": config.sequence_length,
        "layer_norm_epsilon": config.norm_epsilon,
        "activation_function": _ACTIVATIONS.get(config.activation),
        "tie_word_embeddings": config.tied_embeddings,
        "embd_pdrop": config.dropout,
        **dict(_dropout(config, "resid_pdrop", "attn_pdrop")),
    }


def _gpt_bigcode(config: TransformerConfig) -> Written:
    return {
        **_gpt2(config),
        "activation_function": _fused(config),
        "multi_query": config.num_kv_heads == 1,
    }


def _gptj(config: TransformerConfig) -> Written:
    return {**_gpt2(config), "rotary_dim": round(config.rotary_fraction * config.depth)}


def _decoder(config: TransformerConfig) -> Written:
    return {
        **_usual(config),
        "num_key_value_heads": config.num_kv_heads,
        "rope_theta": config.rotary_base,
        "layer_norm_eps": config.norm_epsilon,
    }


def _phi(config: TransformerConfig) -> Written:
    return {
        **_decoder(config),
        "partial_rotary_factor": config.rotary_fraction,
        "embd_pdrop": config.dropout,
        **dict(_dropout(config, "resid_pdrop", "attention_dropout")),
    }


def _starcoder2(config: TransformerConfig) -> Written:
    return {
        **_decoder(config),
        "hidden_act": _fused(config),
        "embedding_dropout": config.dropout,
        "norm_epsilon": config.norm_epsilon,
        "use_bias": config.ffn_bias,
        **dict(_dropout(config, "residual_dropout", "attention_dropout")),
    }


def _stablelm(config: TransformerConfig) -> Written:
    return {
        **_phi(config),
        "use_qkv_bias": config.qkv_bias,
        "use_parallel_residual": config.parallel,
        **dict(_dropout(config, "hidden_dropout", "attention_dropout")),
    }


def _cohere(config: TransformerConfig) -> Written:
    return {
        **_decoder(config),
        "attention_bias": config.qkv_bias,
        "attention_dropout": config.attention_dropout or None,
    }


def _cohere2(config: TransformerConfig) -> Written:
    return {**_cohere(config), "head_dim": config.depth}


def _falcon(config: TransformerConfig) -> Written:
    kv_heads, two_norms = config.num_kv_heads, config.parallel and not config.shared_norm
    return {
        **_usual(config),
        "new_decoder_architecture": two_norms or kv_heads not in (1, config.heads),
        "num_kv_heads": kv_heads,
        "multi_query": kv_heads == 1,
        "num_ln_in_parallel_attn": 2 if two_norms else 1,
        "ffn_hidden_size": config.ffn_width,
        "layer_norm_epsilon": config.norm_epsilon,
        "parallel_attn": config.parallel,
        "rope_theta": config.rotary_base,
        "activation": _ACTIVATIONS.get(config.activation),
        "bias": config.ffn_bias,
        "alibi": False,
        **dict(_dropout(config, "hidden_dropout", "attention_dropout")),
    }


def _gpt_neox(config: TransformerConfig) -> Written:
    return {
        **_usual(config),
        "layer_norm_eps": config.norm_epsilon,
        "use_parallel_residual": config.parallel,
        "rotary_pct": config.rotary_fraction,
        "rotary_emb_base": config.rotary_base,
        "attention_bias": config.qkv_bias,
        **dict(_dropout(config, "hidden_dropout", "attention_dropout")),
    }


def _opt(config: TransformerConfig) -> Written:
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "ffn_dim": config.ffn_width,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.sequence_length,
        "do_layer_norm_before": config.norm_first,
        "activation_function": _ACTIVATIONS.get(config.activation),
        "enable_bias": config.qkv_bias,
        "tie_word_embeddings": config.tied_embeddings,
        **dict(_dropout(config, "dropout", "attention_dropout")),
    }


def _bert(config: TransformerConfig) -> Written:
    return {
        **_usual(config),
        "type_vocab_size": config.segments,
        "is_decoder": config.causal,
        "layer_norm_eps": config.norm_epsilon,
        **dict(_dropout(config, "hidden_dropout_prob", "attention_probs_dropout_prob")),
    }


def _roberta(config: TransformerConfig) -> Written:
    return {
        **_bert(config),
        "max_position_embeddings": config.sequence_length + config.position_offset,
        "pad_token_id": config.position_offset - 1,
    }


def _distilbert(config: TransformerConfig) -> Written:
    return {
        "n_layers": config.layers,
        "dim": config.hidden,
        "n_heads": config.heads,
        "hidden_dim": config.ffn_width,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.sequence_length,
        "activation": _ACTIVATIONS.get(config.activation),
        "tie_word_embeddings": config.tied_embeddings,
        **dict(_dropout(config, "dropout", "attention_dropout")),
    }


FAMILIES: Mapping[str, Callable[[TransformerConfig], Written]] = {
    "llama": _llama,
    "mistral": _windowed(_llama, listed=False),
    "qwen2": _windowed(_llama, optional=True),
    "qwen3": _windowed(_llama, optional=True),
    "phi3": _windowed(_phi3, listed=False),
    "gemma": _gemma,
    "gemma2": _windowed(_gemma),
    "gemma3_text": _windowed(_gemma),
    "olmo2": _llama,
    "olmo3": _windowed(_llama),
    "exaone4": _windowed(_llama),
    "granite": _granite,
    "seed_oss": _seed_oss,
    "ernie4_5": _ernie,
    "glm": _glm,
    "glm4": _glm,
    "mixtral": _windowed(_mixtral, listed=False),
    "gpt_oss": _windowed(_mixtral),
    "qwen2_moe": _windowed(_qwen_moe, optional=True),
    "qwen3_moe": _windowed(_qwen_moe, listed=False, optional=True),
    "olmoe": _olmoe,
    "granitemoe": _granite_moe,
    "ernie4_5_moe": _ernie_moe,
    "llama4_text": _llama4,
    "minimax_m2": _minimax_m2,
    "dots1": _windowed(_dots1),
    "glm4_moe": _glm4_moe,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gptj": _gptj,
    "phi": _phi,
    "starcoder2": _windowed(_starcoder2, listed=False),
    "stablelm": _stablelm,
    "cohere": _cohere,
    "cohere2": _windowed(_cohere2),
    "falcon": _falcon,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "distilbert": _distilbert,
    "bert": _bert,
    "roberta": _roberta,
}
"""By `model_type` its fields for a configuration, which they may fail to describe."""

__all__ = ["FAMILIES", "config_text"]
