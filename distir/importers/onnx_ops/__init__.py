"""Converters of ONNX ops, one file per family.

An op that can be expressed by others gets no op class of its own. An op that has the name and
attributes of one of our op classes needs no converter (`onnx_by_name.py`). Importing a file
registers its converters (`onnx_call.converts`); all files of this package are imported.
"""

from __future__ import annotations

from distir.registry import import_modules

import_modules(__name__, __path__)
