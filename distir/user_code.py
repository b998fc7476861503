"""Code of users: finds what `module:attribute` or `file.py:attribute` names, and calls it.

Whatever goes wrong in their code is reported in one line, with its place.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from distir.errors import DistirError, UnknownNameError, brief
from distir.files import check_no_output, is_file, user_path

__all__ = ["described", "find_object", "message_of", "one_line", "run_user_code"]

T = TypeVar("T")

_OWN_FILES = (
    str(Path(__file__).resolve().parent),
    str(Path(importlib.__file__).parent),
    "<frozen importlib",
)


def find_object(
    place: str, dotted: str, *, error: type[DistirError], label: str | None = None
) -> object:
    """What `dotted` names in the module or file `place`.

    Raises `error`, its message led by `label` (by default `place:dotted`), or `UnknownNameError`.
    """
    label = label or f"{place}:{dotted}"
    if place.endswith(".py"):
        file = user_path(place)
        if not is_file(file):
            where = "" if file.is_absolute() else f" in {Path.cwd()}"
            raise error(f"{label}: there is no file {file}{where}")
        check_no_output(file, error)
        module = run_user_code(label, lambda: _load_file(file), error)
    else:
        module = run_user_code(label, lambda: _import(place), error)
    found: object = module
    for name in dotted.split("."):
        if not hasattr(found, name):
            known = [each for each in dir(found) if not each.startswith("_")]
            raise UnknownNameError(f"attribute in {place}:", name, known)
        found = getattr(found, name)
    return found


def _load_file(file: Path) -> ModuleType:
    path = str(file.resolve())
    name = f"_distir_user_{file.stem}_{zlib.crc32(path.encode()):08x}"  # one for every file
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None  # it ends in .py
    if (folder := str(Path(path).parent)) not in sys.path:
        sys.path.append(folder)  # for what the file imports from beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    spec.loader.exec_module(module)
    return module


def _import(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:  # `python -m` adds it, a script does not
        sys.path.insert(0, here)
    return importlib.import_module(name)


def run_user_code(label: str, call: Callable[[], T], error: type[DistirError]) -> T:
    """`call()`; whatever it raises becomes one line of `error` that says what and where."""
    try:
        return call()
    except error as own:
        if own.__traceback__ is not None and _place(own) is None:
            raise  # ours, not the user's
        raise error(f"{label}: {described(own)}") from own
    except (Exception, SystemExit) as theirs:
        raise error(f"{label}: {described(theirs)}") from theirs


def message_of(error: BaseException) -> str:
    """What an error says, shortened; errors of a user's code may not even say that."""
    try:
        return brief(str(error))
    except BaseException as worse:  # noqa: BLE001  whatever a method of theirs does
        return f"(it has no message: {type(worse).__name__} when asked)"


def one_line(error: BaseException) -> str:
    """An error of a user's code in one line, without its place: the same for all trials that fail
    in the same way."""
    text = " ".join(message_of(error).split())
    if isinstance(error, DistirError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def described(error: BaseException) -> str:
    """An error of a user's code in one line: its kind, its message, and where it is from."""
    message = next(iter(message_of(error).strip().splitlines()), "")
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
