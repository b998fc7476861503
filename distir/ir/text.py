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

A value whose label is no plain word, or is taken, shows the label in quotes behind its type. A
function writes itself (`function.py`); this module reads what it wrote.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

from distir.errors import ImportModelError
from distir.ir.core import Array, Node, Op, Part, Value
from distir.ir.function import Function, format_function
from distir.ir.registered import ATTRIBUTE_RECORDS, OPS
from distir.ir.types import DType, TensorType
from distir.ir.verifier import verify

__all__ = ["format_function", "parse_function"]


def parse_function(text: str) -> Function:
    """The function that `format_function` wrote; raises `ImportModelError`."""
    return _Parser(text).function()


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
        if kind == "word" and text in ATTRIBUTE_RECORDS:
            return self.record(ATTRIBUTE_RECORDS.get(self.take("word")))
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
