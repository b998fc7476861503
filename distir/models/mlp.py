"""MLPs of DistIR (Santhanam et al. 2021): stacks of square linear layers, each followed by ReLU."""

from __future__ import annotations

from dataclasses import dataclass

from distir.errors import ImportModelError
from distir.ir import Builder, Function
from distir.models.layers import AttentionKind, linear
from distir.models.sizes import check_sizes
from distir.ops.activations import Relu


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """`layers` times `relu(x @ weight[width, width] + bias)`."""

    name: str
    layers: int
    width: int
    bias: bool = True
    sequence_length: None = None
    """An MLP has no sequence."""
    longest: None = None

    def __post_init__(self) -> None:
        check_sizes(self, f"MLP {self.name}")
        if self.layers < 1 or self.width < 2:
            raise ImportModelError(
                f"MLP {self.name}: {self.layers} layers of width {self.width}; "
                "expected at least 1 layer and width 2"
            )

    def build(
        self, batch_size: int, sequence_length: int = 1, attention: AttentionKind = "fused"
    ) -> Function:
        """The function from `x` to the last activation, at this batch size; the other arguments
        are ignored."""
        return build_mlp(self, batch_size)


def build_mlp(config: MlpConfig, batch_size: int) -> Function:
    """The function from `x`, fp32 `[batch, width]`, to the last activation, of the same shape."""
    builder = Builder(config.name)
    x = builder.input("x", (batch_size, config.width))
    for layer in range(config.layers):
        builder.origin = f"layers.{layer}"
        x = linear(builder, x, f"layers.{layer}", config.width, bias=config.bias)
        x = builder.add(Relu(), x)
    return builder.build([x])
