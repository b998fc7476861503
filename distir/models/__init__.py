"""Models that are built here: the zoo, by name, and the configurations and builders behind it."""

from __future__ import annotations

from distir.models.layers import AttentionKind
from distir.models.mlp import MlpConfig, build_mlp
from distir.models.t5 import T5Config, build_t5
from distir.models.transformer import TransformerConfig, build_transformer
from distir.models.vision import VisionConfig, build_vision
from distir.models.zoo import FAMILIES, ZOO, Family, ModelConfig, find_model, has_model

__all__ = [
    "FAMILIES",
    "ZOO",
    "AttentionKind",
    "Family",
    "MlpConfig",
    "ModelConfig",
    "T5Config",
    "TransformerConfig",
    "VisionConfig",
    "build_mlp",
    "build_t5",
    "build_transformer",
    "build_vision",
    "find_model",
    "has_model",
]
