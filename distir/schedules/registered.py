"""The schedules that have a name."""

from __future__ import annotations

from pathlib import Path

from distir.registry import Registry
from distir.schedules.core.family import ScheduleFamily
from distir.schedules.core.load import family_of_file
from distir.schedules.families import families

__all__ = ["SCHEDULES", "find_schedule"]

SCHEDULES: Registry[ScheduleFamily] = Registry("schedule")
"""Schedules for training, by name."""

for _family in families():
    SCHEDULES.add(_family.name, _family, _family.summary)


def find_schedule(name: str) -> ScheduleFamily:
    """The schedule called `name`, or the one in the file at that path.

    Registered names come first: `./gpipe` is a file, `gpipe` is not. What has a folder or a suffix
    is always a path.
    """
    path = Path(name)
    if name not in SCHEDULES and (len(path.parts) > 1 or path.suffix or path.is_file()):
        return family_of_file(path)
    return SCHEDULES.get(name)
