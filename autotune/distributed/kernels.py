"""Ops that PyTorch has a kernel for: computed by it in place of the op's own chain of functions.

An entry is `(torch, op, operands) -> results`, in tensors; None if this op, with these attributes
and operands, has no kernel. An op without an entry computes itself, on tensors.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

from autotune.distributed.backend import load_torch
from distir.ir.core import Op
from distir.ops.activations import Dropout, Gelu, Relu, Sigmoid, Silu, Tanh
from distir.ops.attention import FusedAttention, FusedAttentionGradient
from distir.ops.collective import Sharded
from distir.ops.elementwise import UnaryGradient
from distir.ops.fourier import Fourier
from distir.ops.lookup import Gather, GatherGradient
from distir.ops.loss import CrossEntropy, CrossEntropyGradient
from distir.ops.norm import (
    LayerNormalization,
    NormalizationGradient,
    NormalizationScaleGradient,
    Softmax,
    SoftmaxGradient,
)
from distir.ops.optimizer import AdamStep
from distir.ops.ring import COLUMNS, ROWS

Kernel = Callable[[Any, Any, Sequence[Any]], "Sequence[Any] | None"]


def computed_by_kernel(
    op: Op, coordinate: Mapping[str, int], operands: Sequence[Any], *, exact: bool
) -> Sequence[Any] | None:
    """The results of an op, on the device at a place of its mesh, by PyTorch's kernel for it; None
    if there is none. Kernels that draw random numbers of their own are left out if it is to be
    `exact`."""
    plain = _of_any_shard(op, coordinate)
    if plain is None or (exact and _draws(plain)):
        return None
    kernel = KERNELS.get(type(plain))
    return None if kernel is None else kernel(load_torch(), plain, operands)


def _draws(op: Op) -> bool:
    return isinstance(op, Dropout) or bool(getattr(op, "dropout", 0.0))


def _of_any_shard(op: Op, coordinate: Mapping[str, int]) -> Op | None:
    """The op that computes a shard as if it were the whole; None if where the shard is changes more
    than random numbers. Those of a shard come from a seed of its own."""
    if not isinstance(op, Sharded):
        return op
    inner, split = op.op, {window.loop for window in op.windows}
    if type(inner) not in POSITIONS or split & POSITIONS[type(inner)](inner):
        return None
    if not _draws(inner):
        return inner
    starts = [int(window.positions(dict(coordinate))[0]) for window in op.windows]
    return replace(cast("Any", inner), seed=cast("Any", inner).seed + SEEDS * sum(starts))


SEEDS = 10_007
"""Between the seeds of neighbouring shards."""


def _masked(op: Any) -> set[int]:
    return {ROWS, COLUMNS} if op.causal or op.window else set()


POSITIONS: dict[type[Op], Callable[[Any], set[int]]] = {
    FusedAttention: _masked,
    FusedAttentionGradient: _masked,
    Gather: lambda op: {0},
    GatherGradient: lambda op: {0},
    Dropout: lambda op: set(),
}
"""The loops of an op whose positions decide on more of its results than random numbers."""


# --- attention ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _graphs() -> Any:
    """By result of attention, its graph: from the result back to queries, keys and values. A graph
    lives as long as the result, and has the sums of the softmax that the backward kernel wants."""
    return load_torch().utils.weak.WeakTensorKeyDictionary()


def _attention_graph(torch: Any, op: Any, leaves: Sequence[Any], mask: Any) -> Any:
    query, key, value = leaves
    causal = op.causal
    if op.window or (mask is not None and causal):
        shape = (query.shape[2], key.shape[2])
        seen = torch.ones(shape, dtype=torch.bool, device=query.device)
        if causal:
            seen = seen.tril()
        if op.window:
            seen = seen.triu(1 - op.window).tril(op.window - 1)
        term = torch.zeros((), device=query.device) if mask is None else mask
        mask, causal = torch.where(seen, term, -torch.inf), False
    if op.dropout:
        torch.manual_seed(op.seed)  # as before, where the forward pass is run again
    with torch.enable_grad():
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=None if mask is None else mask.to(query.dtype),
            dropout_p=op.dropout, is_causal=causal, scale=op.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip


def _attention(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:
    leaves = [each.detach().requires_grad_() for each in operands[:3]]
    made = _attention_graph(torch, op, leaves, operands[3] if len(operands) > 3 else None)
    result = made.detach()
    _graphs()[result] = (made, leaves)
    return (result,)


def _attention_gradient(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:
    known = _graphs().pop(operands[3], None)
    if known is None:  # the result was moved or cast on its way
        leaves = [each.detach().requires_grad_() for each in operands[:3]]
        mask = operands[5] if len(operands) > 5 else None
        known = _attention_graph(torch, op, leaves, mask), leaves
    made, leaves = known
    return torch.autograd.grad(made, leaves, operands[4])


# --- norms and softmax ----------------------------------------------------------------------------


def _layer_norm(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:
    x, scale = operands[:2]
    bias = operands[2] if len(operands) > 2 else None
    shape = x.shape[op.axis % x.ndim :]
    return (torch.nn.functional.layer_norm(x, shape, scale, bias, op.epsilon),)


def _norm_gradients(torch: Any, op: Any, x: Any, scale: Any, gradient: Any, which: int) -> Any:
    if not op.centered:
        return None
    shape = x.shape[op.axis :]
    native = torch.ops.aten
    _, mean, inverse = native.native_layer_norm(x, shape, scale, None, op.epsilon)
    wanted = [place == which for place in range(3)]
    made = native.native_layer_norm_backward(
        gradient.contiguous(), x, shape, mean, inverse, scale, None, wanted
    )
    return (made[which],)


def _norm_gradient(torch: Any, op: Any, operands: Sequence[Any]) -> Any:
    return _norm_gradients(torch, op, *operands, which=0)


def _scale_gradient(torch: Any, op: Any, operands: Sequence[Any]) -> Any:
    x, gradient = operands
    scale = torch.ones(x.shape[op.axis :], dtype=x.dtype, device=x.device)
    return _norm_gradients(torch, op, x, scale, gradient, which=1)


def _softmax(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:
    return (torch.softmax(operands[0], op.axis),)


def _softmax_gradient(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:
    y, gradient = operands
    native = torch.ops.aten
    return (native._softmax_backward_data(gradient, y, op.axis, y.dtype),)  # noqa: SLF001


# --- elementwise ones -----------------------------------------------------------------------------


def _gelu(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:
    return (torch.nn.functional.gelu(operands[0], approximate=op.approximate),)


def _relu(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:  # noqa: ARG001
    return (torch.relu(operands[0]),)


def _silu(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:  # noqa: ARG001
    return (torch.nn.functional.silu(operands[0]),)


def _slope(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    kept, gradient = operands
    native, inner = torch.ops.aten, op.op
    if isinstance(inner, Gelu):
        return (native.gelu_backward(gradient, kept, approximate=inner.approximate),)
    if isinstance(inner, Relu):
        return (native.threshold_backward(gradient, kept, 0),)
    if isinstance(inner, Silu):
        return (native.silu_backward(gradient, kept),)
    if isinstance(inner, Tanh):
        return (native.tanh_backward(gradient, kept),)
    if isinstance(inner, Sigmoid):
        return (native.sigmoid_backward(gradient, kept),)
    return None


def _dropout(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:
    (x,) = operands
    if not op.ratio:
        return (x, torch.ones(x.shape, dtype=torch.bool, device=x.device))
    torch.manual_seed(op.seed)
    mask = torch.rand(x.shape, device=x.device) >= op.ratio
    return (x * mask / (1 - op.ratio), mask)


def _fourier(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Numbers of 16 bits in fp32: PyTorch transforms no others everywhere."""
    (x,) = operands
    numbers = torch.view_as_complex((x if x.itemsize > 2 else x.float()).contiguous())
    of = torch.fft.ifft if op.inverse else torch.fft.fft
    norm = "forward" if op.inverse else "backward"  # neither is divided by the length
    return (torch.view_as_real(of(numbers, dim=op.axis, norm=norm)),)


