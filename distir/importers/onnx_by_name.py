"""ONNX ops that have the same name, operands and attributes as an op class of ours.

Such a class needs no converter. It is made from the attributes in the file, which are converted to
the types of its fields' defaults.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_call import CONVERTERS, Call, Converter, OnnxEntry
from distir.ir.core import Op, Value
from distir.ir.registered import OPS
from distir.ops.base import normalize_axis

_NO_TYPE = (dataclasses.MISSING, None)
"""Defaults from which the type of an attribute cannot be told."""


def find_converter(key: str) -> Converter | None:
    """The converter of an ONNX op type: a registered one, or by its name; None if there is none."""
    if key in CONVERTERS:
        return CONVERTERS.get(key)
    # To look for an unknown name, packages are imported, which may register a converter too.
    cls = OPS.get(key) if key in OPS else None
    if key in CONVERTERS:
        return CONVERTERS.get(key)
    if cls is None or cls.name != key or not converts_by_name(cls):
        return None
    return lambda call: _convert(cls, call)


def converted_as(
    call: Call,
    op_type: str,
    entries: Sequence[OnnxEntry | None],
    attributes: Mapping[str, Any] | None = None,
) -> Value:
    """The result of a call as if it were one of another op of ONNX, which has one result, with
    these operands, and these attributes in place of its own. Raises `UnsupportedOpError` if there
    is no converter of that."""
    converter = find_converter(op_type)
    if converter is None:
        raise UnsupportedOpError(f"{call.node.label}: {op_type} is not supported")
    own = call.attributes() if attributes is None else attributes
    node = replace(call.node, op_type=op_type, domain="", attributes=own)
    found = converter(replace(call, node=node, entries=entries))
    return cast("Value", found[0] if isinstance(found, Sequence) else found)


def converts_by_name(cls: type[Op]) -> bool:
    """Whether an op class needs no converter: ONNX has an operator of its name with attributes for
    all its fields, and no converter is registered for it."""
    attributes = _onnx_attributes(cls.name)
    is_alike = attributes is not None and all(name in attributes for name in _fields(cls))
    return is_alike and cls.name not in CONVERTERS


def known_op_types() -> list[str]:
    """The ONNX op types that can be imported."""
    by_name = [entry.name for entry in OPS if converts_by_name(entry.value)]
    return [*CONVERTERS.names(), *by_name]


def _onnx_attributes(name: str) -> Collection[str] | None:
    """The names of an ONNX operator's attributes; None if there is no such operator."""
    # By name, for type checkers take a plain import for the module beside this one.
    defs: Any = importlib.import_module("onnx.defs")
    return defs.get_schema(name).attributes if defs.has(name) else None


def _fields(cls: type[Any]) -> dict[str, Any]:
    """The fields of an op class and their defaults."""
    found = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return {field.name: field.default for field in found}


def _convert(cls: type[Op], call: Call) -> Sequence[Value]:
    fields = _fields(cls)
    given = call.attributes()
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
        raise ImportModelError("an operand before the last one is absent; expected all of them")
    if call.opset < 7 and len(operands) == 2:
        return operands[0], _aligned(call, *operands)
    return operands


def _aligned(call: Call, a: Value, b: Value) -> Value:
    """The second operand with dims of size 1 appended. Before opset 7, the attribute `axis` says
    where its dims stand among those of the first operand."""
    if not call.attribute("broadcast") or call.attribute("axis") is None:
        return b
    axis = normalize_axis(call.node.op_type, call.attribute("axis"), a.type.rank)
    trailing = a.type.rank - axis - b.type.rank
    return call.view(b, (*b.type.shape, *(1,) * trailing), range(b.type.rank))
