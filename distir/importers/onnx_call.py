"""The registry of converters of ONNX ops, and one op of a file as its converter sees it: operands
(known, trained or computed), attributes, and methods that add ops to the function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
class OnnxConstant:
    """A tensor of the file that depends on no input and no parameter. `array` is None if its values
    are not known."""

    type: TensorType
    array: Array | None
    name: str = ""
    from_shape: bool = False
    """Whether it was computed from the shape of a tensor that is not constant."""


@dataclass(frozen=True, slots=True, eq=False)
class OnnxWeight:
    """A tensor of the file that is a parameter."""

    type: TensorType
    name: str
    record: TensorRecord | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TensorList:
    """A sequence of tensors (an ONNX type of its own) of known length."""

    type: TensorType
    items: tuple[Any, ...]


OnnxEntry = OnnxConstant | OnnxWeight | TensorList | Value
"""What a name in the file stands for; a `Value` has been computed by ops."""
Converter = Callable[["Call"], Any]
"""Expresses an ONNX op by our ops. Returns one result or a sequence of results: values, or arrays
for constants."""

_NO_MEANING = frozenset(("consumed_inputs",))
"""Attributes that say nothing of what an op computes: which operands it may overwrite (opset 1)."""

_NOTHING = (0, "", ())
"""Values of attributes that change nothing."""


def _is_set(value: object) -> bool:
    return isinstance(value, TensorRecord) or value not in _NOTHING


CONVERTERS: Registry[Converter] = Registry("ONNX op")


def converts(*op_types: str) -> Callable[[Converter], Converter]:
    """Registers a converter for these ONNX ops, which are named `Op`, or `domain:Op` outside the
    default domain."""

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
    entries: Sequence[OnnxEntry | None]
    resolve: Callable[[OnnxEntry], Value]
    axis_maps: dict[Value, tuple[int | None, ...]]
    read: set[str] = field(default_factory=set[str])
    """The names of the attributes that the converter has asked for."""
    _values: dict[int, Value] = field(init=False, default_factory=dict[int, Value])

    def has(self, position: int) -> bool:
        """Whether the file gives this operand."""
        return position < len(self.entries) and self.entries[position] is not None

    def entry(self, position: int) -> OnnxEntry:
        """What the operand stands for; raises `ImportModelError` if it is absent."""
        entry = self.entries[position] if position < len(self.entries) else None
        if entry is None:
            raise ImportModelError(f"operand {position} is absent; the op needs it")
        return entry

    def operand(self, position: int) -> Value:
        """The operand as a value of the function."""
        if position not in self._values:
            self._values[position] = self.resolve(self.entry(position))
        return self._values[position]

    def untrained(self, position: int) -> Value:
        """The operand as a constant, for an op that never trains it. Exporters merge equal tensors,
        so that the same tensor may be a parameter elsewhere."""
        entry = self.entry(position)
        if isinstance(entry, OnnxWeight):
            record = entry.record
            array = record.load() if record is not None and record.has_values() else None
            return self.resolve(OnnxConstant(entry.type, array, entry.name))
        return self.operand(position)

    def operands(self) -> list[Value]:
        """All operands that the file gives."""
        return [self.operand(i) for i in range(len(self.entries)) if self.has(i)]

    def type(self, position: int = 0) -> TensorType:
        """The type of an operand; does not make the operand part of the function."""
        return self.entry(position).type

    def known(self, position: int) -> Array | None:
        """The values of an operand; None if they are not known."""
        entry = self.entry(position)
        return entry.array if isinstance(entry, OnnxConstant) else None

    def array(self, position: int, what: str) -> Array:
        """The values of an operand that must be known. Raises `ImportModelError` if they are not;
        `what` says in the message what they decide."""
        entry = self.entry(position)
        name = self.node.operands[position]
        if not isinstance(entry, OnnxConstant):
            raise ImportModelError(
                f"{what} of {self.node.results[0]!r} depends on data ({name!r}); expected it to "
                "follow from constants and shapes"
            )
        if entry.array is None:
            raise ImportModelError(
                f"{what} of {self.node.results[0]!r} follows from the values of {name!r}, which "
                "the file does not have; import the model from a file that has them"
            )
        return entry.array

    def integers(self, position: int, what: str) -> tuple[int, ...]:
        """The values of an operand as a tuple of integers."""
        array = self.array(position, what)
        if array.size > 1 << 16:
            raise ImportModelError(f"{what} has {array.size} entries; expected at most {1 << 16}")
        return tuple(int(number) for number in array.reshape(-1))

    def integer_list(
        self, name: str, position: int, since: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...] | None:
        """A list: attribute `name` before opset `since`, operand `position` since then."""
        if self.opset >= since and self.has(position):
            return self.integers(position, name)
        return self.attribute(name, default)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        self.read.add(name)
        return self.node.attributes.get(name, default)

    def attributes(self) -> Mapping[str, Any]:
        """All attributes that the file gives."""
        self.read.update(self.node.attributes)
        return self.node.attributes

    def without_effect(self, *names: str) -> None:
        """Says of attributes that they change nothing of what the op becomes."""
        self.read.update(names)

    @property
    def unread(self) -> list[str]:
        """What to tell the user of attributes that no one has asked for and that are not 0."""
        return [
            f"{self.node.type_key}: its {name} of {value!r} is not applied"
            for name, value in self.node.attributes.items()
            if name not in self.read and name not in _NO_MEANING and _is_set(value)
        ]

    def add(self, op: Op, *operands: Value) -> Value:
        """Applies an op with one result."""
        return self.builder.add(op, *operands, name=self._label())

    def apply(self, op: Op, *operands: Value) -> tuple[Value, ...]:
        """Applies an op with any number of results."""
        return self.builder.apply(op, *operands, name=self._label())

    def scalar(self, number: float, dtype: DType) -> Value:
        """A constant of shape `()`."""
        return self.builder.scalar(number, dtype)

    def note(self, text: str) -> None:
        """Tells the user something about the model, once."""
        if text not in self.builder.notes:
            self.builder.notes.append(text)

    def view(self, x: Value, shape: Sequence[int], kept: Sequence[int | None]) -> Value:
        """Adds a Reshape that only adds or drops dims of size 1. Dim `i` of the operand becomes dim
        `kept[i]` of the result; None: it is dropped."""
        from distir.ops.tensor import Reshape

        if tuple(shape) == x.type.shape:
            return x
        result = self.add(Reshape(tuple(shape)), x)
        self.axis_maps[result] = tuple(kept)
        return result

    def _label(self) -> str:
        return self.node.results[0] if self.node.results else self.node.op_type
