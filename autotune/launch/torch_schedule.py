"""Schedules as torch.distributed.pipelining reads them: a CSV file with a row per rank.

Its tokens are ours, but where a schedule splits the backward pass: there `I` is the part that the
stage before waits for, which is `B` here, and `B` is all of it, which is `BW` here.
"""

from __future__ import annotations

import re

from autotune.launch.errors import LaunchError
from distir.errors import ScheduleError
from distir.schedules import SCHEDULES, Schedule, find_schedule
from distir.schedules.core.family import ScheduleFamily, stages_on_ranks
from distir.schedules.core.schedule import format_schedule, parse_schedule
from distir.strategy import Strategy

_TO_TORCH = {"B": "I", "BW": "B"}
_FROM_TORCH = {"I": "B", "B": "BW"}
_TOKEN = re.compile(r"(\d+)(F|I|BW|B|W)(\d+)")


def schedule_of(strategy: Strategy) -> Schedule:
    """The schedule of a strategy."""
    family = find_schedule(strategy.schedule)
    return family(strategy.pp, strategy.chunks, strategy.microbatches)


def format_csv(schedule: Schedule) -> str:
    """A schedule as a CSV file."""
    spelled = _TO_TORCH if schedule.splits_backward else {}

    def theirs(match: re.Match[str]) -> str:
        return f"{match[1]}{spelled.get(match[2], match[2])}{match[3]}"

    return _TOKEN.sub(theirs, format_schedule(schedule)).replace(" ", ",") + "\n"


def parse_csv(text: str) -> Schedule:
    """The schedule in a CSV file. Raises `LaunchError` if it is none."""
    spelled = _FROM_TORCH if re.search(r"\dI\d", text) else {}

    def ours(match: re.Match[str]) -> str:
        return f"{match[1]}{spelled.get(match[2], match[2])}{match[3]}"

    words = "\n".join(row.replace(",", " ") for row in text.splitlines())
    try:
        return parse_schedule(_TOKEN.sub(ours, words))
    except ScheduleError as error:
        raise LaunchError(f"the schedule cannot be read: {error}") from error


def named(schedule: Schedule, chunks: int, first: str) -> str:
    """The family that makes a schedule: the one called `first`, if it does, since families may
    agree where there is little to do. Raises `LaunchError` if none does."""
    ranks = len(schedule.ranks)
    found, passes = sum(map(len, schedule.ranks)), 2 * schedule.stages * schedule.microbatches
    if found < passes:
        # Said before families make so long a schedule for nothing.
        raise LaunchError(
            f"the schedule has {found:,} actions; {schedule.microbatches:,} microbatches on "
            f"{schedule.stages:,} stages need at least {passes:,}"
        )
    for entry in sorted(SCHEDULES, key=lambda entry: entry.name != first):
        family: ScheduleFamily = entry.value
        if family.requires(ranks, chunks, schedule.microbatches) is None:
            if family(ranks, chunks, schedule.microbatches) == schedule:
                return family.name
    known = ", ".join(SCHEDULES.names())
    raise LaunchError(
        f"the schedule is not one of {known}; write its rows without commas to a file, and state "
        "that file with --set schedule=FILE"
    )


def stage_order(schedule: Schedule) -> str | None:
    """How the stages of a schedule lie on ranks: `loop`, `V`, or None if otherwise."""
    ranks = len(schedule.ranks)
    chunks = schedule.stages // ranks
    for order in ("loop", "V"):
        if order == "V" and chunks != 2:
            continue
        if schedule.stages_of_ranks == stages_on_ranks(order, ranks, chunks):
            return order
    return None
