"""Attaches a loss to a model's main output."""

from __future__ import annotations

from dataclasses import replace

from distir.axes.infer import extend_axes
from distir.axes.model import Axes
from distir.axes.order import canonical_order
from distir.errors import TransformError
from distir.ir.builder import Builder
from distir.ir.core import Part, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.ir.types import DType
from distir.ops.loss import CrossEntropy, SquaredError
from distir.ops.norm import Softmax
from distir.ops.reduce import ReduceMean, ReduceSum
from distir.transforms.blocks import Roles

LOSSES = ("cross-entropy", "mse", "sum")
"""Cross-entropy of logits with labels; mean squared error against a target; sum of all elements."""


def attach_loss(function: Function, axes: Axes, loss: str) -> tuple[Function, Axes]:
    """The function that computes the loss of the main output, and the axes of all its ops.

    Labels or a target become inputs. Cross-entropy and squared error are averaged over all rows.
    Raises `TransformError` if the loss is unknown or needs another output; all need real numbers.
    """
    main = function.outputs[0]
    if loss not in LOSSES:
        raise TransformError(f"unknown loss {loss!r}; expected one of {', '.join(LOSSES)}")
    if not main.type.dtype.is_float:
        raise TransformError(
            f"training needs an output of real numbers; the first output is {main}, which has no "
            "derivative; choose --mode inference, or a model with another first output"
        )
    builder = Builder(function.name)
    builder.origin, builder.part = "loss", Part.LOSS
    if loss == "cross-entropy":
        main, shape = _without_softmax(function, main), main.type.shape[:-1]
        if not shape:
            raise TransformError(
                f"cross-entropy needs an output with classes in its last dim; found {main}; "
                "choose --loss mse or sum"
            )
        labels = builder.input("labels", shape, DType.INT64)
        per_row = builder.add(CrossEntropy(), main, labels)
    elif loss == "mse":
        target = builder.input("target", main.type.shape, main.type.dtype)
        per_row = builder.add(SquaredError(), main, target)
    else:
        per_row = main
    dims = tuple(range(per_row.type.rank))
    reduce = ReduceSum(dims, keepdims=False) if loss == "sum" else ReduceMean(dims, keepdims=False)
    total = builder.add(reduce, per_row, name="loss") if dims else per_row
    seeds = {main: axes.dims[main]}
    nodes, added = extend_axes(builder.nodes, (main, *builder.inputs), seeds)
    axes = Axes(
        dims={**added.dims, **axes.dims},
        loops={**added.loops, **axes.loops},
        kinds={**added.kinds, **axes.kinds},
        ties={**added.ties, **axes.ties},
        follows={**added.follows, **axes.follows},
    )
    function = replace(
        function,
        inputs=(*function.inputs, *builder.inputs),
        nodes=(*function.nodes, *nodes),
        outputs=(total,),
    )
    return canonical_order(function), axes


def _without_softmax(function: Function, main: Value) -> Value:
    """The logits: the operand of a final Softmax over the last dim, which cross-entropy includes;
    otherwise the output itself."""
    node = function.producers().get(main)
    if node is not None and isinstance(node.op, Softmax):
        if node.op.axis % main.type.rank == main.type.rank - 1:
            return node.operands[0]
    return main


def is_logits(function: Function, axes: Axes, main: Value) -> bool:
    """Whether the main output is logits: its last dim is made by a product, and no activations have
    that axis but those between the product and the output."""
    if not main.type.shape or not main.type.dtype.is_float or not axes.dims[main][-1]:
        return False
    last = set(axes.dims[main][-1])
    roles = Roles.of(function)
    producers = function.producers()
    tail: set[Value] = set()
    stack = [main]
    while stack:
        value = stack.pop()
        if value in tail or not last & axes.of(value) or value not in roles.activations:
            continue
        tail.add(value)
        node = producers.get(value)
        if node is not None and not any(kind is Kind.SUM for kind in axes.kinds[node].values()):
            stack.extend(node.operands)
    others = (v for v in axes.dims if v in roles.activations and v not in tail)
    return not any(last & axes.of(value) for value in others)
