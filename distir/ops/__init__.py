"""The op set: ONNX's names and semantics where ONNX has the op, ours where it has not.

One file per family. `OPS` maps a name to its class, for the text form and the importer.
"""

from __future__ import annotations

from distir.ops import (  # noqa: F401  (importing a family registers its ops)
    activations,
    arithmetic,
    attention,
    channel_norm,
    collective,
    comparisons,
    conv,
    elementwise,
    fused,
    linalg,
    lookup,
    loss,
    norm,
    optimizer,
    padding,
    pooling,
    positions,
    reduce,
    ring,
    routing,
    tensor,
)
from distir.ops.base import OPS, register_op

__all__ = ["OPS", "register_op"]
