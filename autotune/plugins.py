"""Things that others provide: by `module:attribute`, by `file.py:attribute`, or by an entry
point.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from distir.errors import DistirError, UnknownNameError


class PluginError(DistirError):
    """A plug-in is not there or cannot be loaded."""


def load_plugin(spec: str, *, kind: str, group: str, known: Iterable[str] = ()) -> Any:
    """The object that `spec` names: an address with a colon, or the name of an entry point in
    `group`.
    """
    address, colon, attribute = spec.rpartition(":")
    if not colon:
        return _from_entry_point(spec, kind, group, known)
    if not address or not attribute:
        raise PluginError(
            f"{kind} {spec!r} is incomplete; write module:attribute or file.py:attribute"
        )
    module = _load_file(address, kind) if address.endswith(".py") else _import(address, kind)
    return _attribute(module, attribute, f"{kind} {spec!r}")


def plugin_summaries(group: str) -> dict[str, str]:
    """Installed entry points of `group`: name and address."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group)}


def _from_entry_point(name: str, kind: str, group: str, known: Iterable[str]) -> Any:
    from importlib.metadata import entry_points

    points = entry_points(group=group)
    found = [point for point in points if point.name.lower() == name.lower()]
    if not found:
        raise UnknownNameError(kind, name, [*known, *(point.name for point in points)])
    if len({point.value for point in found}) > 1:
        rivals = " and ".join(sorted(point.value for point in found))
        raise PluginError(
            f"{kind} {name!r} is provided twice, by {rivals}; name one by its address"
        )
    try:
        return found[0].load()
    except Exception as error:
        raise PluginError(
            f"{kind} {name!r} ({found[0].value}) cannot be loaded: {error}"
        ) from error


def _load_file(path: str, kind: str) -> ModuleType:
    file = Path(path).expanduser()
    if not file.is_file():
        raise PluginError(f"{kind} file {path!r} does not exist (looked in {Path.cwd()})")
    name = f"_autotune_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"{kind} file {path!r} is not a Python file")
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # for what the file imports from beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PluginError(f"{kind} file {path!r} fails when run: {_brief(error)}") from error
    return module


def _import(name: str, kind: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:  # `python -m` adds it, a script does not
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise PluginError(f"{kind} module {name!r} cannot be imported: {_brief(error)}") from error


def _attribute(module: ModuleType, dotted: str, what: str) -> Any:
    found: Any = module
    for name in dotted.split("."):
        if not hasattr(found, name):
            known = [each for each in vars(module) if not each.startswith("_")]
            raise UnknownNameError(f"{what}: attribute", name, known)
        found = getattr(found, name)
    return found


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