# --- lookups and the loss -------------------------------------------------------------------------


def _gather(
    torch: Any,  # noqa: ARG001
    op: Any,
    operands: Sequence[Any],
) -> Sequence[Any] | None:
    table, index = operands
    if op.axis % table.ndim or table.ndim < 2:
        return None
    rows = table.index_select(0, (index.long() % len(table)).reshape(-1))
    return (rows.reshape(*index.shape, *table.shape[1:]),)


def _gather_gradient(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    index, gradient = operands
    if op.axis:
        return None
    table = torch.zeros(op.shape, dtype=gradient.dtype, device=gradient.device)
    rows = gradient.reshape(-1, *op.shape[1:])
    table.index_add_(0, (index.long() % op.shape[0]).reshape(-1), rows)
    return (table,)


def _cross_entropy(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:  # noqa: ARG001
    logits, labels = operands
    flat = logits.reshape(-1, logits.shape[-1])
    function = torch.nn.functional.cross_entropy
    return (function(flat, labels.long().reshape(-1), reduction="none").reshape(labels.shape),)


def _cross_entropy_gradient(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any]:  # noqa: ARG001
    logits, labels, gradient = operands
    result = torch.softmax(logits, -1)
    picked = labels.long()[..., None]
    result.scatter_add_(-1, picked, result.new_full(picked.shape, -1.0))
    return (result.mul_(gradient[..., None]),)


# --- the optimizer --------------------------------------------------------------------------------


def _adam(torch: Any, op: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """In place: what the optimizer reads, nobody reads after it."""
    parameter, gradient, mean, square = operands
    in_one_piece = all(each.is_contiguous() for each in (parameter, mean, square))
    if parameter.dtype is not mean.dtype or not in_one_piece:
        return None
    gradient = gradient.to(parameter.dtype).contiguous()
    torch._fused_adam_(
        [parameter], [gradient], [mean], [square], [],
        [torch.tensor(float(op.step), device=parameter.device)],
        lr=op.learning_rate, beta1=op.beta1, beta2=op.beta2, weight_decay=0.0, eps=op.epsilon,
        amsgrad=False, maximize=False,
    )  # fmt: skip
    return (parameter, mean, square)


KERNELS: dict[type[Op], Kernel] = {
    FusedAttention: _attention,
    FusedAttentionGradient: _attention_gradient,
    LayerNormalization: _layer_norm,
    NormalizationGradient: _norm_gradient,
    NormalizationScaleGradient: _scale_gradient,
    Softmax: _softmax,
    SoftmaxGradient: _softmax_gradient,
    Gelu: _gelu,
    Relu: _relu,
    Dropout: _dropout,
    Silu: _silu,
    Fourier: _fourier,
    UnaryGradient: _slope,
    Gather: _gather,
    GatherGradient: _gather_gradient,
    CrossEntropy: _cross_entropy,
    CrossEntropyGradient: _cross_entropy_gradient,
    AdamStep: _adam,
}

__all__ = ["KERNELS", "computed_by_kernel"]
