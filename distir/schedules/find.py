"""Finds a schedule family by its name, or makes one of a schedule file."""

from __future__ import annotations

from pathlib import Path

from distir.files import is_file
from distir.schedules.core.family import SCHEDULES, ScheduleFamily
from distir.schedules.core.load import family_of_file
from distir.schedules.families import register_families

__all__ = ["find_schedule"]

register_families()


def find_schedule(name: str) -> ScheduleFamily:
    """The schedule family called `name`, or that of the schedule file at this path.

    Registered names come first: `./gpipe` is a file, `gpipe` is not. A name with a folder or a
    suffix is always a path. Raises `UnknownNameError` if there is neither, and `ScheduleError` if
    the file has no valid schedule.
    """
    path = Path(name)
    if name not in SCHEDULES and (len(path.parts) > 1 or path.suffix or is_file(path)):
        return family_of_file(path)
    return SCHEDULES.get(name)
