"""A model's `config.json` is written so that it is read as the same model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from distir.importers.config import MODEL_TYPES, read_config
from distir.importers.config_text import FAMILIES, config_text
from distir.models.transformer import TransformerConfig
from distir.models.zoo import ZOO

CONFIGS = {e.name: e.value for e in ZOO if isinstance(e.value, TransformerConfig)}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_transformer_of_the_zoo_is_written_and_read(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    text = config_text(config)
    assert text is not None
    (tmp_path / "config.json").write_text(text)
    found = read_config(tmp_path)
    # A size that a configuration leaves to others is stated in a file.
    sizes = ("kv_heads", "head_dim", "ffn", "attention_dropout")
    stated = {size: getattr(found, size) for size in sizes}
    assert replace(config, name=found.name, notes=(), **stated) == replace(found, notes=())
    for size, own in (("kv_heads", "num_kv_heads"), ("head_dim", "depth"), ("ffn", "ffn_width")):
        assert getattr(found, own) == getattr(config, own), size


def test_every_family_that_is_read_is_written() -> None:
    """Some are another by another name, such as `kimi_k2`, which is `deepseek_v3`."""
    others = {"ministral", "ministral3", "smollm3", "kimi_k2"}
    others |= {"xlm-roberta", "camembert"}
    assert set(MODEL_TYPES.names()) - set(FAMILIES) == others


def test_a_model_of_no_family_is_not_written() -> None:
    odd = replace(CONFIGS["llama3-8b"], norm_first=False)
    assert config_text(odd) is None


def test_what_is_written_is_the_family_that_has_it() -> None:
    kinds = {
        name: json.loads(config_text(CONFIGS[name]) or "{}")["model_type"]
        for name in ("gpt2", "qwen3-8b", "mixtral-8x7b", "deepseek-v3", "bert-base")
    }
    assert list(kinds.values()) == ["gpt2", "qwen3", "mixtral", "deepseek_v3", "bert"]
