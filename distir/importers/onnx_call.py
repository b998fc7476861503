"""One ONNX op as its converter sees it: operands that are known, trained or computed, attributes,
and a way to add our ops; and the registry of converters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distir.errors import ImportModelError
from distir.importers.onnx_file import NodeRecord, TensorRecord
from distir.ir.builder import Builder
from distir.ir.core import Array, Op, Value
from distir.ir.types import DType, TensorType
from distir.registry import Registry

MOST_FOLDED_ELEMENTS = 1 << 22
"""Constants beyond this size are not computed at import; they stay tables without values."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A name of the file that depends on no input and on no parameter."""

    type: TensorType
    array: Array | None
    name: str = ""
    from_shape: bool = False
    """Computed from the shape of something that is not constant."""


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A name of the file that stands for a parameter."""

    type: TensorType
    name: str
    record: TensorRecord | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TensorList:
    """A name of the file that stands for a sequence of tensors of known length."""

    type: TensorType
    items: tuple[Any, ...]


Entry = Constant | Weight | TensorList | Value
Converter = Callable[["Call"], Any]
"""Applies our ops; returns one result or a sequence of them: values, or arrays for constants."""

CONVERTERS: Registry[Converter] = Registry("ONNX op")


def converts(*op_types: str) -> Callable[[Converter], Converter]:
    """Registers how these ONNX ops are expressed in ours; `domain:Op` outside the default one."""

    def decorate(converter: Converter) -> Converter:
        for op_type in op_types:
            CONVERTERS.add(op_type, converter, (converter.__doc__ or "").strip())
        return converter

    return decorate


@dataclass(slots=True, eq=False)
class Call:
    """One op of the file, as its converter sees it."""

    node: NodeRecord
    opset: int
    builder: Builder
    entries: Sequence[Entry | None]
    resolve: Callable[[Entry], Value]
    axis_maps: dict[Value, tuple[int | None, ...]]
    _values: dict[int, Value] = field(default_factory=dict[int, Value])

    def has(self, position: int) -> bool:
        """Whether the operand is given."""
        return position < len(self.entries) and self.entries[position] is not None

    def entry(self, position: int) -> Entry:
        """What the operand is; raises if it is absent."""
        entry = self.entries[position] if position < len(self.entries) else None
        if entry is None:
            raise ImportModelError(f"operand {position} is absent")
        return entry

    def operand(self, position: int) -> Value:
        """The operand as a value of the function."""
        if position not in self._values:
            self._values[position] = self.resolve(self.entry(position))
        return self._values[position]

    def untrained(self, position: int) -> Value:
        """The operand where an op never trains it: exporters merge equal tensors, so that one may
        be a parameter elsewhere."""
        entry = self.entry(position)
        if isinstance(entry, Weight):
            record = entry.record
            array = record.load() if record is not None and record.has_values() else None
            return self.resolve(Constant(entry.type, array, entry.name))
        return self.operand(position)

    def operands(self) -> list[Value]:
        """All operands that are given."""
        return [self.operand(i) for i in range(len(self.entries)) if self.has(i)]

    def type(self, position: int = 0) -> TensorType:
        """Type of an operand, without making it part of the function."""
        return self.entry(position).type

    def known(self, position: int) -> Array | None:
        """The values of an operand, if they are known."""
        entry = self.entry(position)
        return entry.array if isinstance(entry, Constant) else None

    def array(self, position: int, what: str) -> Array:
        """The values of an operand that must be known; `what` they decide goes into the message."""
        entry = self.entry(position)
        name = self.node.operands[position]
        if not isinstance(entry, Constant):
            raise ImportModelError(
                f"{what} of {self.node.results[0]!r} depends on data ({name!r}); expected it to "
                "follow from constants and shapes"
            )
        if entry.array is None:
            raise ImportModelError(
                f"{what} of {self.node.results[0]!r} needs the values of {name!r}, which the file "
                "does not have"
            )
        return entry.array

    def integers(self, position: int, what: str) -> tuple[int, ...]:
        """The values of an operand as a tuple of integers."""
        array = self.array(position, what)
        if array.size > 1 << 16:
            raise ImportModelError(f"{what} has {array.size} entries")
        return tuple(int(number) for number in array.reshape(-1))

    def integer_list(
        self, name: str, position: int, since: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...] | None:
        """A list that was attribute `name` and is operand `position` from opset `since` on."""
        if self.opset >= since and self.has(position):
            return self.integers(position, name)
        return self.attribute(name, default)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        return self.node.attributes.get(name, default)

    def add(self, op: Op, *operands: Value) -> Value:
        """Applies an op with one result."""
        return self.builder.add(op, *operands, name=self._label())

    def apply(self, op: Op, *operands: Value) -> tuple[Value, ...]:
        """Applies an op with any number of results."""
        return self.builder.apply(op, *operands, name=self._label())

    def scalar(self, number: float, dtype: DType) -> Value:
        """A constant of shape `()`."""
        return self.builder.scalar(number, dtype)

    def view(self, x: Value, shape: Sequence[int], kept: Sequence[int | None]) -> Value:
        """A Reshape that only adds or drops dims of size 1: dim `i` of the operand becomes dim
        `kept[i]` of the result, or is dropped."""
        from distir.ops.tensor import Reshape

        if tuple(shape) == x.type.shape:
            return x
        result = self.add(Reshape(tuple(shape)), x)
        self.axis_maps[result] = tuple(kept)
        return result

    def _label(self) -> str:
        return self.node.results[0] if self.node.results else self.node.op_type
