"""Feed-forward parts that are mixtures of experts: every token goes through a few of many."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from distir.errors import ImportModelError
from distir.ir import Builder, Value
from distir.models.layers import ACTIVATIONS, Activation, gated_feed_forward, linear
from distir.ops.activations import Sigmoid
from distir.ops.arithmetic import Add, Div, Mul
from distir.ops.comparisons import Where
from distir.ops.linalg import Einsum
from distir.ops.norm import Softmax
from distir.ops.reduce import ReduceSum
from distir.ops.routing import Combine, Dispatch, DispatchWeights, TopKMask
from distir.ops.tensor import Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Sizes and choices of a mixture. All experts have gated feed-forward parts."""

    count: int
    top_k: int
    """Experts that a token goes through."""
    ffn: int
    """Width inside an expert."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = True
    """The weights of a token's experts add up to 1."""
    scale: float = 1.0
    """What weights are multiplied by in the end."""
    corrected: bool = False
    """A bias per expert is added to the scores where experts are chosen, not where they are
    weighed (Wang et al. 2024); no gradient reaches it."""
    shared_ffn: int = 0
    """Width of an expert that all tokens go through besides; 0: there is none."""
    shared_gate: bool = False
    """The shared expert's result is multiplied by a number between 0 and 1 per token."""
    dense_layers: int = 0
    """Layers at the beginning that have an ordinary feed-forward part."""
    groups: int = 1
    """Equal groups of experts; a token goes to those of `chosen_groups` of them."""
    chosen_groups: int = 1
    group_best: int = 1
    """Groups are chosen by the sum of so many of their best scores."""
    imbalance: float = 1.0
    """Tokens of the fullest expert over the mean: 1 is balanced routing."""

    def __post_init__(self) -> None:
        if not 1 <= self.imbalance < math.inf:
            raise ImportModelError(f"imbalance is {self.imbalance!r}; expected at least 1")
        size, rest = divmod(self.count, self.groups)
        if rest or not 1 <= self.chosen_groups <= self.groups:
            raise ImportModelError(
                f"{self.chosen_groups} of {self.groups} groups of {self.count} experts; expected "
                "groups of equal size, and no more than there are"
            )
        if self.chosen_groups * size < self.top_k:
            raise ImportModelError(
                f"{self.top_k} experts in {self.chosen_groups} groups of {size}; expected fewer"
            )


ConfigType = TypeVar("ConfigType")


def with_imbalance(config: ConfigType, imbalance: float) -> ConfigType:
    """The configuration of a mixture with other routing; raises `ImportModelError` for models
    without experts."""
    experts = getattr(config, "experts", None)
    if not isinstance(experts, Experts):
        name = getattr(config, "name", "the model")
        raise ImportModelError(f"imbalance is about experts, but {name} has none")
    changed = replace(experts, imbalance=imbalance)
    return replace(config, experts=changed)  # type: ignore[type-var]


def mixture(
    builder: Builder, x: Value, name: str, experts: Experts, activation: Activation
) -> Value:
    """`[batch, sequence, hidden]` to the same.

    A token's weight at an expert meets it before the last product, which is linear: what comes back
    from the experts, wide and exchanged, need not be kept for the gradient of the weight
    (Megatron-Core, fusions/fused_bias_swiglu.py, WeightedSwiGLUFunction)."""
    hidden = x.type.shape[-1]
    mask, weights = _route(builder, x, f"{name}.router", experts)
    groups = experts.groups, experts.chosen_groups
    how = experts.top_k, experts.imbalance
    slots = builder.add(Dispatch(*how, groups=groups[0], chosen=groups[1]), x, mask)

    def product(x: Value, part: str, inner: int, outer: int) -> Value:
        weight = builder.parameter(f"{name}.experts.{part}.weight", (experts.count, inner, outer))
        return builder.add(Einsum("becn,enm->becm"), x, weight)

    gate = builder.add(ACTIVATIONS[activation], product(slots, "gate", hidden, experts.ffn))
    inner = builder.add(Mul(), gate, product(slots, "up", hidden, experts.ffn))
    share = builder.add(DispatchWeights(*how), weights, mask)
    y = product(builder.add(Mul(), inner, share), "down", experts.ffn, hidden)
    y = builder.add(Combine(*how, *groups), y, mask)
    if not experts.shared_ffn:
        return y
    return builder.add(Add(), y, _shared(builder, x, f"{name}.shared", experts, activation))


def _route(builder: Builder, x: Value, name: str, experts: Experts) -> tuple[Value, Value]:
    """Who goes where, and with what weight: `[batch, sequence, experts]` each."""
    logits = linear(builder, x, name, experts.count, bias=False)
    scores = builder.add(Softmax() if experts.scoring == "softmax" else Sigmoid(), logits)
    chosen_by = scores
    if experts.corrected:
        bias = builder.parameter(f"{name}.correction", (experts.count,))
        chosen_by = builder.add(Add(), scores, bias)
    choice = TopKMask(experts.top_k, experts.groups, experts.chosen_groups, experts.group_best)
    mask = builder.add(choice, chosen_by)
    weights = builder.add(Where(), mask, scores, builder.scalar(0.0))
    if experts.normalized:
        weights = builder.add(Div(), weights, builder.add(ReduceSum((2,)), weights))
    if experts.scale != 1.0:
        weights = builder.add(Scale(experts.scale), weights)
    return mask, weights


def _shared(
    builder: Builder, x: Value, name: str, experts: Experts, activation: Activation
) -> Value:
    y = gated_feed_forward(builder, x, name, experts.shared_ffn, activation)
    if not experts.shared_gate:
        return y
    share = builder.add(Sigmoid(), linear(builder, x, f"{name}.share", 1, bias=False))
    return builder.add(Mul(), y, share)
