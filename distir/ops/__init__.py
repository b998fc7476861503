"""The op set: ONNX's names and semantics where ONNX has the op, ours where it has not.

One file per family. All of them are imported here, whatever they are called, so that a new file
registers its ops without being listed anywhere: what lists a folder costs is nothing beside what
importing costs.
"""

from __future__ import annotations

from distir.ir.registered import OPS, attribute_record, register_op
from distir.ops.elementwise import Binary, Elementwise, Unary
from distir.registry import import_modules

import_modules(__name__, __path__)

__all__ = ["OPS", "Binary", "Elementwise", "Unary", "attribute_record", "register_op"]
