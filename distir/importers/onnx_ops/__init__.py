"""What ONNX's ops become, one file per family. An op that existing ops can spell gets no class of
its own.

Importing a family registers its converters (`onnx_call.converts`).
"""

from __future__ import annotations

from distir.importers.onnx_ops import (  # noqa: F401
    attention,
    elementwise,
    lookups,
    norms,
    products,
    reductions,
    shapes,
    vision,
)
