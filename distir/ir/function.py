"""A function: its sources, its nodes in topological order, its outputs; and how it is written.

Must not become a home for analyses: what can be computed from a function lives elsewhere. `text.py`
has the grammar of the written form, and reads it.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from distir.ir.core import Array, Node, Op, Part, Value
from distir.ir.registered import ATTRIBUTE_RECORDS
from distir.ir.types import DType

MOST_NUMBERS = 64
"""Longer constants are written compressed."""

_PLAIN = re.compile(r"[A-Za-z0-9_./:#-]*[A-Za-z0-9_./#-]")
"""Labels that are written as names."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Function:
    """A program: `outputs` computed from `inputs`, `parameters` and `constants` by `nodes`,
    which stand in topological order.

    Inputs differ from sample to sample, parameters are trained, constants belong to the model
    and are neither. A constant that maps to `None` is a table without values (a file stripped of
    its weights): it has a type but cannot be executed.
    """

    name: str
    inputs: tuple[Value, ...]
    parameters: tuple[Value, ...]
    constants: Mapping[Value, Array | None]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    notes: tuple[str, ...] = field(default=())
    """What an importer or transform wants people to know."""

    def producers(self) -> dict[Value, Node]:
        """The node behind every computed value."""
        return {value: node for node in self.nodes for value in node.results}

    def uses(self) -> dict[Value, list[Node]]:
        """The nodes that read every value, in program order, once per node."""
        uses: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.operands):
                uses.setdefault(value, []).append(node)
        return uses

    def sources(self) -> Iterator[Value]:
        """Values that no node computes: inputs, parameters, constants."""
        yield from self.inputs
        yield from self.parameters
        yield from self.constants

    def __repr__(self) -> str:
        return f"<Function {self.name}: {len(self.nodes)} nodes, {len(self.parameters)} parameters>"

    def __str__(self) -> str:
        return format_function(self)


def format_function(function: Function) -> str:
    """The text of a function; `parse_function` in `text.py` is the inverse."""
    return "\n".join(_Writer(function).lines())


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
    if type(value).__name__ in ATTRIBUTE_RECORDS:
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


def _format_array(array: Array) -> str:
    import numpy as np

    name = array.dtype.name
    if array.size and all(stride == 0 for stride in array.strides) and array.ndim:
        return f"{name} fill {array.reshape(-1)[:1].tolist()[0]!r}"
    if array.size > MOST_NUMBERS:
        packed = zlib.compress(np.ascontiguousarray(array).tobytes(), 9)
        return f'{name} packed "{base64.b64encode(packed).decode()}"'
    return f"{name} {', '.join(map(repr, array.reshape(-1).tolist()))}"
