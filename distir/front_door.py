"""Packages whose public names are imported when they are first used.

The names of a package are those of `__all__` in its module `api`, which imports them from where
they are defined. Importing the package alone is quick, which `--help` and plug-ins rely on.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def front_door(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` (PEP 562) of `package`, by what its module `api` exports.

    Raises `AttributeError` for any other name.
    """

    def get(name: str) -> Any:
        api = import_module(f"{package}.api")
        if name == "__all__":
            return api.__all__
        if name in api.__all__:
            return getattr(api, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        imported = vars(import_module(package))
        return sorted({*imported, "__all__", *import_module(f"{package}.api").__all__})

    return get, names
