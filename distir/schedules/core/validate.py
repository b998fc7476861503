"""Whether a schedule can run, and if not, where it goes wrong."""

from __future__ import annotations

from operator import gt

from distir.schedules.core.order import (
    Numbered,
    execution_order,
    number,
    schedule_error,
    too_early,
)
from distir.schedules.core.schedule import Schedule

__all__ = ["validate"]


def validate(schedule: Schedule) -> None:
    """Raises `ScheduleError` (`DeadlockError`), with the grid and the bad cell in brackets.

    Every microbatch visits every stage once forward and, when training, once backward; on one rank;
    nothing is used before it is produced; ranks do not wait for each other in a circle.
    """
    numbered = number(schedule)
    _check_complete(numbered)
    _check_rank(numbered)
    _check_parts(numbered)
    execution_order(numbered, numbered.needs())


def _check_complete(numbered: Numbered) -> None:
    """Nothing is missing."""
    schedule = numbered.schedule
    cells = [("F", numbered.forward, "")]
    if schedule.has_backward:
        cells.append(("B", numbered.backward, ""))
    if schedule.splits_backward:
        why = ": where a schedule has W, every B needs one (or is a BW)"
        cells.append(("W", numbered.weight, why))
    for kind, present, why in cells:
        if -1 in present:
            stage, microbatch = divmod(present.index(-1), schedule.microbatches)
            homes = (r for r, own in enumerate(schedule.stages_of_ranks) if stage in own)
            rank = next(homes, min(stage, len(schedule.ranks) - 1))
            problem = f"{stage}{kind}{microbatch} is missing{why}"
            raise schedule_error(schedule, problem, (rank, len(schedule.ranks[rank])))


def _check_rank(numbered: Numbered) -> None:
    """What a microbatch leaves on a stage stays on one rank."""
    rank = numbered.rank
    homes = [rank[i] for i in numbered.forward]
    for cells in (numbered.backward, numbered.weight):
        if cells[0] < 0 or [rank[i] for i in cells] == homes:
            continue
        i, home = next((i, h) for i, h in zip(cells, homes, strict=True) if rank[i] != h)
        problem = (
            f"{numbered.action(i)} is on rank {rank[i]}, but its forward pass is on rank {home}"
        )
        raise schedule_error(numbered.schedule, problem, numbered.place(i))


def _check_parts(numbered: Numbered) -> None:
    """A microbatch's passes of one stage are in order: F, B, W."""
    for first, second in (
        (numbered.forward, numbered.backward),
        (numbered.backward, numbered.weight),
    ):
        if second[0] < 0 or not any(map(gt, first, second)):
            continue
        needed, i = next((a, b) for a, b in zip(first, second, strict=True) if a > b)
        raise too_early(numbered, i, needed)
