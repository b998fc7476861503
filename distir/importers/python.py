"""Models that are Python functions: the size arguments they take, and the objects they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from distir.errors import ImportModelError


def size_arguments(function: Callable[..., object], label: str) -> Mapping[str, object]:
    """The arguments among `batch_size` and `sequence_length` that a function takes, with their
    defaults. Raises `ImportModelError` if it needs any other argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    taken: dict[str, object] = {}
    for parameter in parameters:
        if parameter.name in ("batch_size", "sequence_length"):
            taken[parameter.name] = parameter.default
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ImportModelError(
                f"{label}: the function needs an argument {parameter.name!r}, but only batch_size "
                "and sequence_length are passed; give it a default"
            )
    return taken


def is_onnx_model(value: object) -> bool:
    """Whether this is an `onnx.ModelProto`, without importing onnx."""
    return any(cls.__name__ == "ModelProto" for cls in type(value).__mro__)
