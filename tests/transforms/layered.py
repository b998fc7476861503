"""Functions of layers, made step by step."""

from __future__ import annotations

from distir.ir import Builder, DType, Function, Value
from distir.ops.arithmetic import Add
from distir.ops.linalg import MatMul
from distir.ops.lookup import Gather
from distir.ops.norm import LayerNormalization

BATCH, LENGTH, WIDTH, FFN = 11, 23, 64, 96


class Layered:
    """A function to which layers are added."""

    def __init__(self) -> None:
        self.builder = Builder("layered")
        self._parameters = 0

    def parameter(self, *shape: int) -> Value:
        self._parameters += 1
        return self.builder.parameter(f"p{self._parameters}", shape)

    def tokens(self, name: str) -> Value:
        """Rows of a table that an input chooses."""
        ids = self.builder.input(name, (BATCH, LENGTH), DType.INT64)
        return self.builder.add(Gather(), self.parameter(500, WIDTH), ids)

    def sum(self, *values: Value) -> Value:
        return self.builder.add(Add(), *values)

    def product(self, x: Value, width: int) -> Value:
        return self.builder.add(MatMul(), x, self.parameter(x.type.shape[-1], width))

    def norm(self, x: Value) -> Value:
        scale, shift = (self.parameter(x.type.shape[-1]) for _ in range(2))
        return self.builder.add(LayerNormalization(), x, scale, shift)

    def head(self, x: Value) -> Function:
        return self.builder.build([self.product(x, 700)])
