"""The intermediate representation: types, values, ops, functions."""

from __future__ import annotations

from distir.ir.builder import Builder
from distir.ir.core import Node, Op, Value
from distir.ir.function import Function
from distir.ir.signature import Kind, Signature
from distir.ir.types import DType, TensorType

__all__ = ["Builder", "DType", "Function", "Kind", "Node", "Op", "Signature", "TensorType", "Value"]
