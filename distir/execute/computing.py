"""What computes the ops of a plan, and holds the arrays: NumPy, unless something else is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from distir.ir.core import Array, Op
from distir.ir.types import DType
from distir.ops.collective import Sharded
from distir.ops.fused import Fused


class Computing(Protocol):
    """How ops are computed on a device. Arrays are what `held` makes of NumPy's arrays, and behave
    like these."""

    def held(self, array: Array, dtype: DType) -> Array:
        """The array as ops read it, as values of this type are held; it may be one already."""
        ...

    def sent(self, array: Array, dtype: DType) -> Array:
        """The array as it travels between processes: like what `empty` makes of its type and
        shape."""
        ...

    def empty(self, dtype: DType, shape: Sequence[int]) -> Array:
        """An array for a value of this type and shape that comes from another process."""
        ...

    def evaluate(
        self,
        op: Op,
        coordinate: Mapping[str, int],
        operands: Sequence[Array],
        dtypes: Sequence[DType],
    ) -> Sequence[Array]:
        """The results of an op on the device at a place of its mesh. `dtypes` are the types of the
        results."""
        ...


def evaluate_at(
    op: Op, coordinate: Mapping[str, int], operands: Sequence[Array]
) -> Sequence[Array]:
    """The results of an op at a place of a mesh, as the op itself computes them."""
    if isinstance(op, (Sharded, Fused)):
        return op.evaluate_at(dict(coordinate), *operands)
    return op.evaluate(*operands)


class NumPyComputing:
    """NumPy computes, and real numbers are float64, whatever their type in the plan."""

    def held(self, array: Array, dtype: DType) -> Array:
        return array

    def sent(self, array: Array, dtype: DType) -> Array:
        return np.asarray(array, _numpy_dtype(dtype))

    def empty(self, dtype: DType, shape: Sequence[int]) -> Array:
        return np.empty(tuple(shape), _numpy_dtype(dtype))

    def evaluate(
        self,
        op: Op,
        coordinate: Mapping[str, int],
        operands: Sequence[Array],
        dtypes: Sequence[DType],
    ) -> Sequence[Array]:
        return evaluate_at(op, coordinate, operands)


def _numpy_dtype(dtype: DType) -> Any:
    if dtype.is_float:
        return np.float64
    return np.bool_ if dtype is DType.BOOL else np.int64


NUMPY = NumPyComputing()

__all__ = ["NUMPY", "Computing", "NumPyComputing", "evaluate_at"]
