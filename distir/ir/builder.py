"""Makes functions: one call per op, types inferred on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from distir.errors import ArgumentError
from distir.ir.core import NodeBuilder, Value
from distir.ir.function import Function
from distir.ir.types import DType, TensorType
from distir.ir.verifier import verify_order


class Builder(NodeBuilder):
    """Collects the nodes of a function. `input`, `parameter` and `constant` declare sources, `add`
    applies an op, `build` makes the immutable function."""

    def __init__(self, name: str = "function") -> None:
        super().__init__()
        self.name = name
        self.inputs: list[Value] = []
        self.parameters: list[Value] = []
        self.notes: list[str] = []

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

    def build(self, outputs: Sequence[Value]) -> Function:
        """The function computing `outputs`, verified. Raises `ArgumentError` if they are no list of
        values."""
        if isinstance(cast("object", outputs), Value):
            raise ArgumentError("build got one value; expected a list of values: build([value])")
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
