"""Hugging Face `config.json` files: sizes as in the zoo, and clear errors."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distir import Workload, load_model
from distir.errors import ImportModelError
from distir.importers.config import read_config
from distir.importers.config_text import config_text
from distir.models import TransformerConfig, find_model
from distir.ops.attention import FusedAttention
from tests.importers.published_configs import (
    BERT,
    DEEPSEEK_V3,
    DISTILBERT,
    ERNIE_MOE,
    FALCON_40B,
    FURTHER,
    GEMMA,
    GEMMA2,
    GLM4_MOE,
    GPT2,
    GPT_OSS,
    GPTJ,
    LLAMA3,
    LLAMA4,
    MIXTRAL,
    NEOX,
    OPT,
    PHI2,
    PHI3,
    QWEN2_MOE,
    QWEN3_MOE,
    ROBERTA,
    SMOLLM3,
    STARCODER,
    STARCODER2,
)

ALSO_CALLED = {
    "ernie4_5": "llama",
    "ministral3": "llama",
    "smollm3": "llama",
}
"""Families whose models here are as those of others but for what is only told."""


def write(folder: Path, content: object) -> Path:
    path = folder / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k != key}


@pytest.mark.parametrize(("content", "name"), [(GPT2, "gpt2"), (LLAMA3, "llama3-8b")])
def test_a_published_config_gives_the_model_of_the_zoo(
    tmp_path: Path, content: dict[str, Any], name: str
) -> None:
    expected = find_model(name)
    assert isinstance(expected, TransformerConfig)
    for path in (write(tmp_path, content), tmp_path):
        found = read_config(path)
        assert found.name == tmp_path.name
        assert [p.type for p in found.build(2, 24).parameters] == [
            p.type for p in expected.build(2, 24).parameters
        ]
        filled = replace(
            expected, name=found.name, ffn=expected.ffn_width, kv_heads=expected.num_kv_heads
        )
        assert replace(found, ffn=found.ffn_width, kv_heads=found.num_kv_heads) == filled


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (GPT_OSS, "gpt-oss-20b"),
    ],
)
def test_a_published_config_gives_the_experts_of_the_zoo(
    tmp_path: Path, content: dict[str, Any], name: str
) -> None:
    expected = find_model(name)
    assert isinstance(expected, TransformerConfig)
    found = read_config(write(tmp_path, content))
    assert (found.experts, found.latent) == (expected.experts, expected.latent)
    assert found.windows == expected.windows


@pytest.mark.parametrize(
    ("content", "parameters"),
    [
        (NEOX, 70_426_624),  # pythia-70m
        (OPT, 125_239_296),  # opt-125m
        ({**LLAMA3, "model_type": "qwen2"}, 8_030_261_248 + 32 * (4096 + 2 * 1024)),
        ({**LLAMA3, "model_type": "qwen3"}, 8_030_261_248 + 32 * 2 * 128),
        ({**LLAMA3, "attention_bias": True}, 8_030_261_248 + 32 * (2 * 4096 + 2 * 1024)),
        (MIXTRAL, 46_702_792_704),  # mixtral-8x7b
        (QWEN3_MOE, 30_532_122_624),  # qwen3-30b-a3b
        ({**without(QWEN3_MOE, "num_experts"), "num_local_experts": 128}, 30_532_122_624),
        (QWEN2_MOE, 14_315_784_192),  # qwen1.5-moe-a2.7b
        (DEEPSEEK_V3, 671_026_419_200),
        ({**LLAMA3, "mlp_bias": True}, 8_030_261_248 + 32 * (2 * 14336 + 4096)),
        ({**QWEN2_MOE, "qkv_bias": False}, 14_315_784_192 - 24 * 3 * 2048),
        # Biases of what makes the two latents, the second with the keys' rotary part, and outputs.
        (
            {**DEEPSEEK_V3, "attention_bias": True},
            671_026_419_200 + 61 * (1536 + (512 + 64) + 7168),
        ),
        ({**DEEPSEEK_V3, "model_type": "kimi_k2"}, 671_026_419_200),
        *FURTHER,
    ],
)
def test_families_have_the_parameters_of_their_checkpoints(
    tmp_path: Path, content: dict[str, Any], parameters: int
) -> None:
    function = read_config(write(tmp_path, content)).build(2, 24)
    assert sum(value.type.num_elements for value in function.parameters) == parameters


@pytest.mark.parametrize(("content", "parameters"), FURTHER)
def test_a_family_is_written_as_a_model_with_the_same_parameters(
    tmp_path: Path, content: dict[str, Any], parameters: int
) -> None:
    found = read_config(write(tmp_path, content))
    text = config_text(found)
    assert text is not None
    again = read_config(write(tmp_path, text))
    # What a file leaves to others is stated in what is written.
    stated = {each: getattr(again, each) for each in ("kv_heads", "head_dim", "ffn", "notes")}
    assert again == replace(found, **stated, attention_dropout=again.attention_dropout)
    for size in ("num_kv_heads", "depth", "ffn_width"):
        assert getattr(again, size) == getattr(found, size)
    model_type = content["model_type"]
    assert json.loads(text)["model_type"] == ALSO_CALLED.get(model_type, model_type)
    assert sum(value.type.num_elements for value in again.build(2, 24).parameters) == parameters


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ({**QWEN3_MOE, "num_hidden_layers": 7, "decoder_sparse_step": 3}, [2, 5]),
        ({**DEEPSEEK_V3, "num_hidden_layers": 9, "moe_layer_freq": 2}, [4, 6, 8]),
        ({**ERNIE_MOE, "moe_layer_end_index": -1, "moe_layer_interval": 9}, [8, 17, 26]),
        ({**LLAMA4, "num_hidden_layers": 5, "moe_layers": None}, [1, 3]),
    ],
)
def test_layers_with_experts_come_at_equal_distances(
    tmp_path: Path, content: dict[str, Any], wanted: list[int]
) -> None:
    found = read_config(write(tmp_path, content))
    assert found.experts is not None
    assert [layer for layer in range(found.layers) if found.experts.are_in(layer)] == wanted
    names = {value.name for value in found.build(2, 24).parameters if "router" in value.name}
    assert {int(name.split(".")[1]) for name in names} == set(wanted)
    text = config_text(found)
    assert text is not None
    assert read_config(write(tmp_path, text)).experts == found.experts


def test_newer_files_keep_the_rotary_base_in_a_table(tmp_path: Path) -> None:
    content = {**without(LLAMA3, "rope_theta"), "rope_parameters": {"rope_theta": 5e5}}
    assert read_config(write(tmp_path, content)).rotary_base == 5e5


_WHOLE, _SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("content", "windows"),
    [
        ({"model_type": "mistral"}, (4096,)),
        ({"model_type": "mistral", "use_sliding_window": False}, ()),
        ({"model_type": "mistral", "sliding_window": None}, ()),
        ({"model_type": "mistral", "layer_types": [_WHOLE] * 32}, (4096,)),  # not looked at
        ({"model_type": "exaone4", "sliding_window_pattern": "LGL"}, (4096, 0, 4096)),
        ({"model_type": "exaone4", "sliding_window": None, "sliding_window_pattern": 0}, ()),
        ({"model_type": "llama"}, ()),  # whose layers have no windows in transformers
        ({"model_type": "gemma2"}, (4096, 0)),
        ({"model_type": "gemma3_text"}, (4096, 4096, 4096, 4096, 4096, 0)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, (4096, 4096, 0)),
        ({"model_type": "gemma2", "layer_types": [_WHOLE] * 32}, ()),
        ({"model_type": "gemma2", "layer_types": [_SLIDING] * 32}, (4096,)),
        ({"model_type": "olmo3", "layer_types": [_WHOLE, _SLIDING] * 16}, (0, 4096)),
        ({"model_type": "qwen2"}, ()),
        ({"model_type": "qwen2", "use_sliding_window": True}, (*[0] * 28, *[4096] * 4)),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 0},
            (4096,),
        ),
    ],
)
def test_layers_have_the_windows_that_a_file_states(
    tmp_path: Path, content: dict[str, Any], windows: tuple[int, ...]
) -> None:
    """As classes of transformers 5.24 fill in `layer_types`."""
    found = read_config(write(tmp_path, {**LLAMA3, "sliding_window": 4096, **content}))
    assert found.windows == windows
    of_layers = found.layer_windows
    ops = [n.op for n in found.build(2, 24).nodes if isinstance(n.op, FusedAttention)]
    assert tuple(op.window for op in ops) == of_layers
    text = config_text(found)
    assert text is not None
    assert read_config(write(tmp_path, text)).layer_windows == of_layers


@pytest.mark.parametrize(
    ("content", "windows"),
    [
        ({"model_type": "mistral"}, (4096,)),
        ({"model_type": "gemma2"}, (4096, 0)),
        ({"model_type": "phi3"}, ()),
        ({"model_type": "ministral3"}, ()),
    ],
)
def test_a_window_that_is_not_stated_is_that_of_the_family(
    tmp_path: Path, content: dict[str, Any], windows: tuple[int, ...]
) -> None:
    assert read_config(write(tmp_path, {**LLAMA3, **content})).windows == windows


def test_layers_that_are_not_rotated_may_have_windows(tmp_path: Path) -> None:
    windowed = {**LLAMA3, "model_type": "smollm3", "sliding_window": 64}
    assert not read_config(write(tmp_path, windowed)).windows
    used = {**windowed, "use_sliding_window": True}
    assert read_config(write(tmp_path, used)).windows == (0, 0, 0, 64)
    listed = {**used, "no_rope_layers": [0, 1] * 16}
    assert read_config(write(tmp_path, listed)).windows == (64, 0)


def test_windows_of_mixtures_are_those_of_their_families(tmp_path: Path) -> None:
    used = {**QWEN2_MOE, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}
    layers = read_config(write(tmp_path, used)).layer_windows
    assert layers == (64, 0, 64, *[0] * (len(layers) - 3))
    listed = {**QWEN3_MOE, "use_sliding_window": True, "sliding_window": 64}
    assert read_config(write(tmp_path, listed)).windows == (64,)


def test_layers_of_another_kind_are_refused(tmp_path: Path) -> None:
    kinds = [_WHOLE] * 31 + ["chunked_attention"]
    content = {**LLAMA3, "model_type": "olmo3", "sliding_window": 64, "layer_types": kinds}
    with pytest.raises(ImportModelError, match="chunked_attention'; expected full_attention or"):
        read_config(write(tmp_path, content))


def test_layer_types_are_as_many_as_layers(tmp_path: Path) -> None:
    content = {**LLAMA3, "model_type": "olmo3", "sliding_window": 64, "layer_types": [_WHOLE]}
    with pytest.raises(ImportModelError, match="layer_types has 1 entries; expected 32"):
        read_config(write(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ({**OPT, "layerdrop": 0.1}, "every layer is run in every step; the model's layerdrop is"),
        ({**GPT2, "reorder_and_upcast_attn": True}, "reorder_and_upcast_attn is not applied"),
        ({**BERT, "chunk_size_feed_forward": 64}, "chunk_size_feed_forward is not applied"),
        (
            {**GPT2, "resid_pdrop": 0.1, "embd_pdrop": 0.0},
            "the embedding drops 0.1, as layers do; the model's embd_pdrop is not applied",
        ),
        ({**PHI2, "resid_pdrop": 0.1}, "the model's embd_pdrop is not applied"),
        ({**PHI3, "embd_pdrop": 0.1}, "the embedding drops 0, as layers do"),
        ({**STARCODER2, "residual_dropout": 0.1}, "the model's embedding_dropout is not applied"),
        (DISTILBERT, "what attention gives is dropped, too"),
        (
            {**ROBERTA, "architectures": ["XLMRobertaModel"]},
            "the head is that of a language model, although the file states XLMRobertaModel",
        ),
        ({**GEMMA2, "sliding_window": None, "final_logit_softcapping": None}, "scores are not"),
    ],
)
def test_options_that_are_not_applied_are_noted(
    tmp_path: Path, content: dict[str, Any], note: str
) -> None:
    (found,) = read_config(write(tmp_path, content)).notes
    assert note in found


def test_what_a_family_leaves_out_is_told_only_where_it_is_there(tmp_path: Path) -> None:
    windowed = {**LLAMA3, "model_type": "qwen2", "sliding_window": 4096}
    assert not read_config(write(tmp_path, windowed)).notes
    assert read_config(write(tmp_path, SMOLLM3)).notes
    assert not read_config(write(tmp_path, {**SMOLLM3, "no_rope_layers": [1] * 36})).notes
    more = {**ERNIE_MOE, "num_nextn_predict_layers": 1}
    assert "further tokens" in read_config(write(tmp_path, more)).notes[0]


def test_queries_without_a_latent_are_written_as_null(tmp_path: Path) -> None:
    content = {**DEEPSEEK_V3, "q_lora_rank": None}
    text = config_text(read_config(write(tmp_path, content)))
    assert text is not None
    assert json.loads(text)["q_lora_rank"] is None


@pytest.mark.parametrize(
    "content",
    [
        GPT2,
        {**GPT2, "add_cross_attention": False, "pruned_heads": {}, "embd_pdrop": 0.1},
        {**OPT, "layer_norm_elementwise_affine": True, "layerdrop": 0.0},
        {**BERT, "position_embedding_type": "absolute", "chunk_size_feed_forward": 0},
        {**BERT, "architectures": ["BertForMaskedLM"]},
        {**LLAMA3, "architectures": None},
        {**PHI2, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
    ],
)
def test_options_with_their_usual_values_say_nothing(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    assert read_config(write(tmp_path, content)).notes == ()


def test_what_files_of_transformers_leave_out_is_what_the_model_does(tmp_path: Path) -> None:
    """They have no field for how DeepSeek's third version scores and chooses experts."""
    stated = read_config(write(tmp_path, DEEPSEEK_V3))
    content = without(without(DEEPSEEK_V3, "topk_method"), "scoring_func")
    assert read_config(write(tmp_path, content)) == stated


