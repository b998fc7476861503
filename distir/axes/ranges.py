"""Ranges of integers: between which numbers the elements of an index lie, by interval arithmetic.

An index that an exporter computes says with its range which rows of a table it can reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from distir.axes.model import Axes, Axis
from distir.axes.rescale import op_at, resize
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ir.types import DType
from distir.ops.activations import Clip
from distir.ops.arithmetic import Add, Mul, Neg, Sub, Sum
from distir.ops.comparisons import Max, Min
from distir.ops.positions import CumSum

Range = tuple[float, float]
"""The least and the largest element."""

_TRUTH: Range = (0, 1)

_EXTREME_AT_ENDS = (Add, Sub, Sum, Mul, Neg, Min, Max, Clip)
"""Elementwise ops whose results are least and largest where every operand is at one of its ends."""


class Ranges:
    """The ranges of a function's values when its axes have some sizes.

    Of inputs nothing is known, but that booleans, and what running sums count, are 0 or 1.
    """

    def __init__(self, function: Function, axes: Axes, sizes: Mapping[Axis, int]) -> None:
        self._function = function
        self._axes = axes
        self._sizes = sizes
        self._makers = {value: node for node in function.nodes for value in node.results}
        self._counted = _counted(function, self._makers)
        self._found: dict[Value, Range | None] = {}

    def of(self, value: Value) -> Range | None:
        """The range of a value; None if it is not known."""
        waiting = [value]
        while waiting:
            node = self._makers.get(waiting[-1])
            missing = [v for v in node.operands if v not in self._found] if node else []
            if not missing:
                last = waiting.pop()
                self._found[last] = self._of_result(node, last) if node else self._of_source(last)
            waiting += missing
        return self._found[value]

    def _of_source(self, value: Value) -> Range | None:
        array = self._function.constants.get(value)
        known = None if array is None else resize(array, self._axes.dims[value], self._sizes)
        if known is not None and known.size:
            return (float(known.min()), float(known.max()))
        is_truth = value.type.dtype is DType.BOOL or value in self._counted
        return _TRUTH if is_truth and value in self._function.inputs else None

    def _of_result(self, node: Node, result: Value) -> Range | None:
        if result.type.dtype is DType.BOOL:
            return _TRUTH
        given = [self._found[value] for value in node.operands]
        handed_on = [self._found[value] for value in node.op.handed_on(node.operands)]
        if handed_on:
            return _hull(handed_on)
        known = [each for each in given if each is not None]
        if len(known) < len(given):
            return None
        if isinstance(node.op, CumSum):
            return self._of_running_sum(node, node.op, known[0])
        return self._at_ends(node, known) if isinstance(node.op, _EXTREME_AT_ENDS) else None

    def _of_running_sum(self, node: Node, op: CumSum, given: Range) -> Range:
        terms = self._axes.type_at(node.operands[0], self._sizes).shape[op.axis]
        fewest, most = (0, terms - 1) if op.exclusive else (1, terms)
        low, high = given
        return (min(fewest * low, most * low), max(fewest * high, most * high))

    def _at_ends(self, node: Node, given: list[Range]) -> Range:
        import numpy as np

        op = op_at(node, self._axes, self._sizes)
        # What grows with every operand is least where all are least; of others all corners count.
        corners = zip(*given, strict=True) if isinstance(op, (Sum, Min, Max)) else product(*given)
        ends = [op.evaluate(*map(np.asarray, corner))[0] for corner in corners]
        return (float(min(ends)), float(max(ends)))


def _hull(ranges: list[Range | None]) -> Range | None:
    known = [each for each in ranges if each is not None]
    if len(known) < len(ranges):
        return None
    return (min(low for low, _ in known), max(high for _, high in known))


def _counted(function: Function, makers: Mapping[Value, Node]) -> frozenset[Value]:
    """The values whose elements reach a running sum as they are."""
    waiting = [node.operands[0] for node in function.nodes if isinstance(node.op, CumSum)]
    found: set[Value] = set()
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            maker = makers.get(value)
            waiting += maker.op.handed_on(maker.operands) if maker else ()
    return frozenset(found)


__all__ = ["Range", "Ranges"]
