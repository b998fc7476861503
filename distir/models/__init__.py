"""The zoo and the builders behind it."""

from __future__ import annotations

from distir.models.layers import AttentionKind
from distir.models.mlp import MlpConfig, build_mlp
from distir.models.transformer import TransformerConfig, build_transformer
from distir.models.zoo import FAMILIES, ZOO, Family, ModelConfig, find_model, has_model

__all__ = [
    "FAMILIES",
    "ZOO",
    "AttentionKind",
    "Family",
    "MlpConfig",
    "ModelConfig",
    "TransformerConfig",
    "build_mlp",
    "build_transformer",
    "find_model",
    "has_model",
]
