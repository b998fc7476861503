"""Hugging Face's transformers as a second witness: models of a `config.json` give the same logits.

Optional: transformers and PyTorch are no dependencies; without them the tests are skipped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distir.execute.sequential import evaluate
from distir.importers.config import read_config
from distir.models.experts import with_imbalance
from distir.models.transformer import TransformerConfig

torch = pytest.importorskip("torch", reason="needs PyTorch, an optional second witness")
transformers = pytest.importorskip(
    "transformers", reason="needs transformers, an optional second witness"
)

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 29,
    "max_position_embeddings": 34,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GPT2_SIZES: dict[str, Any] = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 29,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
UNCAPPED: dict[str, Any] = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
HEADS: dict[str, Any] = {"head_dim": 8, "query_pre_attn_scalar": 8}
ROTARY: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
FULL = ["full_attention"] * 2

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2_SIZES,
    "gpt_bigcode": GPT2_SIZES,
    "gptj": {**GPT2_SIZES, "rotary_dim": 4},
    "llama": SIZES,
    "qwen3": {**SIZES, "head_dim": 8},
    "phi3": SIZES,
    "gemma": {**SIZES, "head_dim": 8},
    "gemma2": {**SIZES, **HEADS, **UNCAPPED},
    "gemma3_text": {
        **SIZES,
        **HEADS,
        "rope_parameters": {"full_attention": ROTARY, "sliding_attention": ROTARY},
    },
    "mistral, window": {**SIZES, "sliding_window": 4},
    "mixtral, window": {
        **SIZES,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 4,
    },
    "phi3, window": {**SIZES, "sliding_window": 4},
    "starcoder2, window": {**SIZES, "sliding_window": 4},
    "qwen2, windows": {
        **SIZES,
        "num_hidden_layers": 3,
        "sliding_window": 4,
        "use_sliding_window": True,
        "max_window_layers": 1,
    },
    "gemma2, windows": {**SIZES, **HEADS, **UNCAPPED, "sliding_window": 4},
    "gemma3_text, windows": {
        **SIZES,
        **HEADS,
        "num_hidden_layers": 7,
        "sliding_window": 4,
        "rope_parameters": {"full_attention": ROTARY, "sliding_attention": ROTARY},
    },
    "olmo3, windows": {**SIZES, "num_hidden_layers": 5, "sliding_window": 4},
    "olmo2": SIZES,
    "olmo3": {**SIZES, "layer_types": FULL},
    "exaone4": {**SIZES, "head_dim": 8, "sliding_window": None, "layer_types": FULL},
    "granite": {**SIZES, "attention_multiplier": 8**-0.5, "embedding_multiplier": 3.0},
    "smollm3": {**SIZES, "no_rope_layers": [1, 1]},
    "seed_oss": {**SIZES, "head_dim": 8, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "ernie4_5": {**SIZES, "head_dim": 8, "use_bias": True},
    "glm": {**SIZES, "head_dim": 8},
    "glm4": {**SIZES, "head_dim": 8},
    "ministral3": {
        **SIZES,
        "head_dim": 8,
        "rope_parameters": {
            **ROTARY,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 34,
        },
    },
    "cohere2": {**SIZES, "head_dim": 8, "logit_scale": 1.0},
    "phi": {**SIZES, "num_key_value_heads": 2},
    "starcoder2": SIZES,
    "stablelm": {**SIZES, "use_qkv_bias": True},
    "cohere": {**SIZES, "logit_scale": 1.0},
    "falcon": SIZES,
    "falcon, new": {**SIZES, "num_attention_heads": 4, "num_kv_heads": 2},
    "roberta": {
        **SIZES,
        "type_vocab_size": 1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "distilbert": {
        "dim": 16,
        "hidden_dim": 24,
        "n_layers": 2,
        "n_heads": 4,
        "vocab_size": 29,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "olmoe": {**SIZES, "num_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {**SIZES, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **SIZES,
        "head_dim": 8,
        "moe_intermediate_size": 12,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 2,
    },
    "ernie4_5_moe": {
        **SIZES,
        "moe_intermediate_size": 12,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
        "moe_layer_end_index": 1,
    },
    "granitemoe": {
        **SIZES,
        "attention_multiplier": 8**-0.5,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "minimax_m2": {
        **SIZES,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {**ROTARY, "partial_rotary_factor": 0.5},
    },
    "dots1": {
        **SIZES,
        "head_dim": 8,
        "moe_intermediate_size": 12,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
    },
    "glm4_moe": {
        **SIZES,
        "head_dim": 8,
        "attention_bias": True,
        "use_qk_norm": True,
        "moe_intermediate_size": 12,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
"""Small models, without what ours leave out."""

INTERLEAVED = ("gptj", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "glm", "glm4")
"""Families that rotate neighbouring numbers of a head, where ours rotates halves: columns lie
otherwise, and only at the first position nothing is rotated."""

NAMES = (
    (r"^(model|transformer|roberta|distilbert)\.", ""),
    (r"^(encoder\.layer|transformer\.layer|h)\.", "layers."),
    (r"^(embed_tokens|wte|word_embeddings|embeddings\.word_embeddings)\.", "embedding.token."),
    (r"^(wpe|embeddings\.position_embeddings)\.", "embedding.position."),
    (r"^embeddings\.token_type_embeddings\.", "embedding.segment."),
    (r"^embeddings\.LayerNorm\.", "embedding.norm."),
    (r"^(ln_f|final_layernorm)\.", "norm."),
    (r"^(lm_head\.dense|vocab_transform)\.", "head.transform."),
    (r"^(lm_head\.layer_norm|vocab_layer_norm)\.", "head.norm."),
    (r"^(lm_head\.decoder|lm_head|vocab_projector)\.", "head."),
    (r"\.(attention\.output\.LayerNorm|sa_layer_norm)\.", ".attention_norm."),
    (r"\.(output\.LayerNorm|output_layer_norm)\.", ".ffn_norm."),
    (r"\.(self_attn|attn|self_attention|attention\.self|attention\.output)\.", ".attention."),
    (r"\.attention\.(qkv_proj|query_key_value|c_attn)\.", ".attention.qkv."),
    (r"\.attention\.(q_proj|q_lin)\.", ".attention.query."),
    (r"\.attention\.(k_proj|k_lin)\.", ".attention.key."),
    (r"\.attention\.(v_proj|v_lin)\.", ".attention.value."),
    (r"\.attention\.(o_proj|dense|out_proj|out_lin|c_proj)\.", ".attention.output."),
    (r"\.attention\.q_norm\.", ".attention.query_norm."),
    (r"\.attention\.k_norm\.", ".attention.key_norm."),
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"\.mlp\.(gate|router)\.weight$", ".ffn.router.weight"),
    (r"\.mlp\.gate\.moe_statics\.e_score_correction_bias$", ".ffn.router.correction"),
    (r"\.mlp\.(gate\.)?e_score_correction_bias$", ".ffn.router.correction"),
    (r"\.mlp\.experts\.(\w+)_proj$", r".ffn.experts.\1.weight"),
    (r"\.mlp\.shared_experts\.(\w+)_proj\.", r".ffn.shared.\1."),
    (r"\.mlp\.(gate|gate_up|up|down)_proj\.", r".ffn.\1."),
    (r"\.(mlp\.(fc1|fc_in|dense_h_to_4h|c_fc)|intermediate\.dense|ffn\.lin1)\.", ".ffn.up."),
    (r"\.(mlp\.(fc2|fc_out|dense_4h_to_h|c_proj)|output\.dense|ffn\.lin2)\.", ".ffn.down."),
    (r"\.(input_layernorm|ln_1|ln_attn)\.", ".attention_norm."),
    (r"\.(pre_feedforward_layernorm|ln_2|ln_mlp)\.", ".ffn_norm."),
    (r"\.post_self_attn_layernorm\.", ".attention_output_norm."),
    (r"\.post_(feedforward|mlp)_layernorm\.", ".ffn_output_norm."),
)
"""What parameters are called there and here."""


@pytest.mark.parametrize("name", MODELS)
def test_a_small_model_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    kind, _, is_new = name.partition(", ")
    options = {**MODELS[name], **({"new_decoder_architecture": True} if is_new else {})}
    theirs = transformers.AutoConfig.for_model(kind, **options)
    theirs.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    if config.experts is not None:  # so that no expert is too full
        config = with_imbalance(config, config.experts.count / config.experts.top_k)
    masked = kind in ("roberta", "distilbert")
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    model = auto.from_config(theirs, attn_implementation="eager").eval()
    if config.experts is None:  # grouped products have no kernel for doubles
        model = model.double()
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 29, (2, 1 if kind in INTERLEAVED else 6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(0.3 * rng.normal(size=parameter.shape)))
        wanted = model(input_ids=torch.from_numpy(ids)).logits.numpy()
    function = config.build(*ids.shape)
    named = {value.name: value for value in function.parameters}
    given = {named[own]: array for own, array in _parameters(model, config, kind)}
    assert given.keys() == set(function.parameters)
    (found,) = evaluate(function, {function.inputs[0]: ids}, given)
    assert found == pytest.approx(wanted, abs=1e-5)


def _parameters(
    model: Any, config: TransformerConfig, kind: str
) -> list[tuple[str, NDArray[np.float64]]]:
    """The parameters of a model by the names that ours have, laid out as there."""
    arrays = dict(model.named_parameters())
    arrays |= {name: array for name, array in model.named_buffers() if "correction" in name}
    found: list[tuple[str, NDArray[np.float64]]] = []
    before = not config.part_norms or kind == "glm4"
    behind = "ffn_norm" if before else "attention_output_norm"
    for name, tensor in arrays.items():
        own = name
        for pattern, written in (*NAMES, (r"\.post_attention_layernorm\.", f".{behind}.")):
            own = re.sub(pattern, written, own)
        array = tensor.detach().numpy().astype(np.float64)
        array = array.reshape(-1) if "correction" in name else array
        if not own.startswith("embedding") and array.ndim > 1 and kind != "gpt2":
            array = array.swapaxes(-1, -2)
        if kind.startswith("gemma") and "norm" in own:
            array = 1 + array
        if ".qkv." in own and not config.fused_qkv:
            parts = zip(("query", "key", "value"), _split(array, config), strict=True)
            found += [(own.replace("qkv", part), each) for part, each in parts]
        elif ".gate_up." in own:
            halves = zip(("gate", "up"), np.split(array, 2, axis=-1), strict=True)
            found += [(own.replace("gate_up", part), each) for part, each in halves]
        else:
            found.append((own, array))
    return found


def _split(array: NDArray[np.float64], config: TransformerConfig) -> list[NDArray[np.float64]]:
    """Queries, keys and values; where there are two norms (Falcon's new decoder), a key and a value
    follow the queries that share them."""
    heads, kv_heads = config.heads, config.num_kv_heads
    each = [heads // kv_heads, 1, 1]
    groups = kv_heads if config.parallel and not config.shared_norm else 1
    per_group = each if groups > 1 else [heads, kv_heads, kv_heads]
    grouped = array.reshape(*array.shape[:-1], groups, -1, config.depth)
    parts = np.split(grouped, np.cumsum(per_group)[:-1], axis=-2)
    return [part.reshape(*array.shape[:-1], -1) for part in parts]
