"""The op classes. An op that ONNX has too has ONNX's name and meaning.

There is one file per family of ops. All files of this folder are imported here, so that a new file
registers its ops without being listed anywhere. Listing the folder takes next to no time compared
with importing its files.
"""

from __future__ import annotations

from distir.ir.registered import OPS, attribute_record, register_op
from distir.ops.elementwise import Binary, Elementwise, Unary
from distir.registry import import_modules

import_modules(__name__, __path__)

__all__ = ["OPS", "Binary", "Elementwise", "Unary", "attribute_record", "register_op"]
