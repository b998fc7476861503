"""Vision transformers (Dosovitskiy et al. 2021): patches of an image and a class token as a
sequence, transformer layers, and a classifier on the class token."""

from __future__ import annotations

from dataclasses import dataclass

from distir.errors import ImportModelError
from distir.ir import Builder, Function, Value
from distir.models.layers import AttentionKind, drop, linear
from distir.models.sizes import check_sizes
from distir.models.transformer import TransformerConfig, add_layers
from distir.ops.arithmetic import Add
from distir.ops.conv import Conv
from distir.ops.tensor import Concat, Expand, Reshape, Slice, Transpose


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Sizes of a vision transformer. The sequence has `1 + (image / patch)²` positions."""

    name: str
    layers: int
    hidden: int
    heads: int
    patch: int
    image: int = 224
    channels: int = 3
    classes: int = 1000
    dropout: float = 0.1
    """Fraction dropped, in training, after the positions are added and after every linear layer
    except those of queries, keys and values (appendix B.1); attention weights are not dropped."""
    sequence_length: None = None
    """None: the length follows from image and patch."""
    longest: None = None

    def __post_init__(self) -> None:
        check_sizes(self, f"vision transformer {self.name}")
        if not self.patch or self.image % self.patch:
            raise ImportModelError(
                f"vision transformer {self.name}: image size {self.image} is not divisible by "
                f"patch size {self.patch}"
            )

    @property
    def layer_config(self) -> TransformerConfig:
        """The configuration of the transformer layers."""
        return TransformerConfig(
            name=self.name,
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            vocabulary=self.classes,
            sequence_length=1 + (self.image // self.patch) ** 2,
            norm_epsilon=1e-6,
            activation="gelu",
            causal=False,
            dropout=self.dropout,
            attention_dropout=0.0,
            inner_dropout=self.dropout,
        )

    def build(
        self, batch_size: int, sequence_length: int = 1, attention: AttentionKind = "fused"
    ) -> Function:
        """The function from `pixels` to the logits of the classes; `sequence_length` is ignored."""
        return build_vision(self, batch_size, attention)


def build_vision(
    config: VisionConfig, batch_size: int, attention: AttentionKind = "fused"
) -> Function:
    """The function from `pixels`, fp32 `[batch, channels, image, image]`, to logits,
    `[batch, classes]`."""
    builder = Builder(config.name)
    builder.origin = "embedding"
    pixels = builder.input("pixels", (batch_size, config.channels, config.image, config.image))
    x = _embedding(builder, config, pixels)
    x = add_layers(builder, config.layer_config, x, attention)
    x = builder.add(Slice((0, 0, 0), (None, 1, None), (1, 1, 1)), x)
    x = builder.add(Reshape((batch_size, config.hidden)), x)
    return builder.build([linear(builder, x, "head", config.classes)])


def _embedding(builder: Builder, config: VisionConfig, pixels: Value) -> Value:
    """The sequence `[batch, 1 + patches, hidden]`: the class token, then one row per patch."""
    hidden, patch = config.hidden, (config.patch, config.patch)
    weight = builder.parameter("embedding.patch.weight", (hidden, config.channels, *patch))
    bias = builder.parameter("embedding.patch.bias", (hidden,))
    x = builder.add(Conv(strides=patch, pads=(0,) * 4, dilations=(1, 1)), pixels, weight)
    batch, _, *places = x.type.shape
    x = builder.add(Reshape((batch, hidden, places[0] * places[1])), x)
    x = builder.add(Add(), builder.add(Transpose((0, 2, 1)), x), bias)
    token = builder.parameter("embedding.class", (1, 1, hidden))
    x = builder.add(Concat(1), builder.add(Expand((batch, 1, hidden)), token), x)
    position = builder.parameter("embedding.position.weight", (1, *x.type.shape[1:]))
    return drop(builder, builder.add(Add(), x, position), config.dropout)
