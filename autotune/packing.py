"""Values as bytes for other processes, with functions that are defined in functions, too: spaces
and simulators are made of such, and Python's own pickle does not write them. Another version of
Python may not read them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def packed(value: object) -> bytes:
    """The value as bytes."""
    return _cloudpickle().dumps(value)


def unpacked(content: bytes) -> Any:
    """The value that was packed. Bytes may run any code: they must be of a trusted source."""
    return _cloudpickle().loads(content)


def _cloudpickle() -> Any:
    """Imported late: few need it."""
    return import_module("cloudpickle")
