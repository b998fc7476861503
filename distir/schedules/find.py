"""Finds a schedule family by its name, or makes one of a schedule file."""

from __future__ import annotations

import os
from pathlib import Path

from distir.errors import ScheduleError
from distir.files import beside, is_file
from distir.schedules.core.family import SCHEDULES, ScheduleFamily
from distir.schedules.core.load import family_of_file
from distir.schedules.families import register_families

__all__ = ["find_schedule"]

register_families()


def find_schedule(name: str, folder: Path | None = None) -> ScheduleFamily:
    """The schedule family called `name`, or that of the schedule file at this path.

    Registered names come first: `./gpipe` is a file, `gpipe` is not. A name with a folder or a
    suffix is always a path. It is looked for in `folder`, that of the file that names it, and then
    from where we work. The family of a file is called by a path that finds it again. Raises
    `UnknownNameError` if there is neither, and `ScheduleError` if the file has no valid schedule.
    """
    if name in SCHEDULES:
        return SCHEDULES.get(name)
    path = name if folder is None else beside(folder, name)
    if len(Path(name).parts) == 1 and not Path(name).suffix and not is_file(path):
        return SCHEDULES.get(name)  # says which there are
    if folder is not None and not is_file(path):
        raise ScheduleError(
            f"there is no schedule file {name}, neither in {folder.absolute()} nor in {Path.cwd()}"
        )
    path = str(Path(path))
    return family_of_file(f"{os.curdir}{os.sep}{path}" if path in SCHEDULES else path)
