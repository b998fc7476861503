"""What ONNX's ops become, one file per family. An op that existing ops can spell gets no class of
its own; one that is ours by name and attributes needs no converter (`onnx_by_name.py`).

Importing a family registers its converters (`onnx_call.converts`); all families are imported.
"""

from __future__ import annotations

from distir.registry import import_modules

import_modules(__name__, __path__)
