"""Makes functions: one call per op, types inferred on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distir.ir.core import Function, Node, Op, Part, Value
from distir.ir.types import DType, TensorType

if TYPE_CHECKING:
    from distir.ir.core import Array


class Builder:
    """Collects nodes in order. `input`, `parameter` and `constant` declare sources, `add` applies
    an op, `build` makes the immutable function."""

    def __init__(self, name: str = "function") -> None:
        self.name = name
        self.origin = ""
        """Label given to the nodes added from now on."""
        self.part = Part.MODEL
        """What the nodes added from now on are there for."""
        self.inputs: list[Value] = []
        self.parameters: list[Value] = []
        self.constants: dict[Value, Array | None] = {}
        self.nodes: list[Node] = []
        self.notes: list[str] = []
        self._scalars: dict[tuple[float, DType], Value] = {}

    def input(self, name: str, shape: Sequence[int], dtype: DType = DType.FLOAT32) -> Value:
        """Declares a value that differs from sample to sample."""
        value = Value(TensorType(tuple(shape), dtype), name)
        self.inputs.append(value)
        return value

    def parameter(self, name: str, shape: Sequence[int], dtype: DType = DType.FLOAT32) -> Value:
        """Declares a trained value."""
        value = Value(TensorType(tuple(shape), dtype), name)
        self.parameters.append(value)
        return value

    def constant(self, array: Array, dtype: DType, name: str = "") -> Value:
        """Declares a constant with values."""
        value = Value(TensorType(tuple(array.shape), dtype), name)
        self.constants[value] = array
        return value

    def table(self, name: str, shape: Sequence[int], dtype: DType) -> Value:
        """Declares a constant whose values are not known."""
        value = Value(TensorType(tuple(shape), dtype), name)
        self.constants[value] = None
        return value

    def scalar(self, number: float, dtype: DType = DType.FLOAT32) -> Value:
        """A constant of shape `()`; equal ones are shared."""
        import numpy as np

        key = (number, dtype)
        if key not in self._scalars:
            self._scalars[key] = self.constant(np.asarray(number), dtype, f"{number:g}")
        return self._scalars[key]

    def apply(self, op: Op, *operands: Value, name: str = "") -> tuple[Value, ...]:
        """Applies an op and returns all of its results."""
        types = op.infer(*(operand.type for operand in operands))
        label = name or op.name
        results = tuple(Value(type, label) for type in types)
        self.nodes.append(Node(op, operands, results, self.origin, self.part))
        return results

    def add(self, op: Op, *operands: Value, name: str = "") -> Value:
        """Applies an op with one result and returns it."""
        (result,) = self.apply(op, *operands, name=name)
        return result

    def build(self, outputs: Sequence[Value]) -> Function:
        """The function computing `outputs`, verified."""
        from distir.ir.verifier import verify_order

        function = Function(
            name=self.name,
            inputs=tuple(self.inputs),
            parameters=tuple(self.parameters),
            constants=dict(self.constants),
            nodes=tuple(self.nodes),
            outputs=tuple(outputs),
            notes=tuple(self.notes),
        )
        verify_order(function)
        return function
