"""Operands of ops, drawn once and for all, and an op with such operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distir.ir import DType, Op, TensorType

Array = Any
Maker = Callable[[np.random.Generator], Array]


def real(*shape: int, low: float = -2.0, high: float = 2.0) -> Maker:
    """Distinct numbers, apart from each other and from where functions have kinks."""

    def make(rng: np.random.Generator) -> Array:
        count = math.prod(shape)
        grid = low + (high - low) * (np.arange(count) + 0.5) / count
        return (rng.permutation(grid) + 0.013).reshape(shape)

    return make


def positive(*shape: int) -> Maker:
    """Numbers above zero."""
    return real(*shape, low=0.3, high=2.0)


def integers(below: int, *shape: int) -> Maker:
    """Integers from zero."""
    return lambda rng: rng.integers(0, below, shape)


def from_either_end(below: int, *shape: int) -> Maker:
    """Indices of which those below zero count from the end, -1 among them."""

    def make(rng: np.random.Generator) -> Array:
        made = rng.integers(-below, below, shape)
        made.flat[0] = -1
        return made

    return make


def booleans(*shape: int) -> Maker:
    """True or false."""
    return lambda rng: rng.integers(0, 2, shape).astype(bool)


@dataclass(frozen=True)
class Case:
    """An op with makers of its operands."""

    op: Op
    makers: tuple[Maker, ...]

    def arrays(self) -> list[Array]:
        """The operands."""
        rng = np.random.default_rng(7)
        return [make(rng) for make in self.makers]

    def types(self) -> list[TensorType]:
        """Types of the operands."""
        return [TensorType(array.shape, dtype_of(array)) for array in self.arrays()]

    @property
    def label(self) -> str:
        """A name for the test."""
        shapes = "-".join("x".join(map(str, t.shape)) or "scalar" for t in self.types())
        return f"{self.op}({shapes})"


def dtype_of(array: Array) -> DType:
    """The element type of a NumPy array of a case."""
    kinds = {"f": DType.FLOAT64, "i": DType.INT64, "b": DType.BOOL}
    return kinds[array.dtype.kind]