def test_newer_files_keep_the_rotated_part_of_heads_in_a_table(tmp_path: Path) -> None:
    content = {**without(NEOX, "rotary_pct"), "rope_parameters": {"partial_rotary_factor": 0.5}}
    assert read_config(write(tmp_path, content)).rotary_fraction == 0.5


def test_a_gemma_may_read_all_of_a_sequence(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, GEMMA)).causal
    found = read_config(write(tmp_path, {**GEMMA, "use_bidirectional_attention": True}))
    assert not found.causal
    assert read_config(write(tmp_path, config_text(found))) == found


@pytest.mark.parametrize(
    ("content", "left_out", "size", "value"),
    [
        (GEMMA, "head_dim", "depth", 256),
        (GLM4_MOE, "n_shared_experts", "experts", 1408),
        (GPTJ, "rotary_dim", "rotary_fraction", 0.25),
        (FALCON_40B, "max_position_embeddings", "sequence_length", 2048),
        (GPTJ, "resid_pdrop", "dropout", 0.0),
        (STARCODER, "resid_pdrop", "dropout", 0.1),
    ],
)
def test_a_file_leaves_out_what_is_usual_in_its_family(
    tmp_path: Path, content: dict[str, Any], left_out: str, size: str, value: float
) -> None:
    found = getattr(read_config(write(tmp_path, without(content, left_out))), size)
    assert (found.shared_ffn if size == "experts" else found) == value


