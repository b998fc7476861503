"""Element types and tensor types."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum


class DType(Enum):
    """An element type: its short name in the text form and its size in memory."""

    FLOAT64 = ("fp64", 8)
    FLOAT32 = ("fp32", 4)
    BFLOAT16 = ("bf16", 2)
    FLOAT16 = ("fp16", 2)
    FLOAT8 = ("fp8", 1)
    INT64 = ("i64", 8)
    INT32 = ("i32", 4)
    INT16 = ("i16", 2)
    INT8 = ("i8", 1)
    UINT8 = ("u8", 1)
    BOOL = ("bool", 1)

    __hash__ = object.__hash__  # types are compared by identity, and hashed again and again

    def __init__(self, short_name: str, itemsize: int) -> None:
        self.short_name = short_name
        self.itemsize = itemsize

    @property
    def is_float(self) -> bool:
        """Whether values of this type are real numbers, which have derivatives."""
        return self in _FLOATS

    @classmethod
    def parse(cls, short_name: str) -> DType:
        """The type written `fp32`, `bf16`, …; raises `KeyError` for others."""
        return _BY_SHORT_NAME[short_name]


_FLOATS = frozenset((DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8))
_BY_SHORT_NAME = {dtype.short_name: dtype for dtype in DType}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type of a tensor. A scalar has shape `()`."""

    shape: tuple[int, ...]
    dtype: DType
    _size: tuple[int, int] | None = field(default=None, init=False, repr=False, compare=False)
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        if self._hash is None:  # a size may be an array, whose hash takes long
            object.__setattr__(self, "_hash", hash((self.shape, self.dtype)))
        return self._hash or 0

    def __reduce__(self) -> tuple[type[TensorType], tuple[tuple[int, ...], DType]]:
        return TensorType, (self.shape, self.dtype)  # hashes are those of one process

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def num_elements(self) -> int:
        """Product of the dims."""
        return self._sizes()[0]

    @property
    def size_bytes(self) -> int:
        """Memory that the elements take."""
        return self._sizes()[1]

    def _sizes(self) -> tuple[int, int]:
        """Elements and bytes, multiplied once: liveness asks for them again and again."""
        if self._size is None:
            elements = math.prod(self.shape)
            object.__setattr__(self, "_size", (elements, elements * self.dtype.itemsize))
        return self._size or (0, 0)

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        """The same element type in another shape."""
        return TensorType(shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype.short_name}[{','.join(map(str, self.shape))}]"
