"""The schedules that have a name."""

from __future__ import annotations

from pathlib import Path

from distir.registry import Registry
from distir.schedules.breadth_first import breadth_first
from distir.schedules.chimera import chimera
from distir.schedules.family import ScheduleFamily
from distir.schedules.gpipe import gpipe
from distir.schedules.interleaved import interleaved
from distir.schedules.load import family_of_file
from distir.schedules.one_f_one_b import one_f_one_b
from distir.schedules.zero_bubble import zb_h1, zb_h2, zb_v

__all__ = ["SCHEDULES", "find_schedule"]

SCHEDULES: Registry[ScheduleFamily] = Registry("schedule")
"""Schedules for training, by name."""

for _family in (gpipe, one_f_one_b, interleaved, breadth_first, zb_h1, zb_h2, zb_v, chimera):
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
