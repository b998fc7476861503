"""Converters of reductions along dims: sums, means, maxima, norms."""

from __future__ import annotations

from collections.abc import Callable

from distir.importers.onnx_call import Call, converts
from distir.ir.core import Op, Value
from distir.ir.types import DType
from distir.ops import reduce as reductions
from distir.ops.arithmetic import Abs, Exp, Log, Mul, Neg, Sqrt
from distir.ops.base import normalize_axes
from distir.ops.comparisons import Not
from distir.ops.reduce import ReduceMax, ReduceMean, ReduceSum


def _reduced_axes(call: Call) -> tuple[tuple[int, ...], bool] | None:
    """The dims that are reduced, and whether they are kept with size 1; None if none is reduced."""
    since = 13 if call.node.op_type == "ReduceSum" else 18
    axes = call.integer_list("axes", 1, since=since)
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return None
    rank = call.type().rank
    normal = normalize_axes(call.node.op_type, axes, rank) if axes else tuple(range(rank))
    return normal, bool(call.attribute("keepdims", 1))


def _reduce_with(make: Callable[[tuple[int, ...], bool], Op]) -> Callable[[Call, Value], Value]:
    def apply(call: Call, x: Value) -> Value:
        found = _reduced_axes(call)
        return x if found is None or not found[0] else call.add(make(*found), x)

    return apply


_sum = _reduce_with(ReduceSum)
_max = _reduce_with(ReduceMax)
_mean = _reduce_with(ReduceMean)


@converts("ReduceSum")
def reduce_sum(call: Call) -> Value:
    """ReduceSum."""
    return _sum(call, call.operand(0))


@converts("ReduceMean")
def reduce_mean(call: Call) -> Value:
    """ReduceMean."""
    return _mean(call, call.operand(0))


@converts("ReduceMax")
def reduce_max(call: Call) -> Value:
    """ReduceMax."""
    return _max(call, call.operand(0))


@converts("ReduceMin")
def reduce_min(call: Call) -> Value:
    """Minus the maximum of minus x; of booleans not the maximum of not x."""
    x = call.operand(0)
    opposite = Not() if x.type.dtype is DType.BOOL else Neg()
    return call.add(opposite, _max(call, call.add(opposite, x)))


@converts("ReduceSumSquare")
def reduce_sum_square(call: Call) -> Value:
    """The sum of x · x."""
    x = call.operand(0)
    return _sum(call, call.add(Mul(), x, x))


@converts("ReduceL2")
def reduce_l2(call: Call) -> Value:
    """The root of the sum of x · x."""
    return call.add(Sqrt(), reduce_sum_square(call))


@converts("ReduceL1")
def reduce_l1(call: Call) -> Value:
    """The sum of |x|."""
    return _sum(call, call.add(Abs(), call.operand(0)))


@converts("ReduceLogSum")
def reduce_log_sum(call: Call) -> Value:
    """The logarithm of the sum."""
    return call.add(Log(), _sum(call, call.operand(0)))


@converts("ReduceLogSumExp")
def reduce_log_sum_exp(call: Call) -> Value:
    """The logarithm of the sum of exponentials."""
    return call.add(Log(), _sum(call, call.add(Exp(), call.operand(0))))


@converts("ReduceProd")
def reduce_prod(call: Call) -> Value:
    """ReduceProd."""
    return _reduce_with(reductions.ReduceProd)(call, call.operand(0))
