"""Finds a schedule by its name or in its file."""

from __future__ import annotations

from pathlib import Path

from distir.schedules.core.family import SCHEDULES, ScheduleFamily
from distir.schedules.core.load import family_of_file
from distir.schedules.families import register_families

__all__ = ["find_schedule"]

register_families()


def find_schedule(name: str) -> ScheduleFamily:
    """The schedule called `name`, or the one in the file at that path.

    Registered names come first: `./gpipe` is a file, `gpipe` is not. What has a folder or a suffix
    is always a path.
    """
    path = Path(name)
    if name not in SCHEDULES and (len(path.parts) > 1 or path.suffix or path.is_file()):
        return family_of_file(path)
    return SCHEDULES.get(name)
