"""Mixtures of experts: feed-forward parts in which a token goes through a few of many experts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from distir.errors import ImportModelError
from distir.ir import Builder, Value
from distir.models.layers import ACTIVATIONS, Activation, gated_feed_forward, linear
from distir.models.sizes import check_sizes
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
    """Sizes and choices of a mixture of experts. Experts are gated where the model's feed-forward
    parts are."""

    count: int
    """Number of experts."""
    top_k: int
    """Number of experts that a token goes through."""
    ffn: int
    """Width inside an expert."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = True
    """Whether the weights of a token's experts are made to add up to 1."""
    scale: float = 1.0
    """Factor of the weights, applied last."""
    corrected: bool = False
    """Whether a bias per expert is added to the scores that experts are chosen by, though not to
    their weights (Wang et al. 2024); no gradient reaches it."""
    biases: bool = False
    """Whether the router and the products of experts have biases."""
    shared_ffn: int = 0
    """Width of a shared expert, which every token goes through; 0: there is none."""
    shared_gate: bool = False
    """Whether the shared expert's result is multiplied by a number between 0 and 1 per token."""
    dense_layers: int = 0
    """Number of layers at the beginning with an ordinary feed-forward part."""
    every: int = 1
    """Behind these a layer with experts comes every so many layers; the others have an ordinary
    feed-forward part. With 2, every other layer has experts, as in GShard (Lepikhin et al. 2021),
    whose first layer has none."""
    groups: int = 1
    """Number of equal groups of experts."""
    chosen_groups: int = 1
    """Number of groups among whose experts a token's experts are chosen."""
    group_best: int = 1
    """Number of a group's best scores whose sum decides whether the group is chosen."""
    imbalance: float = 1.0
    """Tokens of the fullest expert over the mean; 1 is balanced routing."""

    def __post_init__(self) -> None:
        check_sizes(self, "experts", needed=("count", "top_k", "ffn", "every", "groups"))
        if not 1 <= self.imbalance < math.inf:
            raise ImportModelError(f"imbalance is {self.imbalance!r}; expected at least 1")
        size, rest = divmod(self.count, self.groups)
        if rest or not 1 <= self.chosen_groups <= self.groups:
            raise ImportModelError(
                f"{self.chosen_groups} chosen of {self.groups} groups of {self.count} experts; "
                "expected groups of equal size, and at least 1 and at most all of them chosen"
            )
        if self.chosen_groups * size < self.top_k:
            raise ImportModelError(
                f"{self.top_k} experts per token from {self.chosen_groups} chosen groups of {size};"
                f" expected at most {self.chosen_groups * size}"
            )

    def are_in(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        behind = layer - self.dense_layers
        return behind >= 0 and behind % self.every == 0


ConfigType = TypeVar("ConfigType")


def with_imbalance(config: ConfigType, imbalance: float) -> ConfigType:
    """The configuration with another imbalance of routing. Raises `ImportModelError` for models
    without experts."""
    experts = getattr(config, "experts", None)
    if not isinstance(experts, Experts):
        name = getattr(config, "name", "the model")
        raise ImportModelError(f"imbalance = {imbalance} applies to experts, but {name} has none")
    changed = replace(experts, imbalance=imbalance)
    return replace(config, experts=changed)  # type: ignore[type-var]


def mixture(
    builder: Builder,
    x: Value,
    name: str,
    experts: Experts,
    activation: Activation,
    *,
    gated: bool = True,
) -> Value:
    """A mixture of experts on `x`, `[batch, sequence, hidden]`; the result has the same shape.

    A token is multiplied by its weight at an expert before the last product, which is linear. So
    the results of the experts, which are wide and exchanged between devices, need not be kept for
    the gradient of the weight (Megatron-Core, fusions/fused_bias_swiglu.py,
    WeightedSwiGLUFunction).
    """
    hidden = x.type.shape[-1]
    mask, weights = _route(builder, x, f"{name}.router", experts)
    groups = experts.groups, experts.chosen_groups
    how = experts.top_k, experts.imbalance
    slots = builder.add(Dispatch(*how, groups=groups[0], chosen=groups[1]), x, mask)

    def product(x: Value, part: str, inner: int, outer: int, share: Value | None = None) -> Value:
        """A product of each expert, and its bias, of which each token gets its share."""
        weight = builder.parameter(f"{name}.experts.{part}.weight", (experts.count, inner, outer))
        y = builder.add(Einsum("becn,enm->becm"), x, weight)
        if not experts.biases:
            return y
        bias = builder.parameter(f"{name}.experts.{part}.bias", (experts.count, 1, outer))
        return builder.add(Add(), y, bias if share is None else builder.add(Mul(), share, bias))

    first = product(slots, "gate" if gated else "up", hidden, experts.ffn)
    inner = builder.add(ACTIVATIONS[activation], first)
    if gated:
        inner = builder.add(Mul(), inner, product(slots, "up", hidden, experts.ffn))
    share = builder.add(DispatchWeights(*how), weights, mask)
    y = product(builder.add(Mul(), inner, share), "down", experts.ffn, hidden, share)
    y = builder.add(Combine(*how, *groups), y, mask)
    if not experts.shared_ffn:
        return y
    return builder.add(Add(), y, _shared(builder, x, f"{name}.shared", experts, activation))


def _route(builder: Builder, x: Value, name: str, experts: Experts) -> tuple[Value, Value]:
    """Whether each token goes to each expert, and its weight there: `[batch, sequence, experts]`
    each."""
    logits = linear(builder, x, name, experts.count, bias=experts.biases)
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
    """The result of the shared expert, `[batch, sequence, hidden]`."""
    y = gated_feed_forward(builder, x, name, experts.shared_ffn, activation)
    if not experts.shared_gate:
        return y
    share = builder.add(Sigmoid(), linear(builder, x, f"{name}.share", 1, bias=False))
    return builder.add(Mul(), y, share)
