"""Files of models with several parts, such as one that reads images: their language model.

Such a file has the fields of the language model in an object `text_config`, and those of other
parts in objects beside it. Files of a few older models have them among the fields of the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from distir.importers.config_fields import Fields

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LANGUAGE = "text_config"
"""The object with the language model."""

_QUANTIZED = ("quantization_config", "compression_config")
"""Objects that say how the parameters of a checkpoint are stored."""

_NO_PARTS = (LANGUAGE, *_QUANTIZED, "generation_config")
"""Objects that are no further parts of the model."""

_SAME_AS: Mapping[str, str] = {
    "glm4v_moe_text": "glm4_moe",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
"""Names of language models that are only used as parts, and the `model_type` that they have the
layers of: they differ in how positions of images are rotated."""


def language_model(whole: Fields) -> Fields:
    """The fields of the language model. What an object in a file leaves out is as in transformers,
    which writes there only what differs from the defaults of its classes; a whole file leaves
    nothing out."""
    part = whole.table(LANGUAGE) if whole.holds(LANGUAGE) else None
    if part is None or not part.states("model_type"):
        model_type = whole.text("model_type")
        return whole.completed({}, {"model_type": _SAME_AS.get(model_type, model_type)})
    stated, usual = part.text("model_type"), _defaults()
    model_type = _SAME_AS.get(stated, stated)
    first: dict[str, object] = {"model_type": model_type}
    if whole.states("tie_word_embeddings"):
        first["tie_word_embeddings"] = whole.flag("tie_word_embeddings")
    return part.completed(usual.get(stated, usual.get(model_type, {})), first)


def part_notes(whole: Fields) -> tuple[str, ...]:
    """What is told of other parts than the language model, and of parameters that are quantized."""
    parts = [
        name
        for name in whole.names()
        if name.endswith("_config") and name not in _NO_PARTS and whole.holds(name)
    ]
    stored = [
        f"parameters are simulated in the requested precision, not as {name} stores them"
        for name in _QUANTIZED
        if whole.holds(name)
    ]
    if not parts and not whole.holds(LANGUAGE):
        return tuple(stored)
    note = "only the language model of the file is simulated"
    if parts:
        note += f"; {' and '.join(parts)} {'is' if len(parts) == 1 else 'are'} left out"
    return (*stored, note)


@cache
def _defaults() -> Mapping[str, Mapping[str, object]]:
    """By `model_type`, what the object of a language model means where it says nothing."""
    file = Path(__file__).parent / "text_config_defaults.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


__all__ = ["language_model", "part_notes"]
