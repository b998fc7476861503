"""The text form of a function: readable, and exact in both directions.

    function "two layers" {
      input %x: fp32[8,4]
      parameter %w: fp32[4,2]
      constant %half: fp32[] = float64 0.5
      table %mask: bool[8,2]
      %h: fp32[8,2] = MatMul(%x, %w) @ "layer 1"
      %y: fp32[8,2] = Softmax{axis=-1}(%h)
      return %y
    }

A value whose label is no plain word, or is taken, shows the label in quotes behind its type.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any, cast

from distir.errors import ImportModelError
from distir.ir.core import Function, Node, Op, Part, Value
from distir.ir.types import DType, TensorType

Array = Any

_PLAIN = re.compile(r"[A-Za-z0-9_./:#-]*[A-Za-z0-9_./#-]")
MOST_NUMBERS = 64
"""Longer constants are written compressed."""


def format_function(function: Function) -> str:
    """The text of a function."""
    return "\n".join(_Writer(function).lines())


def parse_function(text: str) -> Function:
    """The function that `format_function` wrote; raises `ImportModelError`."""
    return _Parser(text).function()


class _Writer:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.names: dict[Value, str] = {}
        taken: set[str] = set()
        computed = (value for node in function.nodes for value in node.results)
        for value in (*function.sources(), *computed):
            name = value.name if _PLAIN.fullmatch(value.name) else "_"
            unique, count = name, 1
            while unique in taken or unique == "_":
                unique, count = f"{name}~{count}", count + 1
            taken.add(unique)
            self.names[value] = unique

    def lines(self) -> Iterator[str]:
        """The text, line by line."""
        function = self.function
        yield f"function {json.dumps(function.name)} {{"
        for note in function.notes:
            yield f"  note {json.dumps(note)}"
        for value in function.inputs:
            yield f"  input {self._declared(value)}"
        for value in function.parameters:
            yield f"  parameter {self._declared(value)}"
        for value, array in function.constants.items():
            if array is None:
                yield f"  table {self._declared(value)}"
            else:
                yield f"  constant {self._declared(value)} = {_format_array(array)}"
        for node in function.nodes:
            results = ", ".join(self._declared(value) for value in node.results)
            operands = ", ".join(f"%{self.names[value]}" for value in node.operands)
            origin = f" @ {json.dumps(node.origin)}" if node.origin else ""
            part = "" if node.part is Part.MODEL else f" part {json.dumps(node.part.value)}"
            yield f"  {results} = {_format_op(node.op)}({operands}){origin}{part}"
        outputs = ", ".join(f"%{self.names[value]}" for value in function.outputs)
        yield f"  return {outputs}"
        yield "}"

    def _declared(self, value: Value) -> str:
        name = self.names[value]
        label = "" if name == value.name else f" {json.dumps(value.name)}"
        return f"%{name}: {value.type}{label}"


def _format_op(op: Op) -> str:
    return _format_record(op.name, op)


def _format_record(name: str, record: Any) -> str:
    """An op, or a record that is an attribute of one: its name and fields."""
    fields = dataclasses.fields(record) if dataclasses.is_dataclass(record) else ()
    shown = [f"{field.name}={_format_attribute(getattr(record, field.name))}" for field in fields]
    return f"{name}{{{', '.join(shown)}}}" if shown else name


def _format_attribute(value: Any) -> str:
    if isinstance(value, Op):
        return _format_op(value)
    if type(value) in _records().values():
        return _format_record(type(value).__name__, value)
    if isinstance(value, DType):
        return f"!{value.short_name}"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        items = [_format_attribute(item) for item in cast("tuple[Any, ...]", value)]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    raise TypeError(f"attribute {value!r} has no text form")


def _records() -> dict[str, type[Any]]:
    """Attributes that are neither ops nor plain values."""
    from distir.cost.collectives import Copies
    from distir.ops.collective import Cut, FlatCut, Window

    return {"Copies": Copies, "Cut": Cut, "FlatCut": FlatCut, "Window": Window}


def _format_array(array: Array) -> str:
    import numpy as np

    name = array.dtype.name
    if array.size and all(stride == 0 for stride in array.strides) and array.ndim:
        return f"{name} fill {array.reshape(-1)[:1].tolist()[0]!r}"
    if array.size > MOST_NUMBERS:
        packed = zlib.compress(np.ascontiguousarray(array).tobytes(), 9)
        return f'{name} packed "{base64.b64encode(packed).decode()}"'
    return f"{name} {', '.join(map(repr, array.reshape(-1).tolist()))}"


_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<value>%[A-Za-z0-9_./:\#~-]*[A-Za-z0-9_./\#~-])
    |(?P<dtype>![a-z0-9]+)
    |(?P<number>[+-]?(?:inf|nan|[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)(?![A-Za-z0-9_]))
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>[{}()\[\],:=@]))""",
    re.VERBOSE,
)


