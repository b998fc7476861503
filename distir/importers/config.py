"""Reads a Hugging Face `config.json` into a model configuration; weights are not needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

# Importing families registers them.
import distir.importers.config_bert  # noqa: F401
import distir.importers.config_gpt  # noqa: F401
import distir.importers.config_llama  # noqa: F401
import distir.importers.config_mixtures  # noqa: F401
from distir.errors import ImportModelError, shown
from distir.files import is_file, is_folder, read_parsed
from distir.importers.config_fields import MODEL_TYPES, Fields
from distir.importers.config_parts import language_model, part_notes
from distir.models.transformer import TransformerConfig

_ONLY: Mapping[str, object] = {
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "layer_norm_elementwise_affine": True,
    "pruned_heads": {},
    "is_causal": True,
    "_remove_final_layer_norm": False,
}
"""Options that change the layers of a model, and the value that models here are built for."""

_LEFT_OUT: Mapping[str, str] = {
    "chunk_size_feed_forward": "feed-forward parts take all positions at once",
    "layerdrop": "every layer is run in every step",
    "reorder_and_upcast_attn": "attention is computed in the type of its operands",
}
"""Options that only change how layers are run, and what is done where they are set."""

_LANGUAGE_MODELS = (
    "ForCausalLM",
    "LMHeadModel",
    "ForMaskedLM",
    "ForPreTraining",
    "ForConditionalGeneration",
)
"""Ends of the names of classes that have the head which models here have."""


def read_config(path: str | Path) -> TransformerConfig:
    """The configuration that a `config.json`, or a directory with one, describes.

    Raises `ImportModelError` if the file cannot be read, has an unknown `model_type`, or lacks a
    field.
    """
    file = Path(path)
    if is_folder(file):
        file = file / "config.json"
    whole = Fields(_read_object(file), str(file))
    fields = language_model(whole)
    model_type = fields.text("model_type")
    if model_type not in MODEL_TYPES:
        raise ImportModelError(
            f"{fields.where}: unknown model_type {shown(model_type)}; expected one of "
            f"{', '.join(sorted(MODEL_TYPES.names()))}; an ONNX export of the model works too"
        )
    for option, value in _ONLY.items():
        fields.only(option, value)
    name = file.absolute().parent.name if file.name == "config.json" else file.stem
    config = MODEL_TYPES.get(model_type)(name or model_type, fields)
    left_out = (
        f"{done}; the model's {option} is not applied"
        for option, done in _LEFT_OUT.items()
        if fields.has(option)
    )
    told = (*left_out, *_head_notes(fields), *part_notes(whole))
    return replace(config, notes=(*config.notes, *told))


def _head_notes(fields: Fields) -> tuple[str, ...]:
    """What is told of a file whose model has another head, such as a classifier."""
    classes = fields.texts("architectures")
    if not classes or any(each.endswith(_LANGUAGE_MODELS) for each in classes):
        return ()
    return (f"the head is that of a language model, although the file states {classes[0]}",)


def _read_object(file: Path) -> Mapping[str, object]:
    if not is_file(file):
        raise ImportModelError(f"{file}: there is no such file")
    content: object = read_parsed(file, json.loads, "JSON", ImportModelError)
    if not isinstance(content, dict):
        raise ImportModelError(f"{file}: expected a JSON object with the fields of a model")
    return cast("Mapping[str, object]", content)


__all__ = ["MODEL_TYPES", "read_config"]
