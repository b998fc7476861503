"""Loads a user's own schedule from a text file in the notation of `parse_schedule`."""

from __future__ import annotations

from functools import lru_cache
from os import PathLike
from pathlib import Path

from distir.errors import ScheduleError
from distir.files import read_text
from distir.schedules.core.family import ScheduleFamily
from distir.schedules.core.schedule import Schedule, parse_schedule
from distir.schedules.core.validate import validate
from distir.units import counted

__all__ = ["family_of_file", "load_schedule"]


def load_schedule(path: str | PathLike[str]) -> Schedule:
    """Reads and validates the schedule in a file.

    Raises `ScheduleError` (`DeadlockError`), which names the file and shows the schedule around the
    wrong action.
    """
    path = Path(path)
    text = read_text(path, ScheduleError)
    try:
        schedule = parse_schedule(text, path.name)
        validate(schedule)
    except ScheduleError as error:
        raise type(error)(f"{path}: {error}") from error
    return schedule


def family_of_file(path: str | PathLike[str]) -> ScheduleFamily:
    """A family with one member, the schedule in a file. Raises `ScheduleError` as `load_schedule`.

    The file determines ranks, chunks and microbatches, so a strategy must have the same numbers.
    The file is read again only if it has changed.
    """
    try:
        changed = Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        changed = 0  # reading the file will say what is wrong with it
    return _family(str(path), changed)


@lru_cache(maxsize=32)
def _family(path: str, _changed: int) -> ScheduleFamily:
    schedule = load_schedule(path)
    ranks = len(schedule.ranks)
    chunks, uneven = divmod(schedule.stages, ranks)
    held = [stage for stages in schedule.stages_of_ranks for stage in stages]
    copies = max(held.count(stage) for stage in range(schedule.stages))

    def demands(wanted_ranks: int, wanted_chunks: int, microbatches: int, /) -> str | None:
        if uneven:
            return (
                f"{path} has {schedule.stages} stages on {ranks} ranks; expected equally many "
                "stages for every rank"
            )
        if not schedule.has_backward:
            return f"{path} has forward passes only; expected backward passes as well"
        stated = (ranks, chunks, schedule.microbatches)
        wanted = (wanted_ranks, wanted_chunks, microbatches)
        if stated != wanted:
            return f"{path} is for {_numbers(*stated)}, not for {_numbers(*wanted)}"
        return None

    def generate(_ranks: int, _chunks: int, _microbatches: int, /) -> Schedule:
        return schedule

    return ScheduleFamily(
        name=path,
        generate=generate,
        summary=f"{_numbers(ranks, chunks, schedule.microbatches)}, from a file",
        source=path,
        default_chunks=max(1, chunks),
        least_chunks=1,
        most_chunks=None,
        splits_backward=schedule.splits_backward,
        overlaps=bool(schedule.overlapped),
        copies=copies,
        placement="stated",
        demands=demands,
        is_proven=True,
    )


def _numbers(ranks: int, chunks: int, microbatches: int) -> str:
    return (
        f"{counted(ranks, 'rank')} x {counted(chunks, 'chunk')} and "
        f"{counted(microbatches, 'microbatch', 'es')}"
    )
