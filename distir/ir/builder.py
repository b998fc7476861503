"""Makes functions: one call per op, types inferred on the way."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, cast

from distir.errors import ArgumentError, shown
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
        """Declares a value that differs from sample to sample. Raises `ArgumentError` if name,
        shape or type are none."""
        value = _declared(name, shape, dtype)
        self.inputs.append(value)
        return value

    def parameter(self, name: str, shape: Sequence[int], dtype: DType = DType.FLOAT32) -> Value:
        """Declares a trained value. Raises `ArgumentError` if name, shape or type are none, or if
        there is nothing to train: no elements, or whole numbers, which have no derivative."""
        value = _declared(name, shape, dtype)
        called = name or "a parameter"
        if value.type.num_elements == 0:
            raise ArgumentError(
                f"{called} has the shape {shown(value.type.shape)}, and so no elements; expected a "
                "parameter with sizes of at least 1"
            )
        if not dtype.is_float:
            raise ArgumentError(
                f"{called} is of the type {dtype.short_name}; expected a parameter of real "
                "numbers, such as DType.FLOAT32: builder.constant(array, dtype) declares a table "
                "that is not trained"
            )
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


def _declared(name: str, shape: Sequence[int], dtype: DType) -> Value:
    """A value with this name and type; raises `ArgumentError` if they are none."""
    if not isinstance(cast("object", name), str):
        raise ArgumentError(f"the name of a value is {shown(name)}; expected a text")
    sizes: tuple[Any, ...] = tuple(shape) if isinstance(cast("object", shape), Sequence) else ()
    if not (isinstance(cast("object", shape), Sequence) and all(map(_is_size, sizes))):
        raise ArgumentError(
            f"{name or 'a value'} has the shape {shown(shape)}; expected a list of whole numbers, "
            "none below 0, such as (64, 256)"
        )
    if not isinstance(cast("object", dtype), DType):
        raise ArgumentError(
            f"{name or 'a value'} has the type {shown(dtype)}; expected one of distir.ir.DType, "
            "such as DType.FLOAT32"
        )
    return Value(TensorType(tuple(map(int, sizes)), dtype), name)


def _is_size(size: object) -> bool:
    return type(size) is not bool and isinstance(size, Integral) and int(size) >= 0
