"""Models that are Python functions: what sizes they take, and what they give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from distir.errors import ImportModelError


def size_arguments(function: Callable[..., object], label: str) -> Mapping[str, object]:
    """Which of `batch_size` and `sequence_length` a function takes, with its defaults for them."""
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
                f"{label}: the function needs an argument {parameter.name!r}; only batch_size and "
                "sequence_length are given, so let it have a default"
            )
    return taken


def is_onnx_model(value: object) -> bool:
    """Whether this is an `onnx.ModelProto`, found out without importing onnx."""
    return any(cls.__name__ == "ModelProto" for cls in type(value).__mro__)
