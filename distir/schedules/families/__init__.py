"""Schedules for training, a file each.

To add one, add a file with a function that `schedule_family` decorates: every family that a module
of this package defines is registered under its name. A package of its own does the same with an
entry point in the group `distir.schedules` that leads to its family.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from distir.schedules.core.family import ScheduleFamily

__all__ = ["families"]


def families() -> Iterator[ScheduleFamily]:
    """All families of this package, in the order in which they are listed."""
    modules = (import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__))
    found = {
        value.name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, ScheduleFamily)
    }
    yield from sorted(found.values(), key=lambda family: (family.listed_at, family.name))