def test_a_bert_that_is_a_decoder_reads_what_comes_before(tmp_path: Path) -> None:
    assert not read_config(write(tmp_path, BERT)).causal
    assert read_config(write(tmp_path, {**BERT, "is_decoder": True})).causal


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**GPT2, "model_type": "whisper"}, "unknown model_type 'whisper'.*gpt2.*llama"),
        (without(GPT2, "model_type"), "field 'model_type' is missing"),
        (without(GPT2, "n_embd"), "field 'n_embd' is missing; expected a whole number"),
        ({**GPT2, "n_layer": "12"}, "field 'n_layer' is '12'; expected a whole number"),
        ({**GPT2, "n_layer": True}, "field 'n_layer' is True; expected a whole number"),
        ({**GPT2, "n_layer": 0}, "field 'n_layer' is 0; expected a whole number of at least 1"),
        ({**GPTJ, "rotary_dim": 512}, "rotary_dim is 512; expected at most a head's 256"),
        ({**PHI3, "mlp_bias": True}, "mlp_bias is True, which is not supported"),
        ({**GLM4_MOE, "topk_method": "greedy"}, "topk_method is 'greedy', which is not supp"),
        ({**BERT, "architectures": "Bert"}, "field 'architectures' is 'Bert'; expected a list"),
        ({**ROBERTA, "pad_token_id": 600}, "expected more than pad_token_id . 1"),
        ({**GPT2, "n_inner": 0}, "field 'n_inner' is 0; expected a whole number of at least 1"),
        ({**LLAMA3, "num_key_value_heads": 0}, "'num_key_value_heads' is 0; expected a whole"),
        ({**LLAMA3, "attention_dropout": 2.0}, "a dropout is 2.0; expected at least 0, below 1"),
        ({**GPT2, "n_head": 7}, r"hidden \(768\) is not divisible by heads \(7\)"),
        ({**GPT2, "activation_function": "x"}, "activation_function is 'x'; expected one of gelu"),
        ({**LLAMA3, "rope_theta": "x"}, "field 'rope_theta' is 'x'; expected a number"),
        ({**OPT, "word_embed_proj_dim": 512}, r"word_embed_proj_dim \(512\) differs"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "9 experts per token from 1 chosen groups of 8"),
        (
            {**QWEN3_MOE, "mlp_only_layers": [0]},
            r"are listed \(mlp_only_layers\) are not supported",
        ),
        ({**LLAMA4, "moe_layers": [0, 1]}, "moe_layers are not those of interleave_moe_layer_step"),
        ({**LLAMA4, "moe_layers": 3}, "field 'moe_layers' is 3; expected a list"),
        (
            {**ERNIE_MOE, "moe_layer_end_index": 9},
            "moe_layer_end_index is 9; only that of the last",
        ),
        ({**DEEPSEEK_V3, "mlp_bias": True}, "mlp_bias is True, which is not supported"),
        ({**DEEPSEEK_V3, "topk_method": "x"}, "topk_method is 'x'; expected one of greedy, group"),
        (
            {**DEEPSEEK_V3, "scoring_func": "x"},
            "scoring_func is 'x'; expected one of sigmoid, softmax",
        ),
        ({**DEEPSEEK_V3, "qk_rope_head_dim": 63}, "is 63 wide; expected an even number"),
        ({**LLAMA3, "rms_norm_eps": -1e-6}, "'rms_norm_eps' is -1e-06; expected a number of at"),
        ({**GPT2, "layer_norm_epsilon": -1}, "'layer_norm_epsilon' is -1.0; expected a number"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention is True, which is not sup"),
        ({**BERT, "pruned_heads": {"1": [0, 2]}}, "pruned_heads is .* which is not supported"),
        ({**BERT, "position_embedding_type": "relative_key"}, "only 'absolute' is"),
        (
            {**OPT, "layer_norm_elementwise_affine": False},
            "layer_norm_elementwise_affine is False, which is not supported .only True is.; an",
        ),
        ({**OPT, "_remove_final_layer_norm": True}, "_remove_final_layer_norm is True"),
        ("[]", "expected a JSON object"),
        ("{", "not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(
    tmp_path: Path, content: object, message: str
) -> None:
    with pytest.raises(ImportModelError, match=message) as caught:
        read_config(write(tmp_path, content))
    assert "\n" not in str(caught.value)


SMALL = {
    **DEEPSEEK_V3,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("name", [name for name, size in SMALL.items() if type(size) is int])
def test_a_size_of_zero_means_none_or_is_refused(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, {**SMALL, name: 0})
    with suppress(ImportModelError):
        assert Workload(model=load_model(str(file)), batch_size=2).program.blocks


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match=r"config\.json: there is no such file"):
        read_config(tmp_path)
