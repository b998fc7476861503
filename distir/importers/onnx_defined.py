"""Bodies of standard ops that ONNX defines by other ops, so that an op without a converter of its
own can be read: as the function that it is.

Source: the schemas of the installed package onnx (`onnx.defs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distir.errors import ImportModelError
from distir.importers.onnx_file import (
    FunctionRecord,
    GraphRecord,
    NodeRecord,
    onnx_package,
    read_function,
    written_attribute,
    written_type,
)
from distir.ir.types import TensorType


def defined_function(
    node: NodeRecord, opset: int, types: Sequence[TensorType | None]
) -> FunctionRecord | None:
    """The function that a standard op is in an opset; None where ONNX defines it by no others, or
    with a body of its own, as SequenceMap has one.

    `types` are those of its operands; None: an optional one is absent. Raises `ImportModelError`
    where ONNX has no body for these.
    """
    if any(isinstance(each, GraphRecord) for each in node.attributes.values()):
        return None
    defs = onnx_package("defs")
    try:
        schema = defs.get_schema(node.op_type, opset, node.domain)
    except defs.SchemaError:
        return None
    if schema.has_context_dependent_function:
        proto = _made_for(schema, node, opset, types)
    elif schema.has_function:
        version = _version(schema.function_opset_versions, opset)
        proto = _parsed(schema.get_function_with_opset_version(version))
    else:
        return None
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if int(attribute.default_value.type)
    }
    return read_function(proto, defaults, opset)


def _made_for(schema: Any, node: NodeRecord, opset: int, types: Sequence[TensorType | None]) -> Any:
    """The body of an op that depends on its attributes and on the types of its operands."""
    attributes = {name: written_attribute(value) for name, value in node.attributes.items()}
    call = onnx_package("helper").make_node(
        node.op_type, node.operands, node.results, domain=node.domain, **attributes
    )
    version = _version(schema.context_dependent_function_opset_versions, opset)
    body = schema.get_context_dependent_function_with_opset_version(
        version,
        call.SerializeToString(),
        [written_type(each).SerializeToString() for each in types],
    )
    if not body:
        raise ImportModelError("ONNX defines no body of this op for operands of these types")
    return _parsed(body)


def _version(versions: Sequence[int], opset: int) -> int:
    """The newest version of a body that an opset can have."""
    return max((each for each in versions if each <= opset), default=min(versions))


def _parsed(body: bytes) -> Any:
    proto = onnx_package().FunctionProto()
    proto.ParseFromString(body)
    return proto


__all__ = ["defined_function"]
