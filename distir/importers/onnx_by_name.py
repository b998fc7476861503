"""ONNX ops that are ours by name: same operands, and attributes of the same names.

Such a class needs no converter. It is made from the attributes of the file, whose types are those
of the defaults of its fields.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection, Sequence
from typing import Any

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_call import CONVERTERS, Call, Converter
from distir.ir.core import Op, Value
from distir.ir.registered import OPS
from distir.ops.base import normalize_axis

_NO_TYPE = (dataclasses.MISSING, None)
"""Defaults that say nothing of the type of an attribute."""


def find_converter(key: str) -> Converter | None:
    """How the op type `key` of a file becomes ours: by its converter, else by its name."""
    if key in CONVERTERS:
        return CONVERTERS.get(key)
    cls = OPS.get(key) if key in OPS else None  # an unknown name has packages imported, …
    if key in CONVERTERS:  # … which may have a converter for it, too
        return CONVERTERS.get(key)
    if cls is None or cls.name != key or not converts_by_name(cls):
        return None
    return lambda call: _convert(cls, call)


def converts_by_name(cls: type[Op]) -> bool:
    """Whether files may have the op as it is: ONNX has an operator of its name, whose attributes
    its fields are, and there is no converter."""
    attributes = _onnx_attributes(cls.name)
    is_alike = attributes is not None and all(name in attributes for name in _fields(cls))
    return is_alike and cls.name not in CONVERTERS


def known_op_types() -> list[str]:
    """The op types that a file may have."""
    by_name = [entry.name for entry in OPS if converts_by_name(entry.value)]
    return [*CONVERTERS.names(), *by_name]


def _onnx_attributes(name: str) -> Collection[str] | None:
    """Names of the attributes of an ONNX operator; `None` if there is no such operator."""
    # By name, for type checkers take a plain import for the module beside this one.
    defs: Any = importlib.import_module("onnx.defs")
    return defs.get_schema(name).attributes if defs.has(name) else None


def _fields(cls: type[Any]) -> dict[str, Any]:
    """Fields of an op class with their defaults."""
    found = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return {field.name: field.default for field in found}


def _convert(cls: type[Op], call: Call) -> Sequence[Value]:
    fields = _fields(cls)
    given = call.node.attributes
    for name in _onnx_attributes(cls.name) or ():
        if name in given and name not in fields:
            raise UnsupportedOpError(
                f"{call.node.label}: the attribute {name!r} is not supported; {cls.__name__} has "
                f"{', '.join(fields) or 'no attributes'}"
            )
    read = {
        name: given[name] if default in _NO_TYPE else type(default)(given[name])
        for name, default in fields.items()
        if name in given
    }
    return call.apply(cls(**read), *_operands(call))


def _operands(call: Call) -> Sequence[Value]:
    operands = call.operands()
    if not all(call.has(position) for position in range(len(operands))):
        raise ImportModelError("an operand before the last one is absent")
    if call.opset < 7 and len(operands) == 2:
        return operands[0], _aligned(call, *operands)
    return operands


def _aligned(call: Call, a: Value, b: Value) -> Value:
    """The second operand with trailing dims of size 1: before opset 7 an attribute said where its
    dims are among those of the first."""
    if not call.attribute("broadcast") or call.attribute("axis") is None:
        return b
    axis = normalize_axis(call.node.op_type, call.attribute("axis"), a.type.rank)
    trailing = a.type.rank - axis - b.type.rank
    return call.view(b, (*b.type.shape, *(1,) * trailing), range(b.type.rank))
