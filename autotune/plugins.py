"""Things that others provide: by `module:attribute`, by `file.py:attribute`, or by an entry
point.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distir.errors import DistirError, UnknownNameError
from distir.user_code import find_object, run_user_code


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
    label = f"{kind} {spec}"
    return find_object(address, attribute, error=PluginError, label=label)


def plugin_summaries(group: str) -> dict[str, str]:
    """Installed entry points of `group`: name and address."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group)}


def _from_entry_point(name: str, kind: str, group: str, known: Iterable[str]) -> Any:
    from importlib.metadata import entry_points

    points = entry_points(group=group)
    found = [point for point in points if point.name.lower() == name.lower()]
    if not found and name.endswith(".py"):
        raise PluginError(
            f"{kind} {name}: the object in the file is not named; expected {name}:NAME"
        )
    if not found:
        raise UnknownNameError(kind, name, [*known, *(point.name for point in points)])
    if len({point.value for point in found}) > 1:
        rivals = " and ".join(sorted(point.value for point in found))
        raise PluginError(
            f"{kind} {name!r} is provided twice, by {rivals}; name one of them by its address"
        )
    label = f"{kind} {name!r} ({found[0].value})"
    return run_user_code(label, found[0].load, PluginError)
