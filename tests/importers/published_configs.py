"""Published `config.json` files: the fields that decide a model's layers."""

from __future__ import annotations

from typing import Any

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_positions": 1024,
    "n_ctx": 1024,
    "n_inner": None,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-05,
    "attn_pdrop": 0.1,
}
LLAMA3 = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rope_scaling": None,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
NEOX = {
    "model_type": "gpt_neox",
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 50304,
    "max_position_embeddings": 2048,
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000,
    "use_parallel_residual": True,
    "hidden_act": "gelu",
    "tie_word_embeddings": False,
}
MIXTRAL = {
    **LLAMA3,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 32768,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": None,
}
QWEN2_MOE: dict[str, Any] = {
    **QWEN3_MOE,
    "model_type": "qwen2_moe",
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "norm_topk_prob": False,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
}
OPT = {
    "model_type": "opt",
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "word_embed_proj_dim": 768,
    "num_attention_heads": 12,
    "ffn_dim": 3072,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "activation_function": "relu",
    "do_layer_norm_before": True,
}

BERT = {
    "model_type": "bert",
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}

GEMMA: dict[str, Any] = {
    "model_type": "gemma",
    "num_hidden_layers": 18,
    "hidden_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 16384,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
}
GEMMA2: dict[str, Any] = {
    **GEMMA,
    "model_type": "gemma2",
    "num_hidden_layers": 42,
    "hidden_size": 3584,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3: dict[str, Any] = {
    **GEMMA,
    "model_type": "gemma3_text",
    "num_hidden_layers": 26,
    "hidden_size": 1152,
    "num_attention_heads": 4,
    "intermediate_size": 6912,
    "vocab_size": 262144,
}
PHI3 = {
    "model_type": "phi3",
    "num_hidden_layers": 32,
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 8192,
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75,
}
OLMO2 = {
    "model_type": "olmo2",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 100352,
    "max_position_embeddings": 4096,
}
OLMOE = {
    **OLMO2,
    "model_type": "olmoe",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "vocab_size": 50304,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "attention_bias": True,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
}
GLM4_MOE = {
    "model_type": "glm4_moe",
    "num_hidden_layers": 46,
    "hidden_size": 4096,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": True,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "vocab_size": 151552,
    "max_position_embeddings": 131072,
}
PHI2 = {
    "model_type": "phi",
    "num_hidden_layers": 32,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "intermediate_size": 10240,
    "vocab_size": 51200,
    "max_position_embeddings": 2048,
    "partial_rotary_factor": 0.4,
}
GPTJ = {
    "model_type": "gptj",
    "n_layer": 28,
    "n_embd": 4096,
    "n_head": 16,
    "n_positions": 2048,
    "rotary_dim": 64,
    "vocab_size": 50400,
    "tie_word_embeddings": False,
}
FALCON = {
    "model_type": "falcon",
    "num_hidden_layers": 32,
    "hidden_size": 4544,
    "num_attention_heads": 71,
    "vocab_size": 65024,
    "multi_query": True,
    "parallel_attn": True,
    "alibi": False,
    "bias": False,
}
FALCON_40B = {
    **FALCON,
    "num_hidden_layers": 60,
    "hidden_size": 8192,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
}
STARCODER = {
    "model_type": "gpt_bigcode",
    "n_layer": 40,
    "n_embd": 6144,
    "n_inner": 24576,
    "n_head": 48,
    "n_positions": 8192,
    "vocab_size": 49152,
    "multi_query": True,
}
STARCODER2 = {
    "model_type": "starcoder2",
    "num_hidden_layers": 30,
    "hidden_size": 3072,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "intermediate_size": 12288,
    "vocab_size": 49152,
    "max_position_embeddings": 16384,
}
STABLELM2 = {
    "model_type": "stablelm",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 5632,
    "use_qkv_bias": True,
    "vocab_size": 100352,
    "max_position_embeddings": 4096,
}
COMMAND_R = {
    "model_type": "cohere",
    "num_hidden_layers": 40,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "intermediate_size": 22528,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "logit_scale": 0.0625,
}
ROBERTA = {
    **BERT,
    "model_type": "roberta",
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
DISTILBERT = {
    "model_type": "distilbert",
    "n_layers": 6,
    "dim": 768,
    "n_heads": 12,
    "hidden_dim": 3072,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}
GRANITE: dict[str, Any] = {
    "model_type": "granite",
    "num_hidden_layers": 40,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 12800,
    "vocab_size": 49155,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": True,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.0078125,
    "residual_multiplier": 0.22,
    "logits_scaling": 16.0,
}
SMOLLM3: dict[str, Any] = {
    "model_type": "smollm3",
    "num_hidden_layers": 36,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 11008,
    "vocab_size": 128256,
    "max_position_embeddings": 65536,
    "rope_theta": 5000000.0,
}
SEED_OSS: dict[str, Any] = {
    "model_type": "seed_oss",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "intermediate_size": 27648,
    "vocab_size": 155136,
    "max_position_embeddings": 524288,
    "head_dim": 128,
    "attention_bias": True,
    "attention_out_bias": False,
}
ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5",
    "num_hidden_layers": 18,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "intermediate_size": 3072,
    "vocab_size": 103424,
    "max_position_embeddings": 131072,
    "head_dim": 128,
    "use_bias": False,
}
GLM: dict[str, Any] = {
    "model_type": "glm",
    "num_hidden_layers": 40,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "intermediate_size": 13696,
    "vocab_size": 151552,
    "max_position_embeddings": 131072,
    "attention_bias": True,
}
GLM4: dict[str, Any] = {
    "model_type": "glm4",
    "num_hidden_layers": 61,
    "hidden_size": 6144,
    "num_attention_heads": 48,
    "num_key_value_heads": 2,
    "intermediate_size": 23040,
    "vocab_size": 151552,
    "max_position_embeddings": 32768,
    "attention_bias": False,
}
MINISTRAL3: dict[str, Any] = {
    "model_type": "ministral3",
    "num_hidden_layers": 34,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 131072,
    "max_position_embeddings": 262144,
    "head_dim": 128,
}
OLMO3: dict[str, Any] = {
    "model_type": "olmo3",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 27648,
    "vocab_size": 100278,
    "max_position_embeddings": 65536,
    "sliding_window": 4096,
}
EXAONE4: dict[str, Any] = {
    "model_type": "exaone4",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 27392,
    "vocab_size": 102400,
    "max_position_embeddings": 131072,
    "head_dim": 128,
    "sliding_window": 4096,
}
COMMAND_R7B: dict[str, Any] = {
    "model_type": "cohere2",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "head_dim": 128,
    "logit_scale": 0.25,
    "sliding_window": 4096,
    "position_embedding_type": "rope_gptj",
}
GRANITE_MOE: dict[str, Any] = {
    "model_type": "granitemoe",
    "num_hidden_layers": 32,
    "hidden_size": 1536,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "intermediate_size": 512,
    "vocab_size": 49155,
    "max_position_embeddings": 4096,
    "num_local_experts": 40,
    "num_experts_per_tok": 8,
    "tie_word_embeddings": True,
    "embedding_multiplier": 12.0,
}
MINIMAX_M2: dict[str, Any] = {
    "model_type": "minimax_m2",
    "num_hidden_layers": 62,
    "hidden_size": 3072,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "intermediate_size": 1536,
    "vocab_size": 200064,
    "max_position_embeddings": 196608,
    "head_dim": 128,
    "rotary_dim": 64,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "num_mtp_modules": 3,
}
DOTS1: dict[str, Any] = {
    "model_type": "dots1",
    "num_hidden_layers": 62,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 10944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "noaux_tc",
    "topk_method": "noaux_tc",
}
ERNIE_MOE: dict[str, Any] = {
    "model_type": "ernie4_5_moe",
    "num_hidden_layers": 28,
    "hidden_size": 2560,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "intermediate_size": 12288,
    "vocab_size": 103424,
    "max_position_embeddings": 131072,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_intermediate_size": 1536,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 27,
    "moe_layer_interval": 1,
}
LLAMA4: dict[str, Any] = {
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "vocab_size": 202048,
    "max_position_embeddings": 1048576,
    "num_local_experts": 128,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "moe_layers": list(range(1, 48, 2)),
    "attention_chunk_size": 8192,
    "use_qk_norm": True,
}
FURTHER: list[tuple[dict[str, Any], int]] = [
    (GEMMA, 2_506_172_416),  # gemma-2b
    (GEMMA2, 9_241_705_984),  # gemma-2-9b
    (GEMMA3, 999_885_952),  # gemma-3-1b
    (PHI3, 3_821_079_552),  # Phi-3-mini
    (OLMO2, 7_298_617_344),  # OLMo-2-7B
    (OLMOE, 6_919_161_856),  # OLMoE-1B-7B
    (GPT_OSS, 20_914_757_184 - 24 * 64),  # gpt-oss-20b, without the sinks of heads
    (GLM4_MOE, 106_852_251_264),  # GLM-4.5-Air
    (PHI2, 2_779_683_840),  # phi-2
    (GPTJ, 6_050_882_784),  # gpt-j-6b
    (FALCON, 6_921_720_704),  # falcon-7b
    (FALCON_40B, 41_303_293_952),  # falcon-40b
    (STARCODER, 15_517_456_384),  # starcoder
    (STARCODER2, 3_030_371_328),  # starcoder2-3b
    (STABLELM2, 1_644_515_328),  # stablelm-2-1_6b
    (COMMAND_R, 34_980_831_232),  # c4ai-command-r
    (ROBERTA, 124_697_433),  # roberta-base, with the head for masked words
    (DISTILBERT, 66_985_530),  # distilbert-base, the same
    (GRANITE, 8_170_848_256),  # granite-3.1-8b
    (SMOLLM3, 3_075_098_624),  # SmolLM3-3B
    (SEED_OSS, 36_151_104_512),  # Seed-OSS-36B
    (ERNIE, 360_748_032),  # ERNIE-4.5-0.3B
    (GLM, 9_399_951_360),  # glm-4-9b
    (GLM4, 32_566_081_536),  # GLM-4-32B
    (MINISTRAL3, 8_489_553_920),  # Ministral-3-8B, with a head of its own
    (OLMO3, 32_233_522_176),  # Olmo-3-32B
    (EXAONE4, 32_003_216_384),  # EXAONE-4.0-32B
    (COMMAND_R7B, 8_028_033_024),  # c4ai-command-r7b
    (GRANITE_MOE, 3_298_793_472),  # granite-3.0-3b-a800m
    (MINIMAX_M2, 228_689_748_992 + 62 * 256),  # MiniMax-M2, with the corrections of scores
    (ERNIE_MOE, 21_825_437_888),  # ERNIE-4.5-21B-A3B
    (LLAMA4, 400_711_848_960),  # Llama-4-Maverick, without what reads images
    (DOTS1, 142_774_373_888 + 61 * 128),  # dots.llm1, the same
]
"""Published sizes with the parameters of their checkpoints, as transformers 5.24 counts them."""