class _Parser:
    """Reads the text token by token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.values: dict[str, Value] = {}

    # --- tokens ----------------------------------------------------------------------------------

    def error(self, expected: str) -> ImportModelError:
        """What is wrong here."""
        line = self.text.count("\n", 0, self.position) + 1
        found = self.text[self.position :].strip().split("\n")[0][:40]
        return ImportModelError(f"line {line}: found {found!r}; expected {expected}")

    def peek(self) -> tuple[str, str]:
        """Kind and text of the next token; ("end", "") at the end."""
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            if self.text[self.position :].strip():
                raise self.error("a word, a number, a string or a mark")
            return "end", ""
        kind = match.lastgroup or "mark"
        return kind, match.group(kind)

    def take(self, kind: str, text: str | None = None) -> str:
        """The next token, which must be of this kind (and text)."""
        found, value = self.peek()
        if found != kind or (text is not None and value != text):
            raise self.error(text or f"a {kind}")
        match = _TOKEN.match(self.text, self.position)
        assert match is not None
        self.position = match.end()
        return value

    def accepts(self, kind: str, text: str | None = None) -> bool:
        """Takes the next token if it is this one."""
        found, value = self.peek()
        if found != kind or (text is not None and value != text):
            return False
        self.take(kind)
        return True

    def string(self) -> str:
        """A quoted string."""
        try:
            return str(json.loads(self.take("string")))
        except json.JSONDecodeError as error:
            raise self.error("a string") from error

    # --- grammar ---------------------------------------------------------------------------------

    def function(self) -> Function:
        """The whole text."""
        from distir.ir.verifier import verify

        self.take("word", "function")
        name = self.string()
        self.take("mark", "{")
        notes: list[str] = []
        inputs: list[Value] = []
        parameters: list[Value] = []
        constants: dict[Value, Array | None] = {}
        nodes: list[Node] = []
        while self.peek() != ("word", "return"):
            if self.accepts("word", "note"):
                notes.append(self.string())
            elif self.accepts("word", "input"):
                inputs.append(self.declared())
            elif self.accepts("word", "parameter"):
                parameters.append(self.declared())
            elif self.accepts("word", "table"):
                constants[self.declared()] = None
            elif self.accepts("word", "constant"):
                value = self.declared()
                self.take("mark", "=")
                constants[value] = self.array(value.type)
            else:
                nodes.append(self.node())
        self.take("word", "return")
        outputs = [self.value()]
        while self.accepts("mark", ","):
            outputs.append(self.value())
        self.take("mark", "}")
        function = Function(
            name,
            tuple(inputs),
            tuple(parameters),
            constants,
            tuple(nodes),
            tuple(outputs),
            tuple(notes),
        )
        verify(function)
        return function

    def declared(self) -> Value:
        """`%name: fp32[2,3] "label"`, a new value."""
        name = self.take("value")[1:]
        self.take("mark", ":")
        type = self.type()
        label = self.string() if self.peek()[0] == "string" else name
        if name in self.values:
            raise self.error(f"another name than %{name}, which is taken")
        self.values[name] = Value(type, label)
        return self.values[name]

    def value(self) -> Value:
        """`%name`, a value declared before."""
        name = self.take("value")[1:]
        if name not in self.values:
            raise self.error(f"a value declared before, which %{name} is not")
        return self.values[name]

    def type(self) -> TensorType:
        """`fp32[2,3]`."""
        word = self.take("word")
        try:
            dtype = DType.parse(word)
        except KeyError as error:
            raise self.error(f"an element type, which {word!r} is not") from error
        self.take("mark", "[")
        shape: list[int] = []
        while not self.accepts("mark", "]"):
            shape.append(int(self.take("number")))
            if self.peek() != ("mark", "]"):
                self.take("mark", ",")
        return TensorType(tuple(shape), dtype)

    def node(self) -> Node:
        """`results = Op{…}(operands) @ "origin" part "loss"`."""
        results = [self.declared()]
        while self.accepts("mark", ","):
            results.append(self.declared())
        self.take("mark", "=")
        op = self.op()
        self.take("mark", "(")
        operands: list[Value] = []
        while not self.accepts("mark", ")"):
            operands.append(self.value())
            if self.peek() != ("mark", ")"):
                self.take("mark", ",")
        origin = self.string() if self.accepts("mark", "@") else ""
        part = self.string() if self.accepts("word", "part") else Part.MODEL.value
        try:
            return Node(op, tuple(operands), tuple(results), origin, Part(part))
        except ValueError as error:
            raise self.error(f"a part of a program, which {part!r} is not") from error

    def op(self) -> Op:
        """`Name{attribute=value, …}`."""
        from distir.ops import OPS

        cls = OPS.get(self.take("word"))
        return self.record(cls)

    def record(self, cls: type[Any]) -> Any:
        """The `{attribute=value, …}` behind a name."""
        attributes: dict[str, Any] = {}
        if self.accepts("mark", "{"):
            while not self.accepts("mark", "}"):
                name = self.take("word")
                self.take("mark", "=")
                attributes[name] = self.attribute()
                if self.peek() != ("mark", "}"):
                    self.take("mark", ",")
        try:
            return cls(**attributes)
        except TypeError as error:
            raise self.error(f"attributes of {cls.__name__} ({error})") from error

    def attribute(self) -> Any:
        """A number, string, name, element type, op, or tuple of them."""
        kind, text = self.peek()
        if kind == "string":
            return self.string()
        if kind == "number":
            return _number(self.take("number"))
        if kind == "dtype":
            try:
                return DType.parse(self.take("dtype")[1:])
            except KeyError as error:
                raise self.error("an element type") from error
        if text in _NAMED:
            return _NAMED[self.take("word")]
        if kind == "word" and text in _records():
            return self.record(_records()[self.take("word")])
        if kind == "word":
            return self.op()
        self.take("mark", "(")
        items: list[Any] = []
        while not self.accepts("mark", ")"):
            items.append(self.attribute())
            if self.peek() != ("mark", ")"):
                self.take("mark", ",")
        return tuple(items)

    def array(self, type: TensorType) -> Array:
        """`float32 1.0, 2.0`, or `fill` a number, or `packed` bytes."""
        import numpy as np

        try:
            name = self.take("word")
            if name not in _NUMPY_NAMES:
                raise self.error(f"a NumPy type, which {name!r} is not")
            dtype = np.dtype(name)
            if self.accepts("word", "fill"):
                return np.broadcast_to(np.asarray(self.attribute(), dtype), type.shape)
            if self.accepts("word", "packed"):
                data = zlib.decompress(base64.b64decode(self.string()))
                return np.frombuffer(data, dtype).reshape(type.shape)
            numbers: list[Any] = []
            while self.peek()[0] == "number" or self.peek()[1] in _NAMED:
                numbers.append(self.attribute())
                if not self.accepts("mark", ","):
                    break
            return np.asarray(numbers, dtype).reshape(type.shape)
        except (ValueError, TypeError, zlib.error) as error:
            raise self.error(f"the values of {type} ({error})") from error


_NUMPY_NAMES = frozenset(
    "float64 float32 float16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split()
)
_NAMED: dict[str, Any] = {"True": True, "False": False, "None": None}


def _number(text: str) -> int | float:
    is_integer = text.lstrip("+-").isdigit()
    return int(text) if is_integer else float(text)
