"""Files of models that also read images: the language model in them is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distir.errors import ImportModelError
from distir.importers.config import read_config
from tests.importers.published_configs import DEEPSEEK_V3, QWEN3_MOE

VISION = {"model_type": "siglip_vision_model", "hidden_size": 1152}
GEMMA3_4B: dict[str, Any] = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": VISION,
}
LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "vocab_size": 32064,
    },
    "tie_word_embeddings": False,
    "vision_config": VISION,
}
QWEN_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128000,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vision_config": {"depth": 32},
    "vocab_size": 152064,
}


def read(folder: Path, content: object) -> Any:
    (folder / "config.json").write_text(json.dumps(content))
    return read_config(folder)


@pytest.mark.parametrize(
    ("content", "parameters"),
    [
        (GEMMA3_4B, 3_880_263_168),
        # Vicuna has those of Llama 2; 64 tokens were added to both tables.
        (LLAVA, 6_738_415_616 + 2 * 64 * 4096),
        (QWEN_VL, 7_615_616_512),  # those of Qwen2.5-7B
    ],
)
def test_the_language_model_has_its_parameters(
    tmp_path: Path, content: dict[str, Any], parameters: int
) -> None:
    found = read(tmp_path, content)
    assert sum(each.type.num_elements for each in found.build(2, 24).parameters) == parameters
    assert (
        found.notes[-1]
        == "only the language model of the file is simulated; vision_config is left out"
    )


def test_parameters_that_are_stored_otherwise_are_told(tmp_path: Path) -> None:
    stored = {"quantization_config": {"quant_method": "fp8"}}
    (told,) = read(tmp_path, {**QWEN3_MOE, **stored}).notes
    assert told.startswith("parameters are simulated in the requested precision")


def test_what_the_object_leaves_out_is_as_in_its_class(tmp_path: Path) -> None:
    found = read(tmp_path, GEMMA3_4B)
    assert (found.heads, found.kv_heads, found.head_dim) == (8, 4, 256)
    assert found.tied_embeddings
    assert found.windows == (1024,) * 5 + (0,)


def test_the_whole_says_whether_embeddings_are_tied(tmp_path: Path) -> None:
    assert not read(tmp_path, LLAVA).tied_embeddings
    assert read(tmp_path, {**LLAVA, "tie_word_embeddings": True}).tied_embeddings


def test_what_the_object_states_counts_by_any_of_its_names(tmp_path: Path) -> None:
    mixture = {**QWEN3_MOE, "model_type": "qwen3_vl_moe_text"}
    for name in ("num_experts", "num_local_experts"):
        stated = {**mixture, name: 16}
        if name != "num_experts":
            del stated["num_experts"]
        found = read(tmp_path, {"model_type": "qwen3_vl_moe", "text_config": stated})
        assert found.experts is not None
        assert found.experts.count == 16


@pytest.mark.parametrize(
    ("model_type", "name", "value"),
    [
        ("gemma3_text", "rotary_base", 1e6),
        ("deepseek_v3", "scale", 2.5),
        ("deepseek_v3", "groups", 8),
        ("llama4_text", "count", 16),
    ],
)
def test_what_is_left_out_is_what_transformers_takes(
    tmp_path: Path, model_type: str, name: str, value: float
) -> None:
    found = read(tmp_path, {"model_type": "any", "text_config": {"model_type": model_type}})
    holder = found.experts if hasattr(found.experts, name) else found
    assert getattr(holder, name) == value


def test_an_object_has_the_layers_of_the_model_alone(tmp_path: Path) -> None:
    alone = read(tmp_path, DEEPSEEK_V3)
    content = {"model_type": "kimi_vl", "text_config": DEEPSEEK_V3, "projector_config": {}}
    part = read(tmp_path, content)
    assert replace(part, notes=alone.notes) == alone


def test_all_other_parts_are_told(tmp_path: Path) -> None:
    more = {"audio_config": {"model_type": "whisper"}, "quantization_config": {"bits": 4}}
    (*_, told) = read(tmp_path, {**LLAVA, **more}).notes
    assert told.endswith("; vision_config and audio_config are left out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}},
            "config.json, text_config: unknown model_type 'mllama_text_model'",
        ),
        ({"model_type": "clip", "text_config": {"hidden_size": 512}}, "unknown model_type 'clip'"),
        ({"model_type": "llava", "text_config": 3}, "unknown model_type 'llava'"),
        (
            {**LLAVA, "text_config": {"model_type": "llama", "hidden_size": "wide"}},
            "config.json, text_config: field 'hidden_size' is 'wide'",
        ),
    ],
)
def test_what_is_wrong_is_said_where_it_is(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    with pytest.raises(ImportModelError, match=message):
        read(tmp_path, content)


def test_heads_of_latents_need_not_divide_the_width(tmp_path: Path) -> None:
    odd = read(tmp_path, {**DEEPSEEK_V3, "num_attention_heads": 96, "num_key_value_heads": 96})
    assert odd.build(2, 24).parameters
