"""Models that are Python: finds the function that a text names, calls it, and takes what it gives.

The code is the user's: whatever goes wrong in it is reported in one line, with its place.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from distir.errors import ImportModelError, UnknownNameError

T = TypeVar("T")

_OWN_FILES = (str(Path(__file__).resolve().parents[1]), importlib.__file__, "<frozen importlib")


def find_object(place: str, dotted: str) -> object:
    """What `dotted` names in the module or file `place`."""
    label = f"{place}:{dotted}"
    if place.endswith(".py"):
        module = run_user_code(label, lambda: _load_file(Path(place).expanduser(), label))
    else:
        module = run_user_code(label, lambda: _import(place))
    found: object = module
    for name in dotted.split("."):
        if not hasattr(found, name):
            known = [each for each in dir(found) if not each.startswith("_")]
            raise UnknownNameError(f"attribute in {place}:", name, known)
        found = getattr(found, name)
    return found


def _load_file(file: Path, label: str) -> ModuleType:
    if not file.is_file():
        raise ImportModelError(f"{label}: there is no file {file} in {Path.cwd()}")
    name = f"_distir_model_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportModelError(f"{label}: {file} is not a Python file")
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # for what the file imports from beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _import(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:  # `python -m` adds it, a script does not
        sys.path.insert(0, here)
    return importlib.import_module(name)


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


def run_user_code(label: str, call: Callable[[], T]) -> T:
    """`call()`; whatever it raises becomes one line that says what and where."""
    try:
        return call()
    except ImportModelError as error:
        if error.__traceback__ is not None and _place(error) is None:
            raise  # ours, not the user's
        raise ImportModelError(f"{label}: {_describe(error)}") from error
    except (Exception, SystemExit) as error:
        raise ImportModelError(f"{label}: {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    message = next(iter(str(error).strip().splitlines()), "")
    place = _place(error)
    return (
        type(error).__name__
        + (f": {message}" if message else "")
        + (f" (at {place})" if place else "")
    )


def _place(error: BaseException) -> str | None:
    """File and line of the innermost frame that is not ours or the import system's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    user = [frame for frame in frames if not frame.filename.startswith(_OWN_FILES)]
    return f"{user[-1].filename}:{user[-1].lineno}" if user else None


def is_onnx_model(value: object) -> bool:
    """Whether this is an `onnx.ModelProto`, found out without importing onnx."""
    return any(cls.__name__ == "ModelProto" for cls in type(value).__mro__)
